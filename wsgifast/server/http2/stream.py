"""One HTTP/2 stream: a request, the run of the app, and the response.

Theory of operation
-------------------
    receiving --complete--> ready --a thread runs it--> running --app returns--> sending --> over

While a stream is *receiving*, the connection's owner owns it. A *ready* stream waits in the pool.
The thread that runs the app owns the stream until the app returns. Then the output queue sends the
remaining bytes. The thread that sends the last byte ends the stream. All changes of the state
happen with the connection's lock. If the client resets a stream before its app runs, the stream is
over at once. The thread that was to run the app then does nothing.
"""

from __future__ import annotations

import contextlib
import io
import math
import threading
import time
from collections import deque
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Final

from ...errors import ClientGone, RequestError
from ...files.temporary import Spool
from ...http.stream_headers import NO_PRIORITY
from ..channel import Channel, ErrorPage
from ..endpoint import RECEIVING, RUNNING, SENDING, Endpoint
from ..receiving import Exchange
from ..streamed_body import RawBody
from .response import HTTP2Response, StreamOutput, encoded_headers

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from .multiplexer import Multiplexer

# States that only a stream has. The other states are in endpoint.py.
READY: Final = "ready"
OVER: Final = "over"

# The maximum number of bytes of one receive while bodies are received.
MAX_RECEIVED_BYTES = 64 * 1024

# Smaller parts of a body are joined, because each part has an overhead of some hundred bytes.
_JOINED_BYTES = 4 * 1024
_CONTINUE = [(b":status", b"100")]


class Stream(Channel):
    """A request and its response.

    :param number: the number of the stream.
    :param is_head: whether the method is HEAD. It is known even if the request is refused.
    :ivar deadline: the monotonic time after which the client is too slow.
    :ivar is_blocked: whether there is output, but a flow-control window is used up.
    :ivar priority: the priority of the response.
    :ivar last_turn: the number of the connection's turn in which the stream last sent.
    :ivar request_is_complete: whether the client has sent END_STREAM.
    """

    __slots__ = (
        "_is_head_request", "_mux", "_received_before", "_spool", "deadline", "exchange",
        "is_blocked", "last_turn", "number", "output", "priority", "request_is_complete", "state",
    )  # fmt: skip

    response_class = HTTP2Response
    output: StreamOutput

    def __init__(self, mux: Multiplexer, number: int, *, is_head: bool) -> None:
        self._mux = mux
        self._is_head_request = is_head
        self.number = number
        self.exchange: Exchange | None = None
        self.output = StreamOutput(mux, self, number)
        self.state = RECEIVING
        self.deadline = math.inf
        self.is_blocked = False
        self.priority = NO_PRIORITY
        self.last_turn = 0
        self.request_is_complete = False
        self._spool: Spool | None = None  # the buffer of the body while it is received
        self._received_before = mux.uploads.received

    def connection(self) -> Endpoint:
        return self._mux.connection

    # The connection's owner calls these methods.

    def begin(self, exchange: Exchange, body: Spool | StreamedUpload) -> bool:
        """Start to receive a body. Return whether the app can run before the body is complete."""
        if isinstance(body, StreamedUpload):
            exchange.streamed = body
            exchange.body = io.BufferedReader(body)
        else:
            self._spool = body
            self._await_more(exchange)
        if exchange.expects_continue:
            try:
                self.output.send_interim(_CONTINUE)
            except ClientGone:
                pass  # the connection's next event reports the error again
        return self._spool is None

    def may_need_disk(self) -> bool:
        """Return whether the next part of the body may be written to a temporary file."""
        return self._spool is not None and self._spool.may_need_disk(MAX_RECEIVED_BYTES)

    def receive(self, data: bytes, size: int) -> None:
        """Receive a part of the body.

        :param size: its size in the flow-control windows, which includes padding.
        :raises RequestError: if the body is refused.
        :raises OSError: if the temporary file cannot be written.
        """
        upload = self._upload
        if upload is not None:
            upload.feed(data, size)
            return
        self._mux.acknowledge(size, self.number)
        exchange = self.exchange
        if self.state is RECEIVING and exchange is not None and self._spool is not None:
            self._spool.write(data)
            self._await_more(exchange)

    def end_request(self) -> bool:
        """Note that the request is complete. Return whether the app can run now."""
        self.request_is_complete = True
        upload, exchange = self._upload, self.exchange
        if upload is not None:
            upload.end()
        if self._spool is None or exchange is None or self.state is not RECEIVING:
            return False
        exchange.declare_length(self._spool.size)
        exchange.body = self._spool.open()
        self._spool = None
        return True

    def make_ready(self) -> None:
        self.state = READY
        self._mux.unbegun.add(self)
        self.deadline = math.inf
        if self.exchange is not None:
            self.exchange.queued = time.monotonic()

    @property
    def _upload(self) -> StreamedUpload | None:
        exchange = self.exchange  # a copy, because the thread that ends the stream sets it to None
        upload: StreamedUpload | None = None if exchange is None else exchange.streamed
        return upload

    def _await_more(self, exchange: Exchange) -> None:
        uploads = self._mux.uploads
        self.deadline = uploads.deadline(exchange.started, self._received_before)
        self._mux.connection.cap_deadline(self.deadline)

    def answer_probe(self) -> bool:
        """Respond to a health check. Return False if the request is for the app."""
        self.state = RUNNING
        try:
            return self._mux.application.probes.answer(self)
        finally:
            if self.state is RUNNING:  # the app gets the request, or the check has failed
                self.state = RECEIVING

    # The app's thread calls these methods.

    def begin_app(self) -> bool:
        with self._mux.lock:
            if self.state is not READY:
                return False
            self.state = RUNNING
            self._mux.unbegun.discard(self)
            return True

    def _is_head(self) -> bool:
        return self._is_head_request

    def has_left(self) -> bool:
        """Return False: if the client resets the stream, the stream is over at once."""
        return False

    def end_early(self, error: Exception, page: ErrorPage | None) -> None:
        if page is not None:
            with contextlib.suppress(ClientGone):
                self._write_error(page)
        self.output.fail(error)
        self._mux.reset(self)

    def _write_error(self, page: ErrorPage) -> bool:
        _, _, headers, body = page
        sender = self.output.stream_sender
        if sender.has_headers:
            return False  # the caller resets the stream
        sender.headers = [(b":status", b"%d" % page.status), *encoded_headers(headers)]
        sender.ends_after = len(body)
        self.output.write(body)
        self.output.end(len(body))
        return True

    # The end of the stream.

    def refuse(self, error: Exception) -> None:
        """Respond to an error in the request. The connection's owner calls this.

        If the app is running, its next read of the body raises the error.
        """
        if self.state is RECEIVING:
            self._mux.application.refuse(self, self.exchange, error)
            self.finish_when_sent()
        elif (upload := self._upload) is not None:
            upload.fail(error)

    def on_overdue(self) -> None:
        """Check a deadline that has passed. The connection's owner calls this."""
        exchange = self.exchange
        if self.state is RECEIVING and exchange is not None:
            self._await_more(exchange)
            if self.deadline > time.monotonic():
                return  # the client has sent other bodies in this time, so the deadline is later
        waited_for = "body" if self.state is RECEIVING else "send"
        self._mux.shared.counters.timeouts[waited_for] += 1
        if self.state is RECEIVING:
            self.refuse(RequestError(408, "The request did not arrive in time"))
        else:
            self.fail(TimeoutError("the client accepted no bytes in time"))

    def fail(self, error: Exception) -> None:
        """End the stream because of an error, or because the client has reset it."""
        with self._mux.lock:
            state = self.state
            self.deadline = math.inf
            self.output.fail(error)
            if (upload := self._upload) is not None:
                upload.fail(ClientGone(str(error)))
            if state is READY or state is RECEIVING:
                self.state = SENDING  # so that the app is not called
        if state is not RUNNING:
            self.finish()

    def close(self) -> None:
        """End the stream after an internal error."""
        self.finish()

    def finish(self) -> None:
        """End the stream after its response was sent, or after an error."""
        with self._mux.lock:
            if self.state is OVER:
                return
            self.state = OVER
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._mux.application.end_exchange(self.output, exchange, time.monotonic())
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self._mux.connection.remove_stream(self)

    # The output queue calls these methods with the lock.

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        self.deadline = deadline
        self._mux.enqueue(self)

    def resume_sending(self) -> None:
        self._mux.enqueue(self, is_over=True)


