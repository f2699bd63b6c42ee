"""A Locust user that downloads bodies of any size at little cost, and says what went wrong.

Locust's own `client.get` gathers a body in memory in 4 KiB pieces before it counts it; at tens of
megabytes a response that measures the client. Here the body is read in large blocks and dropped.
"""

from __future__ import annotations

import time

from geventhttpclient.response import HTTPParseError
from locust import FastHttpUser

__all__ = ["DownloadUser"]

# Measured against sendfile on loopback: 64 KiB moved 2.0 GB/s, 256 KiB 1.8 and 1 MiB 1.6, as the
# client copies a block several times and larger ones leave the cache.
READ_BLOCK_BYTES = 64 * 1024


class DownloadUser(FastHttpUser):
    """Base class of the scenarios: `download` is its GET."""

    abstract = True
    # A server that is stuck for longer counts as failed. Slow raw bodies take seconds.
    network_timeout = 60.0
    connection_timeout = 10.0

    def download(
        self,
        path: str,
        *,
        name: str | None = None,
        expected: int | None = None,
        first_byte: bool = False,
    ) -> None:
        """GET a path, read its body to the end and report one request to Locust.

        :param name: what Locust's tables call it; the path by default.
        :param expected: bytes that the body must have; another count is a failure.
        :param first_byte: report the time to the body's first bytes as a request of its own too.
        """
        begun = time.perf_counter()
        with self.client.get(
            path,
            name=name,
            stream=True,  # leaves the body to us
            catch_response=True,
            headers={"Accept-Encoding": "identity"},
        ) as response:
            size, problem, first = 0, None, None
            if response.status_code:  # else there is no answer; Locust reports why
                try:
                    if first_byte:  # a read waits until it has all it was asked for
                        for block in response.iter_content(1, decode_content=False):
                            first, size = time.perf_counter(), len(block)
                            break
                    for block in response.iter_content(READ_BLOCK_BYTES, decode_content=False):
                        size += len(block)
                except (HTTPParseError, OSError) as error:
                    problem = str(error) or type(error).__name__
            # Locust's own time ends with the head, and its length is what the head promised.
            response.request_meta["response_time"] = (time.perf_counter() - begun) * 1e3
            response.request_meta["response_length"] = size
            declared = response.headers.get("content-length") if response.headers else None
            wanted = int(declared) if declared is not None else expected
            if response.status_code >= 400:
                response.failure(f"status {response.status_code}")
            elif response.status_code and (problem or wanted not in (None, size)):
                of_all = "" if wanted is None else f" of {wanted}"
                end = "" if problem in (None, "Incomplete response.") else f" ({problem})"
                seen = f"status {response.status_code}, then the end after {size}{of_all} bytes"
                response.failure(seen + end)
        if first is not None:
            self.environment.events.request.fire(
                request_type="first byte",
                name=name or path,
                response_time=(first - begun) * 1e3,
                response_length=0,
                exception=None,
                context={},
            )
