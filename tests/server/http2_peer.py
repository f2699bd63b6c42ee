"""A client of HTTP/2 for a stepped FastWorker, and the frames that it sends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h2.exceptions
import hpack
import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.connections import App, MakeStepped
from tests.support import http2
from tests.support.calls import recorded
from tests.support.servers import wait_for
from tests.workers.stepped_worker import LARGE, SteppedWorker, echo
from tests.workers.stepped_worker import Client as SocketClient
from wsgifast.server.endpoint import CLOSED, LINGERING
from wsgifast.server.http2.connection import HTTP2Connection

# The settings of a worker for HTTP/2. Over TLS, ALPN negotiates the version.
HTTP2 = {"http_protocols": "h2,h1"}
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, REFUSED = 0, 1, 2, 8, 7
ENHANCE_YOUR_CALM = 11

STREAM_ENDS = ("reset", "leaves", "slow", "cut off", "closed", "goaway", "malformed")

Begin = Callable[..., "Peer"]


class Stalled(AssertionError):
    """The received bytes are not frames."""


class Peer(http2.Client):
    """A client on a connection that speaks HTTP/2.

    :param options: of :class:`tests.support.http2.Client`.
    """

    def __init__(self, stepped: SteppedWorker, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.stepped = stepped
        self.socket: SocketClient = stepped.connect()
        near = self.socket.near
        stepped.server.registry.waiting.pop(near.fd, None)
        near._speak_http2()
        # Another object has the connection's socket now.
        (self.socket.near,) = (c for c in stepped.server.connections if c.fd == near.fd)
        self.begin()
        self.run()

    @property
    def near(self) -> HTTP2Connection:
        near = self.socket.near
        assert isinstance(near, HTTP2Connection)
        return near

    @property
    def streams(self) -> int:
        return len(self.near.streams)

    @property
    def has_ended(self) -> bool:
        """Return whether the worker has announced that it sends no more."""
        return self.socket.near.state in (LINGERING, CLOSED)

    def run(self) -> None:
        """Send all bytes, let the worker do all of its work, and receive its bytes."""
        while True:
            self.send_only()
            self.stepped.run()
            data = self.socket.receive_all_there_is()
            if not data:
                return
            try:
                self.take(data)
            except h2.exceptions.ProtocolError as error:
                raise Stalled(f"{error}, in {data!r}") from error

    def send_only(self) -> None:
        data = self.state.data_to_send()
        if data:
            with contextlib.suppress(OSError):  # one of the two peers may have closed
                self.socket.send(data)

    def run_unread(self) -> None:
        """Send, and let the worker do all of its work. The client does not receive."""
        self.send_only()
        self.stepped.run()

    def sends(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """Return the bytes that the worker sends from now on, one item for each send."""
        return recorded(monkeypatch, self.near.output.sender, "send", lambda data: data)

    def send_raw(self, data: bytes) -> None:
        """Send frames that h2 would not make, and let the worker run."""
        self.socket.send(data)
        self.run()

    def receive(self) -> None:
        """Receive the bytes that have arrived. The worker does nothing."""
        self.take(self.socket.receive_all_there_is())

    def get(self, *args: object, **options: object) -> http2.Response:
        """Send a request, and let the worker run.

        Return the part of the response that has arrived.
        """
        stream = self.ask(*args, **options)  # type: ignore[arg-type]
        self.run()
        return self.responses[stream]

    def open_both(self, size: int, stream: int) -> None:
        """Open the windows of the connection and of a stream."""
        self.open(size)
        self.open(size, stream)

    def end(self, stream: int, how: str) -> None:
        """End one of its streams, or with the connection all of them.

        :param how: one of STREAM_ENDS. The server does "cut off" and "closed".
        """
        if how == "reset":
            self.state.reset_stream(stream)
            self.run()
            assert not self.has_ended
        elif how == "leaves":
            self.socket.close()
        elif how == "slow":
            self.stepped.pass_time(100)
        elif how == "cut off":
            self.near.cut_off()
        elif how == "closed":
            self.stepped.server.registry.waiting.pop(self.near.fd, None)
            self.near.close()
        elif how == "goaway":
            self.state.close_connection(error_code=2)
            self.run()
        else:
            self.socket.send(raw_frame(0, 0, b"x"))  # DATA on stream 0 is malformed
        self.stepped.run()

    def serve_elsewhere(self) -> None:
        """Send, and do the work of another thread while an app runs in this thread."""
        self.send_only()
        server = self.stepped.server
        server.pool.poll_events(0)
        while server.pool.work:
            job = self.stepped.take_up()
            if job is not None:
                self.stepped.response(job)

    def wait_for_disk(self, condition: Callable[[], bool]) -> None:
        """Run until a disk thread has read the next bytes."""

        def holds() -> bool:
            self.run()
            return condition()

        wait_for(holds, "all has come that the window lets through")


@pytest.fixture
def begin(make_stepped: MakeStepped) -> Begin:
    """Make the client of an app, with `attributes` of the worker and gunicorn's settings.

    A client with a `window` in bytes for each stream does not open the windows by itself.
    """

    def make(
        app: App = echo, *, window: int | None = None, reads: bool | None = None, **options: Any
    ) -> Peer:
        options = {"keepalive": 5, "worker_connections": 100, **HTTP2, **options}
        reads = window is None if reads is None else reads
        return Peer(make_stepped(app, **options), window=window, reads=reads)

    return make


def generator() -> Iterator[bytes]:
    for _ in range(16):
        yield bytes(LARGE // 16)


def large_file(folder: Path) -> Callable[[], Iterable[bytes]]:
    path = folder / "large"
    path.write_bytes(os.urandom(LARGE))
    return lambda: FileWrapper(path.open("rb"))


def raw_frame(kind: int, number: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    """Return a frame as it is sent (RFC 9113, section 4.1)."""
    header = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return header + number.to_bytes(4, "big") + payload


def raw_headers(
    peer: Peer,
    fields: Iterable[tuple[str, str]] | None = None,
    *,
    before: bytes = b"",
    more: bytes = b"",
    priority: bytes = b"",
    ends: bool = True,
) -> bytes:
    """Return the HEADERS frame of a peer's next request, without any check of its fields.

    :param fields: a GET by default.
    :param before: the beginning of the field block in HPACK, and `more` is its end.
    :param priority: as in a PRIORITY frame.
    """
    if fields is None:
        fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
    number = peer.state.get_next_available_stream_id()
    peer.responses[number] = http2.Response()
    peer.send_only()
    encoder, peer.state.encoder = peer.state.encoder, hpack.Encoder()
    peer.state.send_headers(number, [(":method", "GET"), (":path", "/")], end_stream=ends)
    peer.state.encoder = encoder
    peer.state.data_to_send()  # the worker does not receive it
    block = before + b"".join(b"\0" + _literal(each) + _literal(value) for each, value in fields)
    flags = 4 | (1 if ends else 0) | (0x20 if priority else 0)
    return raw_frame(1, number, priority + block + more, flags=flags)


def _literal(text: str) -> bytes:
    return bytes(hpack.hpack.encode_integer(len(text), 7)) + text.encode("latin-1")
