"""The limit of connections by the client's address: its count, and each server with the limit."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.asgi.servers import OURS, OURS_ON_GUNICORN, asgi_server
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from wsgifast.sockets.client_limits import ConnectionsByAddress

LIMIT = 2
# Loopback's own 127.0.0.1 is a trusted proxy. All other addresses of its network are clients.
CLIENT, OTHER, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.1"
ENV = {"WSGIFAST_CONNECTIONS_PER_ADDRESS": str(LIMIT), "FORWARDED_ALLOW_IPS": PROXY}
SERVERS = ["FastWorker", *OURS, *OURS_ON_GUNICORN]


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"OK"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"OK"})


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    module = "tests.sockets.test_connections_by_address"
    with ExitStack() as stack:
        if request.param == "FastWorker":
            port = free_port()
            command = f"-m gunicorn -k wsgifast.workers.FastWorker -b 127.0.0.1:{port} {module}:app"
            argv = [sys.executable, *command.split(), "--no-control-socket"]
            server = live_server(argv, ("127.0.0.1", port), env=ENV, forked=False)
        else:
            files = tmp_path_factory.mktemp("files")
            server = asgi_server(request.param, f"{module}:asgi_app", files, env=ENV, forked=False)
        yield stack.enter_context(server)


def is_answered(server: LiveServer, client: socket.socket) -> bool:
    try:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        response = b""
        while b"\r\n\r\nOK" not in response:
            part = client.recv(4096)
            if not part:
                return False
            response += part
    except ConnectionError:
        return False
    return True


def connect(server: LiveServer, source: str) -> socket.socket:
    port = server.address[1]
    return socket.create_connection((PROXY, int(port)), 30.0, source_address=(source, 0))


def test_connections_beyond_limit_wait_for_others(server: LiveServer) -> None:
    with ExitStack() as stack:
        allowed = [stack.enter_context(closing(connect(server, CLIENT))) for _ in range(LIMIT)]
        assert all(is_answered(server, each) for each in allowed)
        for _ in range(3):  # a refused connection leaves no resource behind
            with closing(connect(server, CLIENT)) as refused:
                assert not is_answered(server, refused)
        assert all(is_answered(server, each) for each in allowed)
        with closing(connect(server, OTHER)) as other:
            assert is_answered(server, other)
    assert f"{CLIENT} has {LIMIT} connections" in server.log()

    def admits_again() -> bool:
        with closing(connect(server, CLIENT)) as again:
            return is_answered(server, again)

    wait_for(admits_again, "a connection took the place of those that have ended")


def test_connections_that_send_nothing_count(server: LiveServer) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(closing(connect(server, OTHER))) for _ in range(LIMIT + 1)]
        assert idle[-1].recv(1) == b""
        idle[0].setblocking(False)
        with pytest.raises(BlockingIOError):  # that was not a timeout
            idle[0].recv(1)


def test_trusted_proxy_has_any_number_of_connections(server: LiveServer) -> None:
    with ExitStack() as stack:
        for _ in range(2 * LIMIT):
            assert is_answered(server, stack.enter_context(closing(connect(server, PROXY))))


def counter(most: float = 1, *proxies: str) -> tuple[ConnectionsByAddress, list[str]]:
    warnings: list[str] = []
    return ConnectionsByAddress(
        most, proxies.__contains__, lambda text, *args: warnings.append(text % args)
    ), warnings


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_addresses_of_one_client_count_together(first: str, second: str, is_same: bool) -> None:
    connections, _ = counter()
    assert connections.open((first, 1))
    assert connections.open((second, 2)) is not is_same


def test_refused_connection_counts_until_it_is_closed() -> None:
    connections, warnings = counter(2)
    peers = [("192.0.2.1", port) for port in range(4)]
    assert [connections.open(peer) for peer in peers] == [True, True, False, False]
    assert len(warnings) == 1
    for peer in peers[:3]:
        connections.close(peer)
    assert connections.open(peers[0])
    connections.close(peers[0])
    connections.close(peers[3])
    assert not connections._open


@pytest.mark.parametrize(
    "peer",
    ["", b"", "/run/app.sock", None, ("192.0.2.9", 1), ("::ffff:192.0.2.9", 1), ("::ffff:7", 1)],
)
def test_proxies_and_unix_sockets_are_not_counted(peer: object) -> None:
    connections, warnings = counter(1, "192.0.2.9", "::ffff:7")
    assert all(connections.open(peer) for _ in range(3))
    connections.close(peer)
    assert not connections._open
    assert not warnings
