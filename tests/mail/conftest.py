"""What all tests of mail share."""

from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("mail", deadline=None)
settings.load_profile("mail")
