"""Request ids for an ASGI app: in the scope, in the response and in a JSON access log."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextvars import ContextVar

from wsgifast.bodies.access_log import REQUEST_ID, TRACE_ID
from wsgifast.bodies.request_ids import request_id_from, trace_id_from

from .json_log import add_fields
from .messages import ASGIApp, Message, RawHeaders, Receive, Scope, Send

_HEADER = b"x-request-id"
# The fields of the current request for a JSON access log.
_logged: ContextVar[Mapping[str, str]] = ContextVar("asgifast.request_ids")


class RequestIds:
    """Wraps an ASGI app. Gives each request an id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        add_fields(_logged)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if REQUEST_ID in scope:  # an outer ASGIFast has set the id
            return await self._app(scope, receive, send)
        headers: RawHeaders = scope["headers"]
        request_id = request_id_from(_value(headers, _HEADER))
        trace_id = trace_id_from(_value(headers, b"traceparent"))
        header = (_HEADER, request_id.encode("ascii"))
        inner = {**scope, REQUEST_ID: request_id}
        inner["headers"] = [*(pair for pair in headers if pair[0] != _HEADER), header]
        logged = {REQUEST_ID: request_id}
        if trace_id is not None:
            inner[TRACE_ID] = logged["trace_id"] = trace_id

        def send_with_id(message: Message) -> Awaitable[None]:
            """Send a message. An X-Request-ID of the app is not replaced."""
            if message["type"] == "http.response.start":
                sent = [*message.get("headers", ())]
                if all(name.lower() != _HEADER for name, _ in sent):
                    sent.append(header)
                message = {**message, "headers": sent}
            return send(message)

        token = _logged.set(logged)
        try:
            # Returned because servers report apps that return another value than None.
            return await self._app(inner, receive, send_with_id)
        finally:
            _logged.reset(token)


def _value(headers: RawHeaders, name: bytes) -> str | None:
    """Return the value of a header. Repeated headers are joined, like WSGI servers do."""
    found = [value for key, value in headers if key == name]
    return b",".join(found).decode("latin-1") if found else None
