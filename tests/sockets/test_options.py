"""Socket options for every kind of socket and owner, and the addresses of listeners."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ftplib
import http.client
import imaplib
import io
import os
import poplib
import smtplib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import uvloop

from tests.sockets.support import Pair, run_python, tcp_pair, tls_contexts, tls_pair, unix_pair
from tests.support.process import send_buffer_is_limited
from wsgifast.sockets import (
    limit_send_buffer,
    owned_socket,
    release_send_buffer,
    set_nodelay,
)
from wsgifast.sockets.options import (
    Address,
    SocketLike,
    SocketNotFound,
    is_plain_socket,
    round_trip_us,
)


def nodelay(sock: SocketLike | None) -> bool:
    assert sock is not None
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


@contextlib.contextmanager
def talking_server(lines: dict[bytes, bytes], greeting: bytes) -> Iterator[int]:
    """A server that greets and responses command words.

    After the reply to STARTTLS, STLS or AUTH it speaks TLS.
    """
    server_side, _ = tls_contexts()

    def serve() -> None:
        sock, _ = listener.accept()
        sock.settimeout(20)
        sock.sendall(greeting)
        while True:
            line = b""
            while not line.endswith(b"\n"):
                try:
                    byte = sock.recv(1)
                except ConnectionError:  # closed with TLS session tickets that are unread or unsent
                    byte = b""
                if not byte:
                    sock.close()
                    return
                line += byte
            for word, response in lines.items():
                if word in line.upper():
                    tag = line.split()[0]
                    sock.sendall(response.replace(b"<tag>", tag))
                    if word in (b"STARTTLS", b"STLS", b"AUTH"):
                        sock = server_side.wrap_socket(sock, server_side=True)
                    break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def ftp(port: int) -> ftplib.FTP_TLS:
    client = ftplib.FTP_TLS(context=tls_contexts()[1])
    client.connect("localhost", port)
    return client


# How each client connects, switches to TLS and closes, with the server's greeting and replies.
CLIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, bytes, dict[bytes, bytes]]]
CLIENTS = {
    "imap": (
        partial(imaplib.IMAP4, "localhost"), lambda client, tls: client.starttls(tls), "shutdown",
        b"* OK ready\r\n",
        {
            b"CAPABILITY": b"* CAPABILITY IMAP4rev1 STARTTLS\r\n<tag> OK done\r\n",
            b"STARTTLS": b"<tag> OK done\r\n",
        },
    ),
    "smtp": (
        partial(smtplib.SMTP, "localhost", local_hostname="client"),
        lambda client, tls: client.starttls(context=tls), "close",
        b"220 ready\r\n",
        {b"EHLO": b"250-server\r\n250 STARTTLS\r\n", b"STARTTLS": b"220 go\r\n"},
    ),
    "pop": (
        partial(poplib.POP3, "localhost"), lambda client, tls: client.stls(tls), "close",
        b"+OK ready\r\n", {b"CAPA": b"+OK\r\nSTLS\r\n.\r\n", b"STLS": b"+OK\r\n"},
    ),
    "ftp": (
        ftp, lambda client, tls: client.auth(), "close", b"220 ready\r\n", {b"AUTH": b"234 go\r\n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_nodelay_of_clients_around_starttls(client: str) -> None:
    connect, starttls, close, greeting, lines = CLIENTS[client]
    with talking_server(lines, greeting) as port:
        owner = connect(port)
        for is_secure in (False, True):
            if is_secure:
                starttls(owner, tls_contexts()[1])
            sock = owned_socket(owner)
            assert isinstance(sock, ssl.SSLSocket) is is_secure
            for enabled in (True, False):
                assert set_nodelay(owner, enabled)
                assert nodelay(sock) is enabled
        getattr(owner, close)()


def test_nodelay_of_http_connections_and_responses() -> None:
    with tcp_pair() as pair:
        client = http.client.HTTPConnection("localhost")
        with pytest.raises(SocketNotFound, match="HTTPConnection owns no socket"):
            set_nodelay(client)
        client.sock = pair.near
        pair.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        assert set_nodelay(client)
        assert nodelay(pair.near)
        with http.client.HTTPResponse(pair.far) as response:
            assert owned_socket(response) is pair.far


@pytest.mark.parametrize("make", [tcp_pair, tls_pair])
def test_nodelay_of_sockets_and_their_files(
    make: Callable[[], contextlib.AbstractContextManager[Pair]],
) -> None:
    with make() as pair:
        assert set_nodelay(pair.near)
        assert nodelay(pair.near)
        with pair.near.makefile("rb") as file:
            assert owned_socket(file) is pair.near
        with pair.near.makefile("rb", buffering=0) as raw:
            assert owned_socket(raw) is pair.near


@pytest.mark.parametrize("enabled", [True, False])
def test_nodelay_of_a_socket_without_it_returns_false(enabled: bool) -> None:
    with unix_pair() as pair:
        assert set_nodelay(pair.near, enabled) is False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert set_nodelay(datagrams, enabled) is False


def test_nodelay_of_a_closed_socket_raises() -> None:
    with tcp_pair() as pair:
        pair.near.close()
        with pytest.raises(OSError):
            set_nodelay(pair.near)


@pytest.mark.parametrize(
    "owner", [None, object(), "text", 7, io.BytesIO(), smtplib.SMTP(), ftplib.FTP()]
)
def test_nodelay_of_an_object_without_a_socket_raises(owner: object) -> None:
    assert owned_socket(owner) is None
    with pytest.raises(SocketNotFound, match=type(owner).__name__):
        set_nodelay(owner)


def test_owners_that_own_each_other_own_no_socket() -> None:
    class Loop:
        sock: object

    loop = Loop()
    loop.sock = loop
    assert owned_socket(loop) is None


def test_file_on_disk_owns_no_socket() -> None:
    with open(__file__, "rb") as file:
        assert owned_socket(file) is None


@pytest.mark.parametrize("policy", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("tls", [False, True])
def test_nodelay_of_asyncio_streams_and_protocols(
    policy: Callable[[], asyncio.AbstractEventLoop], tls: bool
) -> None:
    server_side, client_side = tls_contexts()

    async def main() -> None:
        gone = asyncio.Event()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            gone.set()

        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server_side if tls else None)
        async with server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection(
                "127.0.0.1",
                port,
                ssl=client_side if tls else None,
                server_hostname="localhost" if tls else None,
            )
            for owner in (writer, writer.transport):
                for enabled in (False, True):
                    assert set_nodelay(owner, enabled)
                    assert nodelay(owned_socket(owner)) is enabled
            writer.close()
            await writer.wait_closed()
            await gone.wait()

    loop = policy()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("patch", ["", "import gevent.monkey; gevent.monkey.patch_all()"])
def test_nodelay_of_gevent_sockets(patch: str) -> None:
    code = f"""
{patch}
import gevent.socket as socket
from wsgifast.sockets import set_nodelay
from wsgifast.sockets.options import is_plain_socket
with socket.socket() as sock:
    assert set_nodelay(sock)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not is_plain_socket(sock)
