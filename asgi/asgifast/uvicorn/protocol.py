"""What asgifast's protocols add to each of uvicorn's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from wsgifast.checks import needs
from wsgifast.errors import WSGIFastError

from ..coalescing import COALESCED_BYTES
from ..exporting import figures, instrumented
from ..messages import (
    COALESCING,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    copied_head,
    response_body,
    response_start,
    whole_body,
)
from ..pathsend import Offer
from ..protocols.file_body import UNKNOWN_PATHSEND, logger
from ..protocols.read_buffer import read_plainly
from ..protocols.response import Response
from ..protocols.transport import CoalescingTransport
from ..servers import UVICORN
from ..whole_responses import SendWhole, add_sender, whole_sender_for
from .replaced_parts import (
    FramesBehindRequest,
    IdleTimerLoop,
    Pipeline,
    forget_request,
    make_small,
    shared,
)
from .uploads import Upload

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object


class UnsupportedUvicorn(WSGIFastError, ImportError):
    """This uvicorn's internals differ from those that asgifast.uvicorn uses."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"asgifast.uvicorn does not fit uvicorn {uvicorn.__version__} ({missing}); it is "
            f"tested with {UVICORN.oldest} to {UVICORN.newest}: install one of these, or use "
            "uvicorn's own --http"
        )


# Made of uvicorn's RequestResponseCycle and its transport.
MakeResponse = Callable[[Any, CoalescingTransport], Response]


class _Anything:
    """A constructor's argument, whatever it is."""

    def __getattr__(self, name: str) -> None:
        return None


def check(module: Any, protocol: str, attributes: set[str], *methods: str) -> None:
    """Check that uvicorn's internals have what is used of them: a mistake would send wrong bytes.

    :param attributes: used of the module's RequestResponseCycle, beside those of all.
    :param methods: used of its protocol.
    :raises UnsupportedUvicorn: if one is missing.
    """
    cycle = getattr(module, "RequestResponseCycle", None)
    base = getattr(module, protocol, None)
    if cycle is None or base is None:
        raise UnsupportedUvicorn(f"{module.__name__} has no RequestResponseCycle or {protocol}")
    try:
        made = cycle(**dict.fromkeys(inspect.signature(cycle).parameters, _Anything()))
        flow = module.FlowControl(_Anything())
    except Exception as error:
        raise UnsupportedUvicorn(f"RequestResponseCycle or FlowControl: {error}") from error
    for found, used in (
        (made, _OF_THE_CYCLE | attributes),
        (flow, _OF_THE_FLOW),
        (base, _OF_THE_PROTOCOL.union(methods)),
    ):
        if missing := sorted(used - set(dir(found))):
            name = getattr(found, "__name__", type(found).__name__)
            raise UnsupportedUvicorn(f"{name} has no {', '.join(missing)}")


_OF_THE_CYCLE = {
    "body", "disconnected", "flow", "message_event", "more_body", "on_response", "receive",
    "response_complete", "response_started", "scope", "send", "transport",
}  # fmt: skip
_OF_THE_FLOW = {
    "_is_writable_event", "drain", "pause_reading", "read_paused", "resume_reading", "write_paused",
}  # fmt: skip
_OF_THE_PROTOCOL = {
    "connection_lost", "connection_made", "eof_received", "resume_writing", "shutdown",
}  # fmt: skip


