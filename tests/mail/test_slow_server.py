"""A client with CHUNKING and a server that reads slowly: each block has the whole timeout."""

from __future__ import annotations

import smtplib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mail.serving import RECIPIENT, SENDER, serving
from wsgifast.mail import SMTP

TIMEOUT_S = 1.0
# The link's rate. At this rate the message takes three times the timeout.
BYTES_PER_S = 1 << 20
MESSAGE = b"Subject: slow\r\n\r\n" + (b"a" * 78 + b"\r\n") * 40_000


class SlowLink:
    """Pass the bytes of a client on to a server at a rate, and the replies at once."""

    def __init__(self, port: int, *, stops: bool = False) -> None:
        self._port, self._stops = port, stops
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Few bytes are on their way: the client waits for the server.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        self.port: int = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> SlowLink:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._listener.close()
        self._thread.join(20)

    def _pass_on(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            replies = threading.Thread(target=_copy, args=(server, client), daemon=True)
            replies.start()
            passed, began = 0, time.monotonic()
            while block := client.recv(16 * 1024):
                server.sendall(block)
                passed += len(block)
                if self._stops and passed > 100_000:
                    self._over.wait(20)
                    break
                late_s = passed / BYTES_PER_S - (time.monotonic() - began)
                self._over.wait(max(0.0, late_s))
            server.shutdown(socket.SHUT_WR)
            replies.join(20)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while block := source.recv(4096):
            target.sendall(block)
    except OSError:
        pass  # the client has left


@pytest.fixture(params=["bytes", "file", "blocks", "one large block"])
def message(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    half = len(MESSAGE) // 2
    (tmp_path / "message").write_bytes(MESSAGE)
    with (tmp_path / "message").open("rb") as file:
        yield {
            "bytes": MESSAGE,
            "file": file,
            "blocks": [MESSAGE[:half], MESSAGE[half:]],
            "one large block": [MESSAGE],
        }[request.param]


def _client(port: int) -> SMTP:
    client = SMTP("127.0.0.1", port, local_hostname="client", timeout=TIMEOUT_S)
    assert client.sock is not None
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
    client.ehlo()
    assert client.has_extn("chunking")
    return client


@pytest.mark.parametrize("chunking", [True, False])
def test_message_over_a_slow_link_arrives(message: Any, chunking: bool) -> None:
    with serving() as (port, handler), SlowLink(port) as link, _client(link.port) as client:
        client.chunking = chunking
        began = time.monotonic()
        assert client.sendmail(SENDER, [RECIPIENT], message) == {}
        took_s = time.monotonic() - began
    assert handler.received == [MESSAGE]
    assert took_s > TIMEOUT_S  # with one timeout for all blocks it would have failed


def test_message_to_a_link_that_stops_times_out(message: Any) -> None:
    with serving() as (port, handler), SlowLink(port, stops=True) as link:
        client = _client(link.port)
        with pytest.raises((TimeoutError, smtplib.SMTPServerDisconnected)):
            client.sendmail(SENDER, [RECIPIENT], message)
        client.close()
    assert handler.received == []
