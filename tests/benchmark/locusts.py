"""Locust's process with the responses of older versions, and with a request that fails."""

from __future__ import annotations

import contextlib

from wsgifast.commands.bench.locust_process import Visitor, main

# isort: split
from locust.contrib.fasthttp import FastResponse


class Failing(Visitor):
    """Raises an exception for requests that have a header."""

    def body(self, headers: dict[str, str]) -> bytes | None:
        if headers:
            raise ValueError("the reason")
        return None


if __name__ == "__main__":
    with contextlib.suppress(AttributeError):  # Locust 2.36 and older versions lack it
        del FastResponse.iter_content
    main(Failing)