"""
    run_python(code)


def test_plain_sockets_are_those_of_the_standard_class() -> None:
    class Own(socket.socket):
        pass

    with tcp_pair() as pair, tls_pair() as tls, Own() as own:
        assert is_plain_socket(pair.near)
        assert not is_plain_socket(tls.near)
        assert not is_plain_socket(own)


def test_near_peer_has_small_send_buffer_until_release() -> None:
    with tcp_pair() as pair, unix_pair() as unix:
        assert round_trip_us(pair.near) < 1_000_000
        changed = limit_send_buffer(pair.near)
        size = pair.near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert (size == 128 * 1024) is changed
        assert send_buffer_is_limited(pair.near) is changed
        release_send_buffer(pair.near)
        assert not send_buffer_is_limited(pair.near)
        assert not limit_send_buffer(unix.near)


class Kernel:
    """A TCP socket whose kernel reports are replaced.

    :param info: the result for TCP_INFO.
    :param refused: an option that cannot be set, and its error.
    """

    family = socket.AF_INET

    def __init__(self, info: bytes = b"", refused: tuple[int, int] = (0, 0)) -> None:
        self._info = info
        self._refused = refused
        self.set: list[tuple[int, int, object]] = []

    def fileno(self) -> int:
        return -1

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None:
        refused, error = self._refused
        if option == refused:
            raise OSError(error, os.strerror(error))
        self.set.append((level, option, value))


def test_send_buffer_is_released_by_size_on_old_kernel() -> None:
    old = Kernel(refused=(72, errno.ENOPROTOOPT))
    release_send_buffer(old)
    assert old.set == [(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)]
    closed = Kernel(refused=(72, errno.EBADF))
    with pytest.raises(OSError, match="Bad file"):
        release_send_buffer(closed)
    assert not closed.set


def measured(smoothed: int, least: int, known: int = 256) -> Kernel:
    """A report with round-trip times in microseconds. An older kernel returns fewer bytes."""
    return Kernel(struct.pack("=68xI76xI104x", smoothed, least)[:known])


def test_kernel_without_round_trip_limits_no_buffer() -> None:
    old = measured(smoothed=20, least=15, known=104)
    assert not limit_send_buffer(old)
    assert not old.set


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system reports no round-trip time")
@pytest.mark.parametrize(
    ("peer", "round_trip", "near"),
    [
        (measured(smoothed=20_000, least=15), 15, True),  # this host, which is busy
        (measured(smoothed=20_000, least=18_000), 18_000, False),
        (measured(smoothed=300, least=0xFFFFFFFF), 300, True),  # no minimum yet
    ],
)
def test_busy_peer_is_still_near(peer: Kernel, round_trip: int, near: bool) -> None:
    assert round_trip_us(peer) == round_trip
    assert limit_send_buffer(peer) is near
    assert [option[:2] for option in peer.set] == [(socket.SOL_SOCKET, socket.SO_SNDBUF)] * near


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8000", ("::1", 8000)),
        ("localhost:0", ("localhost", 0)),
        ("::1:80", None),
        ("::1", None),
        ("localhost", None),
        ("127.0.0.1:", None),
        ("1:99999", None),
        ("1:00000099999", None),
        ("1:1_0", None),
        (":+1", None),
        (80, None),
    ],
)
def test_address_is_parsed_or_none(text: object, address: tuple[str, int] | None) -> None:
    assert Address.read(text) == address


def test_address_is_written_as_it_was_read() -> None:
    for text in ("127.0.0.1:8000", "[::1]:8000"):
        assert str(Address.read(text)) == text
