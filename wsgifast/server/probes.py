"""Respond to health checks at two paths of the app's address, without calling the app.

The polling thread responds. So a health check needs no free thread for an app.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ClientGone
from ..metrics.health import PLAIN
from .channel import Channel
from .response import ResponseSettings
from .shared import Shared

# Requests with other methods are for the app.
_METHODS = frozenset({"GET", "HEAD"})


class Probes:
    """The two health checks of a worker.

    :param readiness: returns whether the worker is ready, and the reason.
    :ivar paths: the paths of the enabled health checks.
    """

    def __init__(
        self,
        shared: Shared,
        settings: ResponseSettings,
        file_wrapper: type,
        readiness: Callable[[], tuple[bool, str]],
    ) -> None:
        options = shared.options
        self._shared, self._settings, self._file_wrapper = shared, settings, file_wrapper
        self._readiness = readiness
        self._ready_path = options.ready_path
        paths = {options.health_path, options.ready_path}
        self.paths = frozenset(path for path in paths if path is not None)

    def response(self, channel: Channel) -> bool:
        """Respond to a request for one of the paths. Return False if the request is for the app."""
        exchange, shared = channel.exchange, self._shared
        if exchange is None or exchange.req.method not in _METHODS:
            return False
        status, body = self._check(exchange.req.path)
        shared.counters.probes[status[:3]] += 1
        exchange.resp = resp = channel.response_class(exchange.req, channel.output, self._settings)
        resp.must_close = shared.is_draining or shared.is_ending or shared.keepalive_s <= 0
        headers = [
            ("Content-Type", PLAIN),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        try:
            resp.start_response(status, headers)
            resp.write_body([body], self._file_wrapper)
        except ClientGone as error:
            shared.log.debug("Ignoring a lost connection: %s", error)
        channel.finish_when_sent()
        return True

    def _check(self, path: str) -> tuple[str, bytes]:
        ok, text = True, "alive"
        if path == self._ready_path:
            if self._shared.is_draining or self._shared.is_ending:
                ok, text = False, "the server is about to end"
            else:
                ok, text = self._readiness()
        return "200 OK" if ok else "503 Service Unavailable", f"{text}\n".encode()
