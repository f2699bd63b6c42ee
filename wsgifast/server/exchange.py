"""A request and its response."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pool import Close


# Transfer codings that leave nothing on a body once its framing has been decoded.
_ONLY_FRAMING = {"chunked", "identity", ""}


class Exchange:
    """A request and its response; made by the parser from a complete head.

    :ivar req: the parser's request, for the environ, hooks and loggers.
    :ivar length: Content-Length in bytes; None for a chunked body (RFC 9112 section 6).
    :ivar rest: what was received after the head.
    :ivar fields: the headers, under their environ keys.
    :ivar script_name: SCRIPT_NAME from a trusted proxy; None without one.
    :ivar expects_continue: whether the client waits for "100 Continue" (RFC 9110 section 10.1.1).
    :ivar upgrade: HTTP2-Settings of a request that asks for an upgrade, and is answered in HTTP/2;
        None for other requests.
    :ivar proxy: environ keys from a PROXY header before the connection's first request.
    :ivar resp: its response, once there is one.
    :ivar environ: once the app is called.
    :ivar body: `wsgi.input`, once there is one.
    :ivar streamed: the raw stream below it, if the app reads from the socket; its `failure` says
        why the body cannot be read to its end.
    :ivar close: its body's close(), if the app has returned and the body is still being sent.
    :ivar started: when this was made. All times are monotonic, and 0.0 if they do not apply.
    :ivar queued: when the complete request began to wait for a thread.
    :ivar begun: when the app was called; only with an access log.
    :ivar answered: when the app was done; only with an access log.
    """

    __slots__ = (
        "answered", "begun", "body", "close", "environ", "expects_continue", "fields", "length",
        "proxy", "queued", "req", "resp", "rest", "script_name", "started", "streamed", "upgrade",
    )  # fmt: skip

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
        self.close: Close | None = None
        self.started = time.monotonic()
        self.queued = self.begun = self.answered = 0.0

    def declare_length(self, size: int) -> None:
        """Tell the app the length of a body that has come without one, and was received whole.

        Apps go by CONTENT_LENGTH (PEP 3333): Django takes a body without one for empty. Chunks are
        gone by now (RFC 9112 section 7.1.3 has a decoder do the same); where another coding is left
        on the body, its length in that coding would say nothing.
        """
        codings = self.fields.get("HTTP_TRANSFER_ENCODING", "").lower().split(",")
        if {coding.strip(" \t") for coding in codings} <= _ONLY_FRAMING:
            self.fields.pop("HTTP_TRANSFER_ENCODING", None)
            self.fields.setdefault("CONTENT_LENGTH", str(size))
