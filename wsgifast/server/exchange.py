"""A request with its response."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Exchange"]


class Exchange:
    """A request and its response; made by the parser, when the request's head has come.

    :ivar req: the parser's own, for the environ, hooks and loggers.
    :ivar length: bytes of the body; None for chunks (RFC 9112 section 6).
    :ivar rest: what has come behind the head.
    :ivar fields: its headers under the environ's keys.
    :ivar script_name: what a trusted proxy has said of SCRIPT_NAME; None for nothing.
    :ivar expects_continue: whether the client waits for "100 Continue" (RFC 9110 section 10.1.1).
    :ivar upgrade: the settings of a request that asks for HTTP/2 in its place; None for the others.
        Its answer goes out in HTTP/2.
    :ivar proxy: what a proxy has said of the connection before its first request, for the environ.
    :ivar body: for `wsgi.input`, once there is one.
    :ivar streamed: what is under it, where the app reads it as it comes; its `failure` says why it
        cannot be read to its end.
    :ivar started: when it was made; monotonic, as the times below, which are 0.0 where there is
        none.
    :ivar queued: when it began to wait for a thread, with all that the app needs.
    :ivar begun: when the app was called; for an access log.
    :ivar answered: when the app was done.
    """

    __slots__ = (
        "answered",
        "begun",
        "body",
        "environ",
        "expects_continue",
        "fields",
        "length",
        "proxy",
        "queued",
        "req",
        "resp",
        "rest",
        "script_name",
        "started",
        "streamed",
        "upgrade",
    )

    def __init__(
        self,
        req: Any,
        length: int | None,
        rest: bytes,
        fields: dict[str, str],
        script_name: str | None = None,
        expects_continue: bool = False,
        upgrade: Any = None,
        proxy: dict[str, Any] | None = None,
    ) -> None:
        self.req = req
        self.length = length
        self.rest = rest
        self.fields = fields
        self.script_name = script_name
        self.expects_continue = expects_continue
        self.upgrade = upgrade
        self.proxy = proxy
        self.resp: Any = None
        self.environ: dict[str, Any] | None = None
        self.body: Any = None
        self.streamed: Any = None
        self.started = time.monotonic()
        self.queued = self.begun = self.answered = 0.0
