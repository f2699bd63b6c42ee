"""Failures of those who are told: logged once, at the cost of no response."""

from __future__ import annotations

from typing import Any

__all__ = ["Failures"]


class Failures:
    """Those of one back end.

    :param log: a logger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._is_told = False

    def tell(self) -> None:
        """Log the exception that is handled at the moment, if it is the first."""
        if not self._is_told:
            self._is_told = True
            self._log.exception("Metrics have failed, and are told of no more than this once")
