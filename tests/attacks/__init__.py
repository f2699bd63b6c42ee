"""Hostile and broken clients against every server of ours.

`make test` runs each for a few seconds. WSGIFAST_TEST_LONG=1 (`make test-long`) runs many more.
"""
