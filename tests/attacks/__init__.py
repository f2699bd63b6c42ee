"""Hostile and broken clients against every server of ours.

A few seconds of each in `make test`; WSGIFAST_TEST_LONG=1 (`make test-long`) runs many times more.
"""
