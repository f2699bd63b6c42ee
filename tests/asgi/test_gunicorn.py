"""gunicorn's own ASGI worker with sendfile: HTTP/2, and gunicorns that are built differently.

Over HTTP/1.1 it is among the servers of the other suites.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import gunicorn.config
import pytest
from asgifast.messages import ASGIApp, Receive, Scope, Send, response_body, response_start
from asgifast.workers.gunicorn import FastASGIProtocol, FastASGIWorker
from gunicorn.asgi.protocol import ASGIProtocol

from tests.support.http import Connection
from wsgifast.sockets import lingering

from .protocols import PATHSEND, turns
from .servers import asgi_server
from .support import expect_http2, expect_websocket

pytestmark = pytest.mark.long


@pytest.mark.skipif(
    "http2_cleartext" not in gunicorn.config.make_settings(),
    reason="HTTP/2 without TLS came with gunicorn 26.2",
)
@pytest.mark.parametrize("app", ["fast", "app"])
def test_http_2(files: Path, app: str) -> None:
    extra = ("--http-protocols=h2,h1", "--http2-cleartext=prior-knowledge")
    name = "ours-gunicorn-asgi"
    with asgi_server(name, f"tests.asgi.app:{app}", files, extra=extra) as server:
        expect_http2(server, files, ranges=app == "fast")


def test_uploads_and_a_websocket_behind_them(files: Path) -> None:
    data = (files / "large").read_bytes()
    with (
        asgi_server("ours-gunicorn-asgi", "tests.asgi.app:app", files) as server,
        Connection(server.address) as connection,
    ):
        for _ in range(2):
            answer = connection.request("/echo", method="POST", body=data)
            assert (answer.status, answer.body) == (200, data)
        expect_websocket(connection)


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    await send(response_start(200, [(b"content-length", b"2")]))
    await send(response_body(b"ok"))


def _worker(
    loop: asyncio.AbstractEventLoop, app: ASGIApp = ok, **settings: object
) -> SimpleNamespace:
    """A worker of gunicorn's, as far as its protocol looks at it."""
    config = gunicorn.config.Config()
    for name, value in settings.items():
        config.set(name, value)
    log = logging.getLogger("gunicorn.error")
    log.access_log_enabled = False  # type: ignore[attr-defined]
    return SimpleNamespace(
        cfg=config, log=log, asgi=app, loop=loop, state={}, alive=True, nr=0, nr_conns=0,
        max_requests=sys.maxsize,
    )  # fmt: skip


@pytest.mark.parametrize("setting", ["auto", "python"])
def test_requests_are_parsed_by_the_parser_that_gunicorn_would_take(setting: str) -> None:
    async def run() -> list[object]:
        parsers: list[object] = []
        for protocol_class in (FastASGIProtocol, ASGIProtocol):
            worker = _worker(asyncio.get_running_loop(), http_parser=setting)
            protocol = protocol_class(worker)
            ours, client = socket.socketpair()
            with client:
                transport, _ = await worker.loop.create_connection(lambda: protocol, sock=ours)  # noqa: B023
                parsers.append(type(protocol._callback_parser))
                transport.close()
                await asyncio.sleep(0)
        return parsers

    ours, theirs = asyncio.run(run())
    assert ours is theirs


@pytest.mark.parametrize("setting", ["auto", "python"])
def test_a_large_upload_that_comes_before_the_request_in_front_of_it_is_answered(
    setting: str,
) -> None:
    """gunicorn closes such a connection; so it may, when a client is quick, between requests."""
    size = 1024 * 1024
    come = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received = 0
        while (message := await receive())["type"] == "http.request":
            received += len(message["body"])
            if not message["more_body"]:
                break
        await come.wait()
        await send(response_start(200, [(b"content-length", b"7")]))
        await send(response_body(b"%07d" % received))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        protocol = FastASGIProtocol(_worker(loop, app, http_parser=setting))
        ours, client = socket.socketpair()
        await loop.create_connection(lambda: protocol, sock=ours)
        reader, writer = await asyncio.open_connection(sock=client)
        for length in (2, size):
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
            writer.write(bytes(length))
        while not protocol._reading_paused:
            await asyncio.sleep(0)
        come.set()
        for length in (2, size):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(7) == b"%07d" % length
        writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("size", [1_000_000, 10], ids=["much", "little"])
@pytest.mark.parametrize("sends", [True, False])
def test_a_connection_with_an_upload_that_is_refused_is_closed_in_time(
    size: int, sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "LINGER_S", 60.0 if sends else 0.05)
    monkeypatch.setattr(lingering, "_LINGERS_MOST_S", 0.05 if sends else 60.0)
    come = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await come.wait()
        await ok(scope, receive, send)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        protocol = FastASGIProtocol(_worker(loop, app))
        ours, client = socket.socketpair()
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        writer.write(bytes(size))
        while not protocol._body_receiver or protocol._reading_paused != (size > 10):
            await asyncio.sleep(0)
        come.set()
        assert (await reader.read()).endswith(b"\r\n\r\nok")
        assert not transport.is_closing()
        while sends and not transport.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.001)
        await asyncio.wait_for(asyncio.shield(protocol._task), 60.0)
        while not protocol._conn_lost_handled:
            await asyncio.sleep(0.001)
        writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("closes", [True, False], ids=["before", "meanwhile"])
