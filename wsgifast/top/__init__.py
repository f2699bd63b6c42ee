"""`wsgifast top`: a running server, live in a terminal, by what its metrics address tells."""