class SimpleResponse:
    """One response, as long as it needs nothing: the attributes are set by FileSending.

    Most are a head with a Content-Length and one message of bytes. The head is held, as servers
    hold it (ASGI, "Response Start"), and both leave in one write. Any other message makes a
    Response, which handles the head, it and all that follow.

    :ivar send_whole: None where uvicorn's cycle has none.
    :ivar start: the head, while it is held.
    """

    __slots__ = ("cycle", "make_response", "response", "send_whole", "start")

    cycle: Any
    make_response: MakeResponse
    response: Response | None
    send_whole: SendWhole | None
    start: Message | None

    def send(self, message: Message) -> Awaitable[None]:
        """The send() that the app is given."""
        return self._send(message) if self.response is None else self.response.send(message)

    def send_both(self, start: Message, message: Message, write: object = None) -> bool:
        """See :func:`~asgifast.whole_responses.send_whole`. `write` has no effect."""
        if self.send_whole is None or self.start is not None or self.response is not None:
            return False
        cycle = self.cycle
        return self.send_whole(cycle, start, message, cycle.transport.write_now)

    async def _send(self, message: Message) -> None:
        response = self.response
        if response is not None:  # another message's, since this one's call
            await response.send(message)
            return
        cycle = self.cycle
        start = self.start
        if start is None:
            if message["type"] == "http.response.start" and not cycle.response_started:
                message, _, is_declared = copied_head(message)
                if is_declared:
                    self.start = message
                    cycle.waiting_for_100_continue = False
                    return
            elif (
                cycle.response_started
                and not cycle.flow.write_paused
                and whole_body(message) == b""
            ):
                await cycle.send(message)  # the end of what was sent whole
                return
        else:
            self.start = None
            send_whole = self.send_whole
            if send_whole is not None:
                if send_whole(cycle, start, message, cycle.transport.write_now):
                    return
            elif (
                (body := whole_body(message)) is not None
                and len(body) < COALESCED_BYTES
                and not cycle.flow.write_paused
            ):
                await self._send_both(start, message)
                return
        response = self.response = self.make_response(cycle, cycle.transport)
        response.start = start
        if not cycle.flow.write_paused and message["type"] == "http.response.body":
            await response.send_start()  # which has not to wait
        await response.send(message)

    async def _send_both(self, start: Message, message: Message) -> None:
        """Leave a head and its body to uvicorn, and write both at once nevertheless."""
        cycle = self.cycle
        transport = cycle.transport
        try:
            for each in (start, message):
                transport.flush_follows = True
                await cycle.send(each)
        finally:
            transport.flush_follows = False
            transport.flush()

    async def send_held(self) -> None:
        """The app has returned: send what it sent, as far as that is held."""
        if self.start is not None:
            start, self.start = self.start, None
            await self.cycle.send(start)
        if self.response is not None:
            await self.response.send_start()
            self.response.write_held()


# ASGIFast, with this send(), has both at once.
add_sender(SimpleResponse, SimpleResponse.send, SimpleResponse.send_both)


class _Served:
    """What all connections of a server share: the app, and which extensions it is offered."""

    __slots__ = ("app", "call", "offer")

    def __init__(self, app: Any, pathsend: bool | None) -> None:
        self.app = app
        self.call: ASGIApp = instrumented(app)
        self.offer = Offer(app, pathsend, {COALESCING: {}})


# By the app's number, as not every app is hashable, and the protocol's option.
_served: dict[tuple[int, bool | None], _Served] = {}
_MAX_SERVED = 64


def _served_by(app: Any, pathsend: bool | None) -> _Served:
    served = _served.get((id(app), pathsend))
    if served is None or served.app is not app:
        if len(_served) >= _MAX_SERVED:
            _served.clear()
        served = _served[id(app), pathsend] = _Served(app, pathsend)
    return served


async def _bad_request(scope: Scope, receive: Receive, send: Send) -> None:
    text = b"Invalid HTTP request received."
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(text)),
    ]
    await send(response_start(400, headers))
    await send(response_body(text))


