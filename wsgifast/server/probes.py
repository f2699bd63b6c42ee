"""Respond to health checks at two paths of the app's address, without calling the app.

The polling thread responds. So a health check needs no free thread for an app.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ClientGone
from ..metrics.health import PLAIN
from .channel import Channel
from .response import ResponseSettings
from .shared import Shared

# Requests with other methods are for the app.
_METHODS = frozenset({"GET", "HEAD"})


@dataclass(eq=False, repr=False)
class Probes:
    """The two health checks of a worker.

    :param readiness: returns whether the worker is ready, and the reason.
    :ivar paths: the paths of the enabled health checks.
    """

    shared: Shared
    settings: ResponseSettings
    file_wrapper: type
    readiness: Callable[[], tuple[bool, str]]

    def __post_init__(self) -> None:
        options = self.shared.options
        self.paths = {options.health_path, options.ready_path} - {None}

    def answer(self, channel: Channel) -> bool:
        """Respond to a request for one of the paths. Return False if the request is for the app."""
        exchange, shared = channel.exchange, self.shared
        if exchange is None or exchange.req.method not in _METHODS:
            return False
        status, body = self._check(exchange.req.path)
        shared.counters.probes[status[:3]] += 1
        exchange.resp = resp = channel.response_class(exchange.req, channel.output, self.settings)
        resp.must_close = shared.is_draining or shared.keepalive_s <= 0
        headers = [
            ("Content-Type", PLAIN),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        try:
            resp.start_response(status, headers)
            resp.write_body([body], self.file_wrapper)
        except ClientGone as error:
            shared.log.debug("Ignoring a lost connection: %s", error)
        channel.finish_when_sent()
        return True

    def _check(self, path: str) -> tuple[str, bytes]:
        ok, text = True, "alive"
        if path == self.shared.options.ready_path:
            if self.shared.is_draining:
                ok, text = False, "the server is about to end"
            else:
                ok, text = self.readiness()
        return "200 OK" if ok else "503 Service Unavailable", f"{text}\n".encode()
