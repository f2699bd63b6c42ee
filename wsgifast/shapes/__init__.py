"""Which shapes of a body are slow, for the doctor and for a server in production."""