class StreamedUpload(RawBody):
    """The raw stream of `wsgi.input` for an HTTP/2 stream.

    The connection's owner adds received parts, and the app's thread reads them. It contains at most
    as many bytes as the stream's flow-control window. When the app has read some bytes, the window
    is opened by the same number.

    :param number: the number of the stream.
    """

    def __init__(self, mux: Multiplexer, number: int) -> None:
        self._mux = mux
        self._number = number
        self._arrived = threading.Condition(mux.lock)
        self._parts: deque[tuple[memoryview, int]] = deque()  # parts, each with its padding
        self._is_complete = False
        self._received_before = mux.uploads.received
        self._waited_s = 0.0

    # The connection's owner calls these methods.

    def feed(self, data: bytes, size: int) -> None:
        """Add a received part.

        :param size: its size in the flow-control windows, which includes padding.
        """
        with self._arrived:
            # The connection's window is opened at once, because other streams need it.
            self._mux.open_window(size, None)
            if self.closed or not data:
                self._mux.open_window(size, self._number)
                return
            padding = size - len(data)
            if self._parts and len(self._parts[-1][0]) + len(data) <= _JOINED_BYTES:
                last, more = self._parts.pop()
                data, padding = b"".join((last, data)), padding + more
            self._parts.append((memoryview(data), padding))
            self._arrived.notify_all()

    def end(self) -> None:
        with self._arrived:
            self._is_complete = True
            self._arrived.notify_all()

    def fail(self, error: Exception) -> None:
        with self._arrived:
            if not self._is_complete:
                self.failure = self.failure or error
            self._arrived.notify_all()

    # The app's thread calls these methods.

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read bytes of the body into a buffer, and wait for them if necessary.

        :raises RequestError: if the client is too slow.
        :raises ClientGone: if the stream ends before the body.
        """
        view = memoryview(buffer).cast("B")
        with self._arrived:
            while view and not self._parts and not self._is_complete:
                self._wait()
            if not self._parts:
                return 0
            part, padding = self._parts.popleft()
            size = min(len(view), len(part))
            view[:size] = part[:size]
            if size < len(part):
                self._parts.appendleft((part[size:], padding))
                padding = 0
            self._mux.open_window(size + padding, self._number)
            return size

    def _wait(self) -> None:
        if self.failure is not None:
            raise self.failure
        began = time.monotonic()
        deadline = self._deadline(began)
        while not self._arrived.wait(min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX)):
            passed, deadline = deadline, self._deadline(began)
            if deadline <= passed:
                self.failure = RequestError(408, "The request body did not arrive in time")
                raise self.failure
        self._waited_s += time.monotonic() - began

    def _deadline(self, began: float) -> float:
        return self._mux.uploads.deadline(began, self._received_before, self._waited_s)
