"""`wsgifast bench`: compares an unwrapped and a wrapped app on real servers under load.

A contender is a server with one of the two apps. The modules need the extra `bench`, but the import
of the package does not. The load tests of this project use these modules (`loadtests/harness/`).
"""
