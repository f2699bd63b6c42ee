"""Controllers and TLS, older kinds of handlers, options, and the names of aiosmtpd in use."""

from __future__ import annotations

import asyncio
import math
import smtplib
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mail.serving import LARGE, RECIPIENT, SENDER, TEXT, Handler, Line, send, serving
from tests.support.programs import program
from tests.support.servers import free_port
from tests.support.tls import client_context, server_context
from wsgifast import ConfigurationError
from wsgifast.mail import SMTP, SMTP_SSL
from wsgifast.mail import server as fast


def nodelay(client: smtplib.SMTP) -> int:
    assert client.sock is not None
    return client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("spool_bytes", [None, 1000])
@pytest.mark.parametrize("chunking", [True, False])
def test_starttls_delivers_messages(chunking: bool, spool_bytes: int | None) -> None:
    options: dict[str, Any] = {"tls_context": server_context(), "spool_bytes": spool_bytes}
    with (
        serving(require_starttls=True, **options) as (port, handler),
        SMTP("localhost", port, timeout=60) as client,
    ):
        client.ehlo()
        assert not client.has_extn("chunking")  # no data before STARTTLS
        client.starttls(context=client_context())
        client.chunking = chunking
        for message in (LARGE, TEXT):
            client.sendmail(SENDER, [RECIPIENT], message)
        assert client.has_extn("chunking")
        assert nodelay(client)
    assert handler.received == [LARGE, TEXT]


def test_implicit_tls_delivers_files(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    with (
        serving(ssl_context=server_context()) as (port, handler),
        SMTP_SSL("localhost", port, context=client_context(), timeout=60) as client,
        path.open("rb") as file,
    ):
        assert nodelay(client)
        client.sendmail(SENDER, [RECIPIENT], file)
    assert handler.received == [LARGE]


def test_controller_of_each_kind_runs_our_server(tmp_path: Path) -> None:
    handler = Handler()
    loop = asyncio.new_event_loop()
    controller: Any = fast.UnthreadedController(handler, "127.0.0.1", free_port(), loop=loop)
    try:
        controller.begin()
        sending = loop.run_in_executor(None, send, controller.port, LARGE)
        loop.run_until_complete(sending)
        controller.end()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert handler.received == [LARGE]
    path = str(tmp_path / "socket")
    for controller_class in (fast.UnixSocketController, fast.UnixSocketUnthreadedController):
        made: Any = controller_class(handler, path)
        asyncio.set_event_loop(made.loop)  # otherwise the server makes one that is never closed
        try:
            assert isinstance(made.factory(), fast.SMTPServer)
        finally:
            asyncio.set_event_loop(None)
            made.loop.close()


def test_handler_of_data_gets_no_process_message() -> None:
    class Both(Handler):
        def process_message(self, *args: Any) -> str:
            raise AssertionError("the message was handled already")

    with serving(handler=Both()) as (port, handler):
        send(port, TEXT)
    assert handler.received == [TEXT]


def test_handler_without_methods_accepts_messages() -> None:
    with serving(handler=object()) as (port, _), Line(port) as line:
        line.begin()
        assert line.say(b"DATA", b"text\r\n.") == b"250 OK"


def test_handler_with_process_message_alone_is_refused() -> None:
    class Old:
        def process_message(self, *args: Any) -> None:
            raise AssertionError("nobody calls it")

    for kind in (fast.SMTPServer, fast.Controller):
        with pytest.raises(ConfigurationError, match="Old has only process_message"):
            kind(Old())


def test_curl_delivers_a_large_message(tmp_path: Path) -> None:
    curl = program("curl")
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    with serving() as (port, handler):
        target = ["--mail-from", SENDER, "--mail-rcpt", RECIPIENT, "--upload-file", str(path)]
        url = f"smtp://127.0.0.1:{port}/client"
        done = subprocess.run([curl, "-sS", url, *target], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert handler.received == [LARGE]


@pytest.mark.parametrize(
    "options",
    [
        {"spool_bytes": -1},
        {"spool_bytes": "1M"},
        {"spool_bytes": 0, "decode_data": True},
        {"refuse_smuggling": 1},
    ],
)
def test_server_with_invalid_option_is_refused(options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(ConfigurationError, match=name):
        fast.SMTPServer(Handler(), **options)
    with pytest.raises(ConfigurationError, match=name):
        fast.Controller(Handler(), **options)


# Limits that mean no limit, and limits that no system call accepts as they are.
UNLIMITED = [math.inf, 1e300, 10**400, 1e8]
WRONG_LIMITS = [math.nan, -1, -math.inf, "5", True, [5]]
WRONG_TEXT = r"timeout=.*: seconds from 0 on; math\.inf or None for no limit"


@pytest.mark.parametrize("timeout", [None, *UNLIMITED], ids=str)
def test_smtp_without_a_time_limit_delivers(timeout: Any) -> None:
    with (
        serving(timeout=timeout) as (port, handler),
        SMTP("127.0.0.1", port, local_hostname="client", timeout=timeout) as client,
    ):
        assert client.sock is not None
        assert client.sock.gettimeout() is client.timeout is None
        client.sendmail(SENDER, [RECIPIENT], TEXT)
        client.quit()
        client.timeout = timeout
        client.connect("127.0.0.1", port)
        client.sendmail(SENDER, [RECIPIENT], TEXT)
    assert handler.received == [TEXT] * 2


@pytest.mark.parametrize("timeout", WRONG_LIMITS, ids=repr)
def test_smtp_with_a_wrong_time_limit_is_refused(timeout: Any) -> None:
    for client_class in (SMTP, SMTP_SSL):
        with pytest.raises(ConfigurationError, match=WRONG_TEXT):
            client_class("127.0.0.1", 1, timeout=timeout)
        client = client_class(local_hostname="client")
        client.timeout = timeout
        with pytest.raises(ConfigurationError, match=WRONG_TEXT):
            client.connect("127.0.0.1", 1)
    with pytest.raises(ConfigurationError, match=WRONG_TEXT):
        fast.Controller(Handler(), timeout=timeout)
    with pytest.raises(ConfigurationError, match=WRONG_TEXT):
        fast.SMTPServer(Handler(), timeout=timeout)


def test_smtp_client_has_sockets_default_timeout() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(47)
    try:
        with serving() as (port, _), SMTP("127.0.0.1", port, local_hostname="client") as client:
            assert client.sock is not None
            assert client.sock.gettimeout() == 47
    finally:
        socket.setdefaulttimeout(before)
