"""Hostile and broken clients against each of our servers.

`make test` runs each attack for a few seconds. WSGIFAST_TEST_LONG=1 (`make test-long`) runs many
more.
"""
