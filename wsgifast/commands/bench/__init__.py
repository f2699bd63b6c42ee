"""`wsgifast bench`: compares an unwrapped and a wrapped app, on real servers under load.

Its modules need the extra `bench`. Importing the package does not. The load tests of this project
use the same parts, see `loadtests/harness/`.
"""