def test_a_worker_that_ends_does_not_wait_for_all_that_a_client_would_send(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the client's connection lingers before that or since then."""
    monkeypatch.setattr(lingering, "LINGER_S", 0.3)
    monkeypatch.setattr(lingering, "_LINGERS_MOST_S", 600.0)
    come = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await come.wait()
        await ok(scope, receive, send)

    async def send_on(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.001)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        worker = FastASGIWorker.__new__(FastASGIWorker)
        worker.__dict__.update(vars(_worker(loop, app, graceful_timeout=600)))
        worker.__dict__.update(servers=[], lifespan=None, _quick_shutdown=False)
        ours, client = socket.socketpair()
        await loop.create_connection(lambda: FastASGIProtocol(worker), sock=ours)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        sending = loop.create_task(send_on(writer))
        if closes:
            come.set()
            assert (await reader.read()).endswith(b"\r\n\r\nok")
        worker.alive = False
        ending = loop.create_task(worker._shutdown())
        await asyncio.sleep(0)
        come.set()
        await asyncio.wait_for(ending, 60.0)
        assert not worker.nr_conns
        sending.cancel()
        writer.close()

    asyncio.run(run())


def test_a_connection_that_is_idle_for_as_long_as_keepalive_says_is_closed() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        worker = _worker(loop, keepalive=1)
        protocol = FastASGIProtocol(worker)
        protocol._keepalive = 0.02  # the setting is in whole seconds
        ours, client = socket.socketpair()
        await loop.create_connection(lambda: protocol, sock=ours)
        reader, writer = await asyncio.open_connection(sock=client)
        # Together: the client is not idle in between, however slow the machine is.
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(2) == b"ok"
        assert await asyncio.wait_for(reader.read(), 60.0) == b""
        writer.close()

    asyncio.run(run())


@asynccontextmanager
async def _answer(app: ASGIApp) -> AsyncIterator[asyncio.StreamReader]:
    """What a request is answered with."""
    loop = asyncio.get_running_loop()
    ours, client = socket.socketpair()
    await loop.create_connection(lambda: FastASGIProtocol(_worker(loop, app)), sock=ours)
    reader, writer = await asyncio.open_connection(sock=client)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    yield reader
    writer.close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_app_that_ends_early_has_sent_what_it_sent(fails: bool) -> None:
    """Small messages, some turns of the loop apart."""
    messages = [b"<%d>" % number for number in range(30)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(response_start(200, []))
        for message in messages:
            await send(response_body(message, more_body=True))
            await turns(3)
        if fails:
            raise RuntimeError("on purpose")

    async def run() -> None:
        async with _answer(app) as reader:
            answer = await asyncio.wait_for(reader.read(), 60.0)
            assert re.findall(rb"<\d+>", answer) == messages

    asyncio.run(run())


def test_the_apps_list_of_headers_is_its_own_again(tmp_path: Path) -> None:
    """What it says when the file is sent has no effect."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"100000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        headers[:] = [(b"content-length", b"10")]
        await send({"type": PATHSEND, "path": str(path)})

    async def run() -> None:
        async with _answer(app) as reader:
            await reader.readuntil(b"\r\n\r\n")
            sent = await asyncio.wait_for(reader.readexactly(100_000), 60.0)
            assert sent == path.read_bytes()

    asyncio.run(run())


def test_a_request_may_come_before_its_connection_waits_for_it_and_a_client_may_leave() -> None:
    goes_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(response_start(200, [(b"content-length", b"2")]))
        if scope["path"] == "/slow":
            await goes_on.wait()
        await send(response_body(b"ok"))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        worker = _worker(loop, app, asgi_disconnect_grace_period=0)
        protocol = FastASGIProtocol(worker)
        ours, client = socket.socketpair()
        await loop.create_connection(lambda: protocol, sock=ours)
        reader, writer = await asyncio.open_connection(sock=client)

        async def answered() -> None:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(2) == b"ok"

        def ask(path: bytes) -> None:
            writer.write(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)

        ask(b"/")
        await answered()
        ask(b"/slow")
        while protocol._current_request is None:
            await asyncio.sleep(0)
        ask(b"/")  # while the app has the one before
        goes_on.set()
        await answered()
        await answered()
        while not protocol._awaiting_request:
            await asyncio.sleep(0)
        writer.close()
        await asyncio.wait_for(asyncio.shield(protocol._task), 60.0)
        assert worker.nr == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("del protocol.ASGIProtocol._http1_buffered", "ASGIProtocol has no _http1_buffered"),
        ("protocol.ASGIProtocol._send_body = older", "_send_body takes no `last`"),
        ("gasgi.ASGIProtocol = object", "does not take ASGIProtocol from its module"),
    ],
)
def test_a_gunicorn_that_is_built_differently_is_not_run(change: str, told: str) -> None:
    code = (
        "from gunicorn.asgi import protocol\n"
        "from gunicorn.workers import gasgi\n"
        "def older(self, body, chunked=False): ...\n"
        f"{change}\n"
        "from asgifast.workers import FastASGIWorker"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "FastASGIWorker does not fit gunicorn" in found.stderr
    assert told in found.stderr
