"""Request bodies that are compressed: decoded as the app receives them."""

from __future__ import annotations

from wsgifast.compression.decoding import RefusedBody, RequestDecoder, request_decoder

from .loops import in_thread
from .messages import ASGIApp, Message, Receive, Scope, Send, response_body, response_start

# From this size on a message is decoded in a thread.
_THREAD_BYTES = 16 * 1024
_OF_THE_CODED = (b"content-encoding", b"content-length", b"transfer-encoding")


async def call_decoding(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, max_bytes: int
) -> None:
    """Call an app with the decoded body of a request, or refuse the request.

    :param max_bytes: of the decoded body.
    """
    codings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    try:
        decoder = request_decoder(b",".join(codings).decode("latin-1"), max_bytes)
    except RefusedBody as refused:
        await _refuse(refused, send)
        return
    if decoder is None:
        await app(scope, receive, send)
        return
    kept = [header for header in scope["headers"] if header[0] not in _OF_THE_CODED]
    body = _DecodedBody(decoder, receive, send)
    try:
        await app({**scope, "headers": kept}, body.receive, body.send)
    except Exception:
        if body.refused is None or body.has_started:
            raise
    if body.refused is not None and not body.has_started:
        await _refuse(body.refused, send)


def has_coded_body(scope: Scope) -> bool:
    return any(name == b"content-encoding" for name, _ in scope["headers"])


class _DecodedBody:
    """The receive() and send() of an app whose request is decoded.

    A body that is refused looks to the app like a client that has left, and what it sends then is
    dropped: the client gets the refusal in place of it.
    """

    def __init__(self, decoder: RequestDecoder, receive: Receive, send: Send) -> None:
        self.refused: RefusedBody | None = None
        self.has_started = False
        self._decoder = decoder
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        if self.refused is not None:
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        data = message.get("body", b"")
        try:
            if len(data) < _THREAD_BYTES:
                body = self._decoded(data)
            else:
                body = await in_thread(self._decoded, data)
            if not message.get("more_body"):
                self._decoder.end()
        except RefusedBody as refused:
            self.refused = refused
            return {"type": "http.disconnect"}
        return {**message, "body": body}

    async def send(self, message: Message) -> None:
        if self.refused is not None and not self.has_started:
            return
        self.has_started = True
        await self._send(message)

    def _decoded(self, data: bytes) -> bytes:
        return b"".join(self._decoder.decode(data))


async def _refuse(refused: RefusedBody, send: Send) -> None:
    headers, body = refused.answer()
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    await send(response_start(int(refused.status[:3]), raw))
    await send(response_body(body))
