"""A Locust user that downloads bodies of any size at little cost, and says what went wrong.

Locust's own `client.get` gathers a body in memory in 4 KiB pieces before it counts it; at tens of
megabytes a response that measures the client. Here the body is read in large blocks and dropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from geventhttpclient.response import HTTPParseError
from locust import FastHttpUser
from locust.env import Environment

# The client copies a block several times: larger ones leave the cache, and are slower.
READ_BLOCK_BYTES = 64 * 1024


class DownloadUser(FastHttpUser):
    """Base class of the scenarios: `download` is its GET.

    :cvar clock: Locust's unit of response times, in one second.
    :cvar failed_name: what Locust's tables call failed requests, in place of their own name.
    """

    abstract = True
    clock = 1e3
    failed_name: str | None = None
    # A server that is stuck for longer counts as failed. Slow raw bodies take seconds.
    network_timeout = 60.0
    connection_timeout = 10.0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # allow_redirects=False is misspelt between some versions of Locust and geventhttpclient.
        agent: Any = self.client.client
        agent.redirect_response_codes = frozenset()

    def download(
        self,
        path: str,
        *,
        name: str | None = None,
        expected: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """GET a path, read its body to the end and report one request to Locust.

        A redirection is an answer like any other: nothing but the server is asked.

        :param name: what Locust's tables call it; the path by default.
        :param expected: bytes that the body must have; another count is a failure.
        :returns: whether it succeeded.
        """
        begun = time.perf_counter()
        fields = dict(headers or {})
        if not any(field.lower() == "accept-encoding" for field in fields):
            fields["Accept-Encoding"] = "identity"
        with self.client.get(
            path,
            name=name,
            stream=True,  # leaves the body to us
            catch_response=True,
            headers=fields,
        ) as response:
            size, problem = 0, ""
            status = response.status_code
            if status:  # else there is no answer; Locust reports why
                try:
                    for block in response.iter_content(READ_BLOCK_BYTES, decode_content=False):
                        size += len(block)
                except (HTTPParseError, OSError) as error:
                    problem = str(error) or type(error).__name__
            declared = response.headers.get("content-length") if response.headers else None
            wanted = int(declared) if declared is not None else expected
            failure = ""
            if status >= 400:
                failure = f"status {status}"
            elif status and (problem or wanted not in (None, size)):
                of_all = "" if wanted is None else f" of {wanted}"
                end = "" if problem in ("", "Incomplete response.") else f" ({problem})"
                failure = f"status {status}, then the end after {size}{of_all} bytes{end}"
            if failure:
                response.failure(failure)
            # Locust's own time ends with the head, and its length is what the head promised.
            meta = response.request_meta
            meta["response_time"] = (time.perf_counter() - begun) * self.clock
            meta["response_length"] = size
            good = bool(status) and not failure
            if not good and self.failed_name:
                meta["name"] = self.failed_name
        return good
