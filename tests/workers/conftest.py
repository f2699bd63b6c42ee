"""Fixtures of the tests of FastWorker."""

from tests.workers.bench import make_bench

__all__ = ["make_bench"]
