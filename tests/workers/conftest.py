"""Fixtures for the tests of FastWorker."""

from tests.workers.stepped_worker import make_stepped

__all__ = ["make_stepped"]
