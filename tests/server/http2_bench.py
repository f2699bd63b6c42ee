"""FastWorker's bench (see workers/bench.py) with a client of HTTP/2 at the other end."""

from __future__ import annotations

import h2.exceptions

from tests.support import http2
from tests.workers.bench import Bench
from tests.workers.bench import Client as SocketClient
from wsgifast.server.endpoint import CLOSED, LINGERING
from wsgifast.server.http2.connection import HTTP2Connection

__all__ = ["HTTP2", "Peer", "Stalled"]

# What a worker needs to speak it; over TLS it is agreed on by ALPN.
HTTP2 = {"http_protocols": "h2,h1"}


class Stalled(AssertionError):
    """Bytes that come are no frames."""


class Peer(http2.Client):
    """A client on a connection on which HTTP/2 has been agreed on.

    :param options: of :class:`tests.support.http2.Client`.
    """

    def __init__(self, bench: Bench, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.bench = bench
        self.socket: SocketClient = bench.connect()
        near = self.socket.near
        bench.server.registry.claim(near.fd)
        near._speak_http2(None)
        # Another object has its socket now.
        (self.socket.near,) = (c for c in bench.server.connections if c.fd == near.fd)
        self.begin()
        self.run()

    @property
    def near(self) -> HTTP2Connection:
        """The worker's end."""
        near = self.socket.near
        assert isinstance(near, HTTP2Connection)
        return near

    @property
    def streams(self) -> int:
        """How many the worker has."""
        return len(self.near.streams)

    def run(self) -> None:
        """Send what there is, have the worker do all that there is to do, and take what comes."""
        while True:
            self.send_only()
            self.bench.run()
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
            try:
                self.socket.send(data)
            except (BrokenPipeError, ConnectionResetError):
                pass

    def get(self, *args: object, **options: object) -> http2.Answer:
        """Ask, and run; the answer as far as it has come."""
        stream = self.ask(*args, **options)  # type: ignore[arg-type]
        self.run()
        return self.answers[stream]

    @property
    def has_ended(self) -> bool:
        """Whether the worker has said that nothing more comes."""
        return self.socket.near.state in (LINGERING, CLOSED)
