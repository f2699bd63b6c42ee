"""The receive() and send() that an app gets for one request. send() keeps the messages in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from wsgifast.bodies.chunks import charset_of, to_bytes

from .coalescing import SMALL_MESSAGE_BYTES, Coalescer
from .content_coding import ContentCoding
from .entity_tags import tagged
from .file_blocks import SharedReceive
from .files import FileSender
from .instrumented import note_sent_as
from .loops import running_loop
from .messages import (
    COALESCING,
    PATHSEND,
    STATUSES_WITHOUT_BODY,
    ZEROCOPYSEND,
    ASGIApp,
    Message,
    RawHeaders,
    Receive,
    Scope,
    Send,
    SendOrder,
    body_is_dropped,
    copied_start,
    declared_length,
    text_headers,
    whole_body,
    without_framing,
)
from .server_timing import TIMES
from .wire import ServerWire, Wire

if TYPE_CHECKING:
    from .protocols.queue_wire import QueueWire


class Repairs(NamedTuple):
    """The options of an ASGIFast middleware that decide how messages are changed.

    :ivar app: the wrapped app. Warnings about its bodies contain its name.
    """

    app: ASGIApp
    coalesce: bool
    ranges: bool
    conditional: bool
    etag: bool


class Exchange:
    """The receive() and send() of one request.

    ASGIFast makes an Exchange for each request. asgifast's uvicorn protocols make one too, without
    repairs. If an ASGIFast is called with the send() of an existing Exchange, it adds its repairs
    to that Exchange.

    Most responses consist of a start message and one body message of bytes, and need no change.
    Both messages are sent together. For any other response, each message is examined, except for
    the small parts of a stream.

    The start message is delayed until the next message, because a file may need another status or
    other headers. Servers delay it too (ASGI, "Response Start"). Without a Content-Length, a stream
    may follow. The start message of a stream is delayed until the end of the event loop iteration
    at most, and without repairs it is not delayed.

    `order` serializes the messages that may have to wait for the server. While one of them waits,
    body messages are not delayed in order to join them.

    The attributes are set by :func:`exchange_for` and asgifast's protocols. A constructor would
    cost one more call for every request.

    :ivar wire: sends the messages.
    :ivar server_receive: the server's receive().
    :ivar is_examined: whether each message is examined. :meth:`_examine` then sets more attributes.
    :ivar start: the delayed start message, if there is one.
    """

    __slots__ = (
        "_body_is_dropped", "_coalescer", "_has_text", "_headers", "_may_delay", "_queue",
        "_try_delay", "coding", "is_examined", "order", "repairs", "scope", "server_receive",
        "shared_receive", "start", "wire",
    )  # fmt: skip

    wire: Wire
    scope: Scope
    server_receive: Receive
    is_examined: bool
    repairs: Repairs | None
    coding: ContentCoding | None
    # None until the app calls receive() or sends a file.
    shared_receive: SharedReceive | None
    start: Message | None
    # None until a message may have to wait for the server.
    order: SendOrder | None
    _headers: list[tuple[bytes, bytes]]
    # None until the app sends a body message.
    _coalescer: Coalescer | None
    _may_delay: bool
    # The server's wire, if it is a QueueWire. Files are sent on it directly, without the
    # compressor.
    _queue: QueueWire | None
    # Whether body bytes are dropped, because the request is HEAD or the status has no body.
    _body_is_dropped: bool
    _has_text: bool
    # The coalescer's try_delay(), for parts of a stream. None while every message is examined.
    _try_delay: Callable[[bytes], bool | None] | None

    def add_repairs(
        self, scope: Scope, receive: Receive, repairs: Repairs, coding: ContentCoding | None
    ) -> bool:
        """Begin to repair messages. Return False after the first message, or if repairs are set."""
        if self.repairs is not None or self.start is not None or self.order is not None:
            return False
        self.scope = scope
        self.server_receive = receive
        self.repairs = repairs
        self.coding = coding
        return True

    def receive(self) -> Awaitable[Message]:
        """Receive a message. The app gets this method as its receive()."""
        return self._get_shared_receive().receive()

    async def send(self, message: Message) -> None:
        """Send a message. The app gets this method as its send()."""
        start = self.start
        if start is not None:
            if not self.is_examined and message["type"] == "http.response.body":
                repairs, coding = self.repairs, self.coding
                if repairs is not None and repairs.etag:
                    scope = self.scope if coding is None else coding.app_scope
                    start, message = tagged(scope, start, message)
                    self.start = start
                if coding is not None:
                    uncompressed = coding.uncompressed_start(start, message)
                    if uncompressed is None:
                        await self._in_order(self._send_compressed, message)
                        return
                    start = uncompressed
                self.start = None  # also if send_at_once() raises
                if self.wire.send_at_once(start, message):
                    return
                self.start = start
        elif not self.is_examined:
            if message["type"] == "http.response.start":
                start, headers, has_length = copied_start(message)
                if self.repairs is not None:
                    self._delay_start(start, headers, has_length)
                    return
                cycle = self.wire.cycle
                if has_length and not cycle.response_started:
                    cycle.waiting_for_100_continue = False
                    self.start = start
                    return
                message = start
        elif (
            (try_delay := self._try_delay) is not None
            and "more_body" in message
            and message["more_body"]
            and "body" in message
            and type(body := message["body"]) is bytes
            and message["type"] == "http.response.body"
        ):
            is_delayed = try_delay(body)
            if is_delayed:
                return
            if is_delayed is not None:
                await self._in_order(self.wire.send, message)
                return
        await self._in_order(self._send_next, message)

    async def _in_order(self, send: Callable[..., Awaitable[None]], *message: Message) -> None:
        """Call and await `send`, after the earlier messages."""
        order = self.order or self._begin_order()
        if order.is_acquired:
            await order.wait()
        order.is_acquired = True
        try:
            await send(*message)
        finally:
            order.release()

    def _begin_order(self) -> SendOrder:
        self.order = order = SendOrder()
        return order

    async def _send_next(self, message: Message) -> None:
        """Send a message. A delayed start message is sent before it."""
        if not self.is_examined:
            body = whole_body(message)
            if self.start is None:
                if body == b"":  # such as the empty last message of a complete response
                    await self.wire.send(message)
                    return
            elif body is not None and not body_is_dropped(self.scope["method"], self.start):
                await self._forward_start(message)
                return
            self._examine()
        await self._send_examined(message)

    async def _forward_start(
        self, whole: Message | None = None, *, planned: Message | None = None
    ) -> None:
        """Send the delayed start message. It stays delayed if the task is cancelled first.

        :param whole: the only body message of the response, to send with the start message.
        :param planned: a start message to send in place of the delayed one.
        """
        start, self.start = self.start, None
        if start is None:
            return
        try:
            if whole is None:
                await self.wire.send(start if planned is None else planned)
            else:
                await self.wire.send_both(start, whole)
        except Exception:
            raise
        except BaseException:
            if self.wire.has_started() is False:
                self.start = start
            raise

    async def _send_compressed(self, message: Message) -> None:
        """Send the start message and a body message, compressed if they are a whole response."""
        start = self.start
        if start is None or self.is_examined or whole_body(message) is None:
            await self._send_next(message)
            return
        assert self.coding is not None
        self.start = None  # nothing else may send it while a thread compresses
        began = perf_counter() if TIMES in self.scope else 0.0
        start, message = await self.coding.compress_whole(start, message)
        if began and any(name.lower() == b"content-encoding" for name, _ in start["headers"]):
            self.scope[TIMES].compressed(began)
        if not self.wire.send_at_once(start, message):
            if body_is_dropped(self.scope["method"], start):
                message = {**message, "body": b""}
            self.start = start
            await self._forward_start(message)

    def _examine(self) -> None:
        """Begin to examine each message."""
        self.is_examined = True
        repairs = self.repairs
        # asgifast's protocols delay small messages themselves, but only after compression. To
        # compress messages together, this class must delay them before compression.
        may_delay = repairs is None or (repairs.coalesce and COALESCING not in self.scope)
        wire: Any = self.wire
        self._queue = wire if wire.is_queue else None
        if self.coding is not None:
            may_delay = repairs is not None and repairs.coalesce
            self.wire = ServerWire(self.coding.stream(wire.send))
        elif wire.is_queue:
            may_delay = True
        self._headers = self.start["headers"] if self.start is not None else []
        self._body_is_dropped = body_is_dropped(self.scope["method"], self.start)
        self._has_text = False
        self._try_delay = None
        self._coalescer = None
        self._may_delay = may_delay and not self._body_is_dropped

    def _begin_to_coalesce(self) -> Coalescer:
        order = self.order or self._begin_order()
        self._coalescer = coalescer = Coalescer(self.wire, order, may_delay=self._may_delay)
        coalescer.set_length(declared_length(self._headers))
        return coalescer

    def _converted(self, body: object, repairs: Repairs) -> bytes:
        data = to_bytes(
            body,
            lambda: charset_of(text_headers(self._headers)),
            repairs.app,
            after_text=self._has_text,
        )
        if data and isinstance(body, str):
            self._has_text = True
        return data

    async def _send_examined(self, message: Message) -> None:
        message_type = message["type"]
        coalescer = self._coalescer
        is_body = message_type == "http.response.body"
        if coalescer is not None:
            await (coalescer.wait_for_task() if is_body else coalescer.flush())
        if is_body:
            await self._send_body(message)
        elif message_type == "http.response.start":
            await self._forward_start()  # for a second start message, the server raises an error
            start, headers, has_length = copied_start(message)
            if self.repairs is not None:
                self._delay_start(start, headers, has_length)
            else:
                await self.wire.send(start)
            self._headers = start["headers"]
            self._body_is_dropped = body_is_dropped(self.scope["method"], start)
            if coalescer is not None:
                coalescer.set_length(declared_length(self._headers))
        elif message_type in (PATHSEND, ZEROCOPYSEND):
            await self._send_file(message)
        else:
            await self._forward_start()
            await self.wire.send(message)

    async def _send_body(self, message: Message) -> None:
        coalescer, repairs = self._coalescer or self._begin_to_coalesce(), self.repairs
        body = message.get("body", b"")
        if type(body) is not bytes:
            if repairs is None:
                if not isinstance(body, (bytearray, memoryview)):
                    await self._forward_start()
                    await coalescer.flush()
                    await self.wire.send(message)  # the server refuses it
                    return
                body = bytes(body)
            elif body is None:  # servers treat None like b""
                body = b""
            else:
                note_sent_as(self.scope, "rescued")
                body = self._converted(body, repairs)
            message = {**message, "body": body}
        if body and self._body_is_dropped:
            body = b""  # some servers would send it
            message = {**message, "body": body}
        if self.start is not None:
            await self._forward_start()
        if not message.get("more_body"):
            # If the app sends more messages, the server refuses or ignores them.
            coalescer.may_delay = False
            self._try_delay = None
            await coalescer.end(message, body)
        elif coalescer.may_delay and len(body) <= SMALL_MESSAGE_BYTES:
            if self._try_delay is None:
                self._try_delay = coalescer.try_delay
                note_sent_as(self.scope, "coalesced")
            await coalescer.add(body)
        else:
            if not coalescer.may_delay and not self._body_is_dropped:
                self._try_delay = coalescer.try_delay
            await coalescer.flush()
            coalescer.remaining_bytes -= len(body)
            await self.wire.send(message)

    async def _send_file(self, message: Message) -> None:
        repairs = self.repairs
        is_read = self._queue is None or self.coding is not None
        shared_receive = self._get_shared_receive() if is_read else None
        # Not an attribute: the FileSender refers to this object.
        files = FileSender(
            self.scope, shared_receive, self.wire.send, self.coding,
            queue=self._queue,
            ranges=repairs is not None and repairs.ranges,
            conditional=repairs is not None and repairs.conditional,
        )  # fmt: skip
        await files.send_message(message, self.start, self._headers, self._forward_start)

    def _get_shared_receive(self) -> SharedReceive:
        if self.shared_receive is None:
            self.shared_receive = SharedReceive(self.server_receive)
        return self.shared_receive

    async def finish(self) -> None:
        """Send the delayed messages after the app has returned."""
        # If the order is acquired, no message is delayed, so there is nothing to send.
        if self.order is None or not self.order.is_acquired:
            await self._in_order(self._send_delayed)

    async def handle_error(self, error: BaseException) -> None:
        """End the response of an app that raised an error.

        The delayed start message is discarded. Delayed body messages are sent, unless the app was
        cancelled.
        """
        self.start = None
        if not self.is_examined:
            return
        if isinstance(error, Exception):
            try:
                await self.finish()
            except Exception:  # noqa: BLE001 - the caller raises the app's error
                pass
            return
        if self._coalescer is not None:
            self._coalescer.cancel()

    async def _send_delayed(self) -> None:
        if self.is_examined:
            if self._coalescer is not None:
                await self._coalescer.flush()
            if self.coding is not None:
                await self.coding.end()
        await self._forward_start()

    def _delay_start(self, start: Message, headers: RawHeaders, has_length: bool) -> None:
        """Delay a start message.

        Without a Content-Length, the delay ends with the current iteration of the event loop.
        """
        if "status" in start and start["status"] in STATUSES_WITHOUT_BODY:
            start["headers"] = without_framing(headers)
        self.start = start
        if not has_length:
            running_loop().call_soon(self._on_iteration_end)

    def _on_iteration_end(self) -> None:
        if self.order is not None and self.order.is_acquired:
            return  # _send_next() sends the start message before the message that is being sent
        if self.start is not None and not self.is_examined:
            self._examine()
        start, self.start = self.start, None
        if start is not None:
            (self._coalescer or self._begin_to_coalesce()).send_in_task(start)


def exchange_for(
    scope: Scope, receive: Receive, send: Send, repairs: Repairs, coding: ContentCoding | None
) -> Exchange:
    """Return the Exchange of asgifast's protocol if send() belongs to one, or a new Exchange."""
    exchange = send.__self__ if type(send) is MethodType else None
    if type(exchange) is Exchange and exchange.add_repairs(scope, receive, repairs, coding):
        return exchange
    exchange = Exchange()
    exchange.wire = ServerWire(send)
    exchange.scope = scope
    exchange.server_receive = receive
    exchange.repairs = repairs
    exchange.coding = coding
    exchange.is_examined = False
    exchange.start = exchange.order = exchange.shared_receive = None
    return exchange
