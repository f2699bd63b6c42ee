"""The five field reports that wsgifast began with, measured again.

Each is a table for the runner, with the figures of then beside today's and what has changed.
"""