class FileSending(_Base):
    """Mixed into one of uvicorn's protocols.

    :cvar pathsend: as ASGIFast's option, for a subclass to set.
    :ivar app: what uvicorn calls; it calls the app with a Response's send() and an Upload's
        receive().
    :ivar transport: a CoalescingTransport; the real one once the connection is a WebSocket's.
    :ivar loop: an IdleTimerLoop.
    """

    # With two attributes more CPython gives every one of uvicorn's objects a dictionary of its own.
    __slots__ = ("_answered", "_app")

    pathsend: ClassVar[bool | None] = None

    _response_class: MakeResponse
    # One request at a time.
    _is_http1 = True
    app: Any
    cycle: Any
    flow: Any
    loop: Any
    pipeline: Any
    server: Any
    transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app = _served_by(self.app, self.pathsend)
        self.app = self._answer
        # Of the request that is answered, over HTTP/1.1; uvicorn's `cycle` was read last.
        self._answered: Any = None
        self.loop = IdleTimerLoop(self.loop)
        if hasattr(self, "pipeline"):
            self.pipeline = Pipeline()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        coalescing: Any = CoalescingTransport(transport, self.loop.real)
        if hasattr(self, "cycle"):
            coalescing.is_receiving = self._is_receiving
        figures.accepted += 1
        figures.open[self] = coalescing
        super().connection_made(coalescing)
        make_small(self.flow._is_writable_event)
        self.server = shared(self.server)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Any:
        cycle = send.__self__  # type: ignore[attr-defined]
        served = self._app
        offer = served.offer
        if offer.is_outdated():
            await offer.decide()
        extensions: Mapping[str, Any] = offer.extensions
        if offer.withheld:
            extensions = offer.offered_at(scope["path"])
        offered = scope.get("extensions")
        scope["extensions"] = {**offered, **extensions} if offered else {**extensions}
        # Attribute by attribute: a constructor would be one more call for every request.
        simple = SimpleResponse()
        simple.cycle = cycle
        simple.make_response = self._response_class
        simple.send_whole = whole_sender_for(send)
        simple.start = simple.response = None
        upload = None
        if self._is_http1:
            self._answered = cycle
        else:  # other streams write to the same transport
            simple.response = self._response_class(cycle, cycle.transport)
        if cycle.more_body:
            upload = self._upload(cycle)
            receive = upload.receive
        try:
            # Reported by uvicorn, if it is not None.
            result = await served.call(scope, receive, simple.send)  # type: ignore[func-returns-value]
            if simple.start is not None or simple.response is not None:
                await simple.send_held()
        except Exception:
            if simple.response is not None:
                await simple.response.failed()
            raise
        finally:
            if upload is not None:
                upload.end()
        if not cycle.response_started and not cycle.disconnected:
            # uvicorn then logs that no response was started.
            logger.error("The app has sent nothing. If it sent a file, %s", UNKNOWN_PATHSEND)
        response = simple.response
        if response is not None and response.handed_over is not None:
            path = scope["path"]
            if self._is_http1:
                forget_request(self, cycle, scope)
            del scope, receive, send
            try:
                await response.sent()
            except asyncio.CancelledError:
                # By uvicorn's shutdown. The app has returned: it would log where this waits.
                logger.warning("The file for %r was cut off, since the server shuts down", path)
                cycle.disconnected = True
                cycle.transport.close()
        return result

    def _upload(self, cycle: Any) -> Upload:
        return Upload(cycle, cycle.flow.resume_reading)

    def _is_receiving(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._detach()
        super().connection_lost(exc)
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            # With pipelining uvicorn does this for the last request alone.
            cycle.disconnected = True
            cycle.message_event.set()

    def _detach(self) -> None:
        """The connection is lost, or another protocol's: drop what refers to this one."""
        figures.open.pop(self, None)
        self.transport.lost()
        self.loop.stop()
        self.app = None

    def eof_received(self) -> Any:  # uvicorn's have it return None
        """The client sends no more, but may still read; a reset ends a file in any case.

        uvicorn closes at once, which loses what has not been written.
        """
        if not self.transport.sends_file:
            return super().eof_received()
        self.shutdown()  # uvicorn's: close behind this response
        return True

    def send_400_response(self, msg: str) -> None:
        """What comes is no request, or the body of one is malformed.

        uvicorn sends the 400 at once, into the middle of a response, where there is one; and an app
        that goes on to send may get an error of the closed transport.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)  # type: ignore[misc]
        elif cycle.more_body and getattr(self, "pipeline", None):
            self.flow.pause_reading()
            cycle.keep_alive = False
            self.pipeline[0] = cycle, _bad_request  # it waits until others are answered
        elif cycle.more_body:
            if cycle.response_started:
                self.transport.close()  # too late for a 400: the response breaks off
            else:
                super().send_400_response(msg)  # type: ignore[misc]
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            self.flow.pause_reading()
            self.shutdown()  # uvicorn's: close behind this response

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self.transport.close()  # soon, whatever the client is still sending

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.drained()

    def handle_websocket_upgrade(self, *args: Any, rest: bytes = b"") -> None:
        """uvicorn gives the connection to its WebSocket protocol, which needs none of this.

        :param rest: what was received behind the request: frames, which uvicorn drops.
        """
        self.transport.flush()
        self._detach()
        self.transport = self.transport.real
        read_plainly(self.transport)
        if rest:
            self.transport = FramesBehindRequest(self.transport, rest)
        super().handle_websocket_upgrade(*args)  # type: ignore[misc]
