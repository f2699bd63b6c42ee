"""An HTTP/2 client that uses h2. It works on any socket. A test can control its windows."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes

Fields = Iterable[tuple[str, str]]


@dataclass
class Response:
    """The events that have arrived on a stream."""

    headers: dict[str, str] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    frames: int = field(default=0, compare=False)  # the content of DATA
    early: list[dict[str, str]] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None  # the error code

    @property
    def status(self) -> int:
        return int(self.headers[":status"])

    @property
    def body(self) -> bytes:
        return bytes(self.received)


class Client:
    """An HTTP/2 client without a socket. It converts requests to bytes, and bytes to responses.

    :param window: bytes of a stream that the server may send at first.
    :param reads: whether to reopen windows by the number of received bytes.
    """

    def __init__(self, *, window: int | None = None, reads: bool = True) -> None:
        config = h2.config.H2Configuration(
            client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.state = h2.connection.H2Connection(config)
        self.reads = reads
        self.responses: dict[int, Response] = {}
        self.goaways: list[tuple[int, int]] = []  # the last stream and the error code
        self._window = window

    def begin(self) -> None:
        if self._window is not None:
            values = {SettingCodes.INITIAL_WINDOW_SIZE: self._window}
            self.state.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.state.initiate_connection()

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        *,
        headers: Fields = (),
        body: bytes | None = None,
        trailers: Fields | None = None,
        ends: bool = True,
    ) -> int:
        """Make the frames of a request and of its body, which must fit into the window.

        :param body: None for a request without a body.
        :param ends: whether this is the end of the request.
        """
        stream: int = self.state.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a")]
        self.state.send_headers(stream, [*fields, *headers], end_stream=ends and body is None)
        if body is not None:
            most = self.state.max_outbound_frame_size
            for start in range(0, max(len(body), 1), most):
                last = start + most >= len(body)
                part = body[start : start + most]
                self.state.send_data(stream, part, end_stream=ends and last and trailers is None)
        if trailers is not None:
            self.state.send_headers(stream, list(trailers), end_stream=True)
        self.responses[stream] = Response()
        return stream

    def take(self, data: bytes) -> None:
        """Process received bytes."""
        for event in self.state.receive_data(data):
            self._take(event)

    def open(self, size: int, stream: int | None = None) -> None:
        """Open a window."""
        self.state.increment_flow_control_window(size, stream)

    def _take(self, event: Any) -> None:
        response = self.responses.setdefault(getattr(event, "stream_id", None) or 0, Response())
        if isinstance(event, h2.events.ResponseReceived):
            response.headers = _text(event.headers)
        elif isinstance(event, h2.events.InformationalResponseReceived):
            response.early.append(_text(event.headers))
        elif isinstance(event, h2.events.TrailersReceived):
            response.trailers = _text(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            response.received += event.data
            response.frames += 1
            if self.reads:
                self.state.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id or 0
                )
        elif isinstance(event, h2.events.StreamEnded):
            response.ended = True
        elif isinstance(event, h2.events.StreamReset):
            response.reset = int(event.error_code or 0)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))


class Connected(Client):
    """A client on a socket that speaks HTTP/2."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(**options)
        self.sock = sock

    def begin(self) -> None:
        super().begin()
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.state.data_to_send())

    def send(self, path: str, method: str = "GET", body: bytes = b"") -> int:
        """Send a whole request. Return its stream."""
        stream = self.ask(path, method, ends=not body)
        while body:
            room = self.state.local_flow_control_window(stream)
            if not room:
                self.receive()
                continue
            size = min(room, self.state.max_outbound_frame_size)
            self.state.send_data(stream, body[:size], end_stream=size >= len(body))
            body = body[size:]
            self.flush()
        self.flush()
        return stream

    def response(self, stream: int) -> Response:
        """Receive until a stream has ended."""
        response = self.responses[stream]
        while not response.ended and response.reset is None:
            self.receive()
        return response

    def receive(self) -> None:
        data = self.sock.recv(65_536)
        assert data, f"the connection has ended, with {self.responses} and {self.goaways}"
        self.take(data)
        self.flush()


def _text(headers: Any) -> dict[str, str]:
    return {_str(name): _str(value) for name, value in headers}


def _str(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
