"""The server: aiosmtpd's commands and replies, the fast way through data, BDAT and spooling."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import smtplib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd import controller as stock_controller
from aiosmtpd import smtp as stock_smtp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.programs import program
from tests.support.servers import free_port, wait_for
from wsgifast import ConfigurationError
from wsgifast.mail import SMTP, SMTP_SSL
from wsgifast.mail import server as fast
from wsgifast.mail.content import Content

SENDER, RECIPIENT = "anne@example.com", "bart@example.com"
TEXT = b"Subject: dots\r\n\r\n.one\r\n..two\r\n.\r\nlast\r\n"
LARGE = b"Subject: large\r\n\r\n" + (b".x" * 38 + b"\r\n") * 40_000  # 3 MB


class Handler:
    """Remembers the content of each message; refuses what it is told to."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.spooled: list[bool] = []
        self.files: list[Any] = []

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address.startswith("refused"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if envelope.mail_from.startswith("broken"):
            raise LookupError("handler")
        file = getattr(envelope, "content_file", None)
        if file is not None:
            assert envelope.content is envelope.original_content is None
            self.files.append(file)
            self.received.append(file.read())
        else:
            self.received.append(envelope.content)
        self.spooled.append(file is not None)
        return "250 taken"


@contextlib.contextmanager
def serving(
    controller_class: type[Any] = fast.Controller, *, handler: Any = None, **options: Any
) -> Iterator[tuple[int, Handler]]:
    """Serve until all clients have left: aiosmtpd's controllers leave open connections unclosed."""
    connections: list[Any] = []

    class Watched(controller_class):  # type: ignore[misc]
        def factory(self) -> Any:
            connections.append(super().factory())
            return connections[-1]

    handler = Handler() if handler is None else handler
    controller = Watched(handler, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield controller.port, handler
        wait_for(lambda: all(c.transport is None for c in connections), "all clients have left")
    finally:
        controller.stop()


class Line:
    """A bare connection that says commands and reads replies."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.file = self.sock.makefile("rb")
        assert self.reply().startswith(b"220")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(self) -> bytes:
        while True:
            line = self.file.readline()
            if line[3:4] != b"-":
                return line.rstrip()

    def say(self, *commands: bytes) -> bytes:
        """Send commands one by one; return the reply to the last."""
        for command in commands:
            self.send(command + b"\r\n")
            reply = self.reply()
        return reply

    def begin(self) -> None:
        assert self.say(b"EHLO x", b"MAIL FROM:<a@b.c>", b"RCPT TO:<d@e.f>") == b"250 OK"


def send(port: int, message: Any, *, client: type[smtplib.SMTP] = SMTP, **attributes: Any) -> Any:
    with client("127.0.0.1", port, local_hostname="client", timeout=60) as smtp:
        for name, value in attributes.items():
            setattr(smtp, name, value)
        return smtp.sendmail(SENDER, [RECIPIENT], message)


@pytest.mark.parametrize("chunking", [True, False])
@pytest.mark.parametrize("message", [TEXT, b"", b".\r\n", LARGE, LARGE + b"."])
def test_messages_arrive_whole(message: bytes, chunking: bool) -> None:
    with serving() as (port, handler):
        send(port, message, chunking=chunking)
        send(port, TEXT, chunking=chunking)
    whole = message if message.endswith(b"\r\n") else message + b"\r\n"
    assert handler.received == [whole, TEXT]


@pytest.mark.parametrize("client", [smtplib.SMTP, SMTP])
@pytest.mark.parametrize("controller", [stock_controller.Controller, fast.Controller])
def test_either_side_works_with_the_standard_one(
    client: type[smtplib.SMTP], controller: type[Any]
) -> None:
    with serving(controller) as (port, handler):
        send(port, TEXT, client=client)
        with client("127.0.0.1", port, local_hostname="client", timeout=60) as smtp:
            refused = smtp.sendmail(SENDER, [RECIPIENT, "refused@example.com"], LARGE)
    assert refused == {"refused@example.com": (550, b"no such user")}
    assert handler.received == [TEXT, LARGE]


# What each controller answers to the same bytes, sent at once: (name, stream, options).
CONVERSATIONS: list[tuple[str, bytes, dict[str, Any]]] = [
    ("no helo", b"DATA\r\nMAIL FROM:<a@b.c>\r\n", {}),
    ("no rcpt", b"HELO x\r\nDATA\r\n", {}),
    ("argument", b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<a@b.c>\r\nDATA now\r\n", {}),
    ("auth", b"HELO x\r\nMAIL FROM:<a@b.c>\r\nDATA\r\n", {"auth_required": True}),
    ("addresses", b"HELO x\r\nMAIL FROM:<a b>\r\nMAIL FROM:<@x:a@b.c>\r\nRCPT TO:a@b\r\n", {}),
    ("extended", b"EHLO x\r\nMAIL FROM:<a@b.c> SIZE=5 BODY=8BITMIME\r\nRCPT TO:<a@b> X=1\r\n", {}),
    ("too long for mail", b"EHLO x\r\nMAIL FROM:<a@b.c> SIZE=9\r\n", {"data_size_limit": 8}),
]
ENVELOPE = b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<a@b.c>\r\nDATA\r\n"
BODIES: list[tuple[str, bytes, dict[str, Any]]] = [
    ("plain", TEXT.replace(b"\r\n.", b"\r\n.."), {}),
    ("empty", b"", {}),
    ("long line", b"a" * 1000 + b"\r\n", {}),
    ("line of the limit", b"a" * 999 + b"\r\n", {}),
    ("too much", b"abc\r\n" * 100, {"data_size_limit": 99}),
    ("just enough", b"abc\r\n" * 20, {"data_size_limit": 100}),
    (
        "too much, then a long line",
        b"abc\r\n" * 100 + b"a" * 5000 + b"\r\n",
        {"data_size_limit": 9},
    ),
    ("long line, then too much", b"a" * 5000 + b"\r\n" + b"abc\r\n", {"data_size_limit": 9}),
    ("bare line ends", b"a\n.\r\nb\r.\r\nc\r\n.\nd\r\n.\rQUIT\r\n", {}),
    ("8 bit", b"\xff\xfe\r\n", {}),
    ("text", "ä\r\n".encode(), {"decode_data": True, "enable_SMTPUTF8": True}),
    ("no text", "ä\r\n".encode(), {"decode_data": True, "enable_SMTPUTF8": False}),
]
CONVERSATIONS += [
    (name, ENVELOPE + body + b".\r\nRSET\r\n", options) for name, body, options in BODIES
]


@pytest.mark.parametrize(("stream", "options"), [c[1:] for c in CONVERSATIONS], ids=lambda v: "")
def test_every_reply_is_aiosmtpds(stream: bytes, options: dict[str, Any]) -> None:
    def conversation(controller: type[Any], pieces: list[bytes], **more: Any) -> object:
        with serving(controller, **options, **more) as (port, handler), Line(port) as line:
            for piece in pieces:
                line.send(piece)
            line.send(b"NOOP end\r\nQUIT\r\n")
            return line.file.read(), handler.received

    more = {"pipelining": False, "chunking": False}
    expected = conversation(stock_controller.Controller, [stream])
    assert conversation(fast.Controller, [stream], **more) == expected
    octets = [stream[at : at + 1] for at in range(len(stream))] if len(stream) < 500 else [stream]
    assert conversation(fast.Controller, octets, **more) == expected


@given(
    st.text(st.sampled_from('ab.@<>" ()-_=\\1,:[]ä\t'), max_size=14).map(lambda t: f"<{t}>"),
    st.sampled_from(["", " SIZE=1", "  A B ", " (c) A", "X", " ä"]),
)
def test_plain_addresses_are_read_as_aiosmtpd_reads_them(address: str, rest: str) -> None:
    loop = asyncio.new_event_loop()
    try:
        server = fast.SMTPServer(object(), loop=loop, hostname="x")
        try:
            expected = stock_smtp.SMTP._getaddr(server, address + rest)
        except (AttributeError, IndexError) as error:  # its parser stumbles over some: "<1@[>"
            with pytest.raises(type(error)):
                server._getaddr(address + rest)
        else:
            assert server._getaddr(address + rest) == expected
    finally:
        loop.close()


def test_replies_to_pipelined_commands_leave_together() -> None:
    with serving() as (port, _), Line(port) as line:
        line.say(b"EHLO x")
        line.send(b"MAIL FROM:<a@b.c>\r\n" + b"RCPT TO:<d@e.f>\r\n" * 50 + b"DATA\r\n")
        data = line.sock.recv(65536)
        assert data.count(b"250 OK\r\n") == 51


def test_many_held_replies_are_let_go_before_the_last() -> None:
    with serving() as (port, _), Line(port) as line:
        line.say(b"EHLO x")
        line.send(b"MAIL FROM:<a@b.c>\r\n" + b"RCPT TO:<d@e.f>\r\n" * 5000 + b"QUIT\r\n")
        assert line.file.read() == b"250 OK\r\n" * 5001 + b"221 Bye\r\n"


@contextlib.asynccontextmanager
async def connected(handler: object, **options: Any) -> AsyncIterator[tuple[Any, socket.socket]]:
    """A server's end of a connection in this event loop, and the client's."""
    loop = asyncio.get_running_loop()
    server = fast.SMTPServer(handler, hostname="server", loop=loop, **options)
    ours, theirs = socket.socketpair()
    with ours:
        for sock in (ours, theirs):
            sock.setblocking(False)
        await loop.connect_accepted_socket(lambda: server, theirs)
        yield server, ours
    while server.transport is not None:
        await asyncio.sleep(0)


async def replies(sock: socket.socket, count: int) -> list[bytes]:
    data = bytearray()
    while data.count(b"\r\n") < count:
        data += await asyncio.get_running_loop().sock_recv(sock, 1_000_000)
    return bytes(data).splitlines()


def test_a_client_that_reads_no_replies_is_not_worked_for() -> None:
    asked = 0
    commands = 20_000

    class Verbose(Handler):
        async def handle_RCPT(self, *args: Any) -> str:
            nonlocal asked
            asked += 1
            return "250 " + "x" * 500

    async def run() -> None:
        async with connected(Verbose()) as (_, client):
            stream = b"HELO x\r\nMAIL FROM:<a@b.c>\r\n" + b"RCPT TO:<d@e.f>\r\n" * commands
            loop = asyncio.get_running_loop()
            sending = loop.create_task(loop.sock_sendall(client, stream))
            before = -1
            while asked > before or not asked:
                before = asked
                for _ in range(10):
                    await asyncio.sleep(0)
            assert asked < 3000
            assert len(await replies(client, commands + 3)) == commands + 3
            await sending

    asyncio.run(asyncio.wait_for(run(), 60))
    assert asked == commands


def test_what_follows_a_message_may_come_though_reading_was_paused() -> None:
    """asyncio's TLS up to Python 3.10 hands on every record that it has."""

    async def run() -> None:
        handler = Handler()
        async with connected(handler) as (server, client):
            begin = b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<d@e.f>\r\nDATA\r\n"
            client.send(begin)
            await replies(client, 5)
            client.send(b"te")
            while server._reception is None:
                await asyncio.sleep(0)
            for record in (b"xt\r\n.\r\nNO", b"OP\r\nVR", b"FY x\r\n"):
                server.data_received(record)
            assert [reply[:3] for reply in await replies(client, 3)] == [b"250", b"250", b"252"]
        assert handler.received == [b"text\r\n"]

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("smtputf8", [True, False])
def test_a_reply_beyond_ascii(smtputf8: bool) -> None:
    """Without SMTPUTF8 it is the handler's mistake, as in aiosmtpd."""

    class Umlauts(Handler):
        async def handle_RCPT(self, *args: Any) -> str:
            return "250 grüße"

    async def run() -> None:
        async with connected(Umlauts(), enable_SMTPUTF8=smtputf8) as (_, client):
            client.send(b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<d@e.f>\r\n")
            last = (await replies(client, 4))[-1]
            assert last == "250 grüße".encode() if smtputf8 else last.startswith(b"500 ")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_pipelined_messages_do_not_wait_for_each_other() -> None:
    one = b"MAIL FROM:<a@b.c>\r\nRCPT TO:<d@e.f>\r\nDATA\r\n" + b"x" * 70 + b"\r\n.\r\n"
    with serving() as (port, handler), Line(port) as line:
        line.say(b"EHLO x")
        sender = threading.Thread(target=line.send, args=(one * 2000 + b"QUIT\r\n",))
        sender.start()
        replies = line.file.read()
        sender.join()
    assert len(handler.received) == 2000
    assert replies.endswith(b"221 Bye\r\n")


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("chunking", [True, False])
def test_ehlo_offers_what_is_switched_on(pipelining: bool, chunking: bool) -> None:
    options = serving(pipelining=pipelining, chunking=chunking)
    with options as (port, _), SMTP("127.0.0.1", port, timeout=60) as client:
        client.ehlo()
        assert client.has_extn("pipelining") == pipelining
        assert client.has_extn("chunking") == chunking
        assert client.docmd("BDAT") == (
            (501, b"Syntax: BDAT <size> [LAST]")
            if chunking
            else (500, b'Error: command "BDAT" not recognized')
        )


def test_a_handlers_own_ehlo_sees_and_decides_what_is_offered() -> None:
    class Own(Handler):
        async def handle_EHLO(
            self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]
        ) -> list[str]:
            session.host_name = hostname
            assert "250-CHUNKING" in responses
            return [line for line in responses if "CHUNKING" not in line]

    controller = fast.Controller(Own(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        with SMTP("127.0.0.1", controller.port) as client:
            client.ehlo()
            assert client.has_extn("pipelining")
            assert not client.has_extn("chunking")
    finally:
        controller.stop()


def test_chunks_make_one_message() -> None:
    with serving() as (port, handler), Line(port) as line:
        line.begin()
        line.send(b"BDAT 4\r\na\r\n.BDAT 0\r\nBDAT 8 last\r\n\r\nQUIT\r\nNOOP\r\n")
        assert [line.reply()[:12] for _ in range(4)] == [
            b"250 4 octets",
            b"250 0 octets",
            b"250 taken",
            b"250 OK",
        ]
    assert handler.received == [b"a\r\n.\r\nQUIT\r\n"]


def test_a_chunk_out_of_turn_is_read_and_refused() -> None:
    chunk, last_chunk = b"BDAT 6\r\nQUIT", b"BDAT 6 LAST\r\nQUIT"  # say() adds CR LF
    with serving() as (port, handler), Line(port) as line:
        assert line.say(chunk)[:3] == b"503"
        line.say(b"EHLO x")
        assert line.say(last_chunk)[:3] == b"503"
        assert line.say(chunk)[:3] == b"503"
        assert line.say(b"MAIL FROM:<a@b.c>", b"RCPT TO:<d@e.f>", b"DATA")[:3] == b"354"
        assert line.say(b"text\r\n.") == b"250 taken"
        line.begin()
        assert line.say(chunk)[:3] == b"250"
        assert line.say(b"DATA")[:3] == b"503"
        assert line.say(b"RSET")[:3] == b"250"
        assert line.say(last_chunk)[:3] == b"503"
        line.begin()
        assert line.say(last_chunk) == b"250 taken"
    assert handler.received == [b"text\r\n", b"QUIT\r\n"]


def test_authentication_is_asked_of_chunks_too() -> None:
    with serving(auth_required=True) as (port, _), Line(port) as line:
        line.say(b"EHLO x")
        assert line.say(b"BDAT 6 LAST\r\nQUIT")[:3] == b"530"
        assert line.say(b"NOOP") == b"250 OK"


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_chunk_without_authentication_leaves_nothing_for_later() -> None:
    def authenticator(*args: Any) -> stock_smtp.AuthResult:
        return stock_smtp.AuthResult(success=True)

    options: dict[str, Any] = {"auth_require_tls": False, "authenticator": authenticator}
    with serving(auth_required=True, **options) as (port, handler), Line(port) as line:
        line.say(b"EHLO x")
        assert line.say(b"BDAT 6\r\nQUIT")[:3] == b"530"
        assert line.say(b"AUTH PLAIN AGFubmUAc2VjcmV0")[:3] == b"235"
        assert line.say(b"MAIL FROM:<a@b.c>", b"RCPT TO:<d@e.f>", b"DATA")[:3] == b"354"
        assert line.say(b"text\r\n.") == b"250 taken"
    assert handler.received == [b"text\r\n"]


@pytest.mark.parametrize("argument", [b"", b" x", b" -1", b" 5 LAST x", b" 1_0", b" 5LAST"])
def test_a_chunk_of_unknown_size_ends_the_connection(argument: bytes) -> None:
    recipients: list[str] = []
    with serving() as (port, handler):
        take = handler.handle_RCPT

        async def noted(*args: Any) -> str:
            recipients.append(args[3])
            return await take(*args)

        watched: Any = handler
        watched.handle_RCPT = noted
        with Line(port) as line:
            line.begin()
            line.send(b"BDAT" + argument + b"\r\nRCPT TO:<smuggled@x.y>\r\nDATA\r\na\r\n.\r\n")
            assert line.file.read() == b"501 Syntax: BDAT <size> [LAST]\r\n"
        send(port, TEXT)
    assert handler.received == [TEXT]
    assert recipients == ["d@e.f", RECIPIENT]


@pytest.mark.parametrize("limit", [0, None])
def test_without_a_limit_any_chunk_is_taken(limit: int | None) -> None:
    with serving(data_size_limit=limit) as (port, handler), Line(port) as line:
        line.begin()
        assert line.say(b"BDAT 6 LAST\r\nabcd") == b"250 taken"
    assert handler.received == [b"abcd\r\n"]


def test_chunks_beyond_the_limit_are_refused_and_not_held() -> None:
    with serving(data_size_limit=10) as (port, handler), Line(port) as line:
        line.begin()
        assert line.say(b"BDAT 8\r\n123456")[:3] == b"250"
        line.send(b"BDAT 3\r\nabcNOOP\r\n")
        assert [line.reply()[:3], line.reply()[:3]] == [b"552", b"250"]
        assert line.say(b"BDAT 3 LAST\r\na")[:3] == b"503"
        line.begin()
        line.send(b"BDAT 4\r\nabcdBDAT 6 LAST\r\n1234\r\n")
        assert [line.reply()[:3], line.reply()] == [b"250", b"250 taken"]
    assert handler.received == [b"abcd1234\r\n"], "just enough"


@pytest.mark.parametrize("end", [b"\n.\r\n", b"\r.\r\n", b"\r\n.\n", b"\n.\n", b"\r\n.\r"])
def test_smuggling_is_content_or_refused_but_never_the_end(end: bytes) -> None:
    stream = ENVELOPE + b"a" + end + b"RSET\r\n.\r\n"
    for refuse, reply in [(False, b"250 taken"), (True, b"554 5.6.0")]:
        with serving(refuse_smuggling=refuse) as (port, handler), Line(port) as line:
            line.send(stream)
            assert [line.reply()[:3] for _ in range(4)] == [b"250", b"250", b"250", b"354"]
            assert line.reply().startswith(reply)
            assert line.say(b"NOOP") == b"250 OK"
        # A dot behind CR LF is doubled by honest clients, so the one here is taken off.
        content = (b"a" + end + b"RSET\r\n").replace(b"\r\n.", b"\r\n")
        assert handler.received == ([] if refuse else [content])


@pytest.mark.parametrize("cut", range(1, 5))
def test_chunks_are_refused_for_smuggling_too_and_crlf_around_a_dot_is_content(cut: int) -> None:
    bad, good = b"a\n.\r\nb\r\n", b"a\r\n.\r\nb\r\n"
    with serving(refuse_smuggling=True) as (port, handler), Line(port) as line:
        for message, first, last in ((bad, b"250", b"554"), (good, b"250", b"250")):
            line.begin()
            line.send(b"BDAT %d\r\n%b" % (cut, message[:cut]))
            assert line.reply()[:3] == (last if cut > 3 and message == bad else first)
            line.send(b"BDAT %d LAST\r\n%b" % (len(message) - cut, message[cut:]))
            assert line.reply()[:3] == (b"503" if cut > 3 and message == bad else last)
    assert handler.received == [good]


@pytest.mark.parametrize("chunking", [True, False])
@pytest.mark.parametrize("spool_bytes", [0, len(TEXT), 1_000_000])
def test_long_content_is_spooled(tmp_path: Path, spool_bytes: int, chunking: bool) -> None:
    with serving(spool_bytes=spool_bytes, spool_dir=tmp_path) as (port, handler):
        for message in (TEXT, LARGE):
            send(port, message, chunking=chunking)
    assert handler.received == [TEXT, LARGE]
    assert handler.spooled == [len(TEXT) > spool_bytes, True]
    assert all(file.closed for file in handler.files)
    assert list(tmp_path.iterdir()) == []


def test_iterated_chunks_are_spooled(tmp_path: Path) -> None:
    with serving(spool_bytes=1000, spool_dir=tmp_path) as (port, handler):
        send(port, (LARGE[at : at + 70_000] for at in range(0, len(LARGE), 70_000)))
    assert (handler.received, handler.spooled) == ([LARGE], [True])


def test_too_much_is_refused_when_it_is_in_a_file_already(tmp_path: Path) -> None:
    with serving(spool_bytes=1000, spool_dir=tmp_path, data_size_limit=2 * len(LARGE)) as (
        port,
        handler,
    ):
        send(port, LARGE, chunking=False)
        with Line(port) as line:
            line.begin()
            assert line.say(b"DATA")[:3] == b"354"
            line.send(LARGE * 3 + b".\r\n")
            assert line.reply()[:3] == b"552"
            assert line.say(b"NOOP") == b"250 OK"
            assert open_files_in(tmp_path) == []
    assert handler.spooled == [True]


@pytest.mark.parametrize("chunking", [True, False])
def test_a_full_disk_is_a_refusal_for_now(monkeypatch: Any, chunking: bool) -> None:
    def full(**options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serving(spool_bytes=1000) as (port, handler):
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryFile", full)
            with pytest.raises(smtplib.SMTPDataError) as refused:
                send(port, LARGE, chunking=chunking)
        assert refused.value.smtp_code == 452
        send(port, LARGE, chunking=chunking)
    assert handler.received == [LARGE]


def test_a_disk_that_fills_up_later_breaks_no_chunk(monkeypatch: Any) -> None:
    """What the disk did not take stays in the file's buffer, and closing it fails once more."""

    def full(**options: Any) -> Any:
        return open("/dev/full", "w+b")

    with serving(spool_bytes=5) as (port, handler), Line(port) as line:
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        line.begin()
        assert line.say(b"BDAT 10\r\n12345678")[:3] == b"452"
        line.begin()
        assert (
            line.say(b"DATA", b"12345678\r\n.") == b"452 4.3.1 Error: insufficient system storage"
        )
        assert line.say(b"NOOP") == b"250 OK"
    assert handler.received == []


def test_many_chunks_are_held_once() -> None:
    block = b"x" * 100_000

    async def peak() -> tuple[int, bytes]:
        content = Content(asyncio.get_running_loop(), None, None)
        tracemalloc.start()
        try:
            for _ in range(100):
                await content.add(bytes(bytearray(block)))  # a block of its own each time
            joined = content.joined()
            return tracemalloc.get_traced_memory()[1], joined
        finally:
            tracemalloc.stop()

    most, joined = asyncio.run(peak())
    assert joined == block * 100
    assert most < 1.5 * len(joined)


def test_a_spool_file_made_after_its_client_left_is_closed(monkeypatch: Any) -> None:
    made: list[Any] = []
    real = tempfile.TemporaryFile

    async def leave_while_the_file_is_made() -> None:
        content = Content(asyncio.get_running_loop(), 0, None)

        def late(**options: Any) -> Any:
            content.close()
            made.append(real(**options))
            return made[-1]

        monkeypatch.setattr(tempfile, "TemporaryFile", late)
        await content.add(b"data")

    asyncio.run(leave_while_the_file_is_made())
    assert [file.closed for file in made] == [True]


@pytest.mark.parametrize("chunking", [True, False])
def test_a_failing_handler_is_answered_and_the_connection_goes_on(chunking: bool) -> None:
    with serving() as (port, handler), SMTP("127.0.0.1", port, timeout=60) as client:
        client.chunking = chunking
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail("broken@example.com", [RECIPIENT], TEXT)
        assert refused.value.args == (500, b"Error: (LookupError) handler")
        client.sendmail(SENDER, [RECIPIENT], TEXT)
    assert handler.received == [TEXT]


@pytest.mark.parametrize(
    "command", [b"DATA", b"BDAT 10000000 LAST", b"BDAT 10000000", b"BDAT %d" % len(LARGE)]
)
def test_a_client_that_leaves_in_its_data_leaves_nothing_behind(
    tmp_path: Path, command: bytes
) -> None:
    with serving(spool_bytes=1000, spool_dir=tmp_path) as (port, handler):
        with Line(port) as line:
            line.begin()
            line.send(command + b"\r\n" + LARGE)
        send(port, TEXT)  # the server goes on
        wait_for(lambda: not open_files_in(tmp_path), "the spool file is closed")
    assert handler.received == [TEXT]


def test_a_slow_disk_holds_the_client_and_not_its_data_in_memory(monkeypatch: Any) -> None:
    real, disk_is_back = tempfile.TemporaryFile, threading.Event()
    server: Any = None

    def slow(**options: Any) -> Any:
        assert disk_is_back.wait(60)
        return real(**options)

    class Watching(fast.Controller):
        def factory(self) -> Any:
            nonlocal server
            server = super().factory()
            return server

    monkeypatch.setattr(tempfile, "TemporaryFile", slow)
    with serving(Watching, spool_bytes=0) as (port, handler), Line(port) as line:
        line.begin()
        size = 30_000_000  # more than the buffers of a connection over loopback
        sender = threading.Thread(
            target=line.send, args=(b"BDAT %d LAST\r\n" % size + b"x" * size,)
        )
        sender.start()
        try:
            wait_for(lambda: server.transport.is_reading() is False, "the server reads no more")
            assert sender.is_alive()
        finally:
            disk_is_back.set()
            sender.join()
        assert line.reply() == b"250 taken"
    assert list(map(len, handler.received)) == [size]


@pytest.mark.parametrize("command", [b"DATA", b"BDAT 10000000"])
def test_every_piece_of_a_message_begins_the_timeout_anew(command: bytes) -> None:
    class Own(Handler):
        server: Any = None

        async def handle_RCPT(self, server: Any, *args: Any) -> str:
            self.server = server
            return await super().handle_RCPT(server, *args)

    handler = Own()
    controller = fast.Controller(handler, hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        with Line(controller.port) as line:
            line.begin()
            line.send(command + b"\r\na piece\r\n")
            wait_for(lambda: handler.server._reception is not None, "data is waited for")
            for _ in range(2):
                timer = handler.server._timeout_handle
                line.send(b"a piece\r\n")
                wait_for(timer.cancelled, "the timeout begins anew")
                wait_for(
                    lambda: not handler.server._timeout_handle.cancelled(), "there is another one"
                )
        wait_for(lambda: handler.server.transport is None, "the client has left")
    finally:
        controller.stop()


def open_files_in(folder: Path) -> list[str]:
    """Files of this process in a folder, deleted ones too."""
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(str(link.readlink()))
    return [name for name in names if name.startswith(str(folder))]


def nodelay(client: smtplib.SMTP) -> int:
    assert client.sock is not None
    return client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("spool_bytes", [None, 1000])
@pytest.mark.parametrize("chunking", [True, False])
def test_starttls(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, chunking: bool, spool_bytes: int | None
) -> None:
    options: dict[str, Any] = {"tls_context": server_tls, "spool_bytes": spool_bytes}
    with (
        serving(require_starttls=True, **options) as (port, handler),
        SMTP("localhost", port, timeout=60) as client,
    ):
        client.ehlo()
        assert not client.has_extn("chunking")  # no data before STARTTLS
        client.starttls(context=client_tls)
        client.chunking = chunking
        for message in (LARGE, TEXT):
            client.sendmail(SENDER, [RECIPIENT], message)
        assert client.has_extn("chunking")
        assert nodelay(client)
    assert handler.received == [LARGE, TEXT]


def test_implicit_tls(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    with (
        serving(ssl_context=server_tls) as (port, handler),
        SMTP_SSL("localhost", port, context=client_tls, timeout=60) as client,
        path.open("rb") as file,
    ):
        assert nodelay(client)
        client.sendmail(SENDER, [RECIPIENT], file)
    assert handler.received == [LARGE]


def test_unthreaded_controller_and_unix_sockets(tmp_path: Path) -> None:
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
        asyncio.set_event_loop(made.loop)  # else the server makes one, which nobody closes
        try:
            assert isinstance(made.factory(), fast.SMTPServer)
        finally:
            asyncio.set_event_loop(None)
            made.loop.close()


def test_process_message_is_not_called_beside_handle_data() -> None:
    class Both(Handler):
        def process_message(self, *args: Any) -> str:
            raise AssertionError("the message was handled already")

    with serving(handler=Both()) as (port, handler):
        send(port, TEXT)
    assert handler.received == [TEXT]


def test_a_handler_of_nothing_is_answered_as_by_aiosmtpd() -> None:
    with serving(handler=object()) as (port, _), Line(port) as line:
        line.begin()
        assert line.say(b"DATA", b"text\r\n.") == b"250 OK"


def old_reply(*args: Any) -> str | None:
    return None if args[1] == SENDER else "550 not you"


async def awaited_old_reply(*args: Any) -> str | None:
    return old_reply(*args)


@pytest.mark.parametrize("reply", [old_reply, awaited_old_reply])
def test_process_message_is_still_called(reply: Any) -> None:
    class Old:
        process_message = staticmethod(reply)

    controller = fast.Controller(Old(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        with SMTP("127.0.0.1", controller.port, timeout=60) as client:
            with pytest.warns(DeprecationWarning, match="handle_DATA"):
                client.sendmail(SENDER, [RECIPIENT], TEXT)
            with (
                pytest.warns(DeprecationWarning, match="handle_DATA"),
                pytest.raises(smtplib.SMTPDataError) as refused,
            ):
                client.sendmail(RECIPIENT, [RECIPIENT], TEXT)
        assert refused.value.args == (550, b"not you")
    finally:
        controller.stop()


def test_curl_delivers(tmp_path: Path) -> None:
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
        {"chunking": "no"},
        {"refuse_smuggling": 1},
    ],
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(ConfigurationError, match=name):
        fast.SMTPServer(Handler(), **options)
    with pytest.raises(ConfigurationError, match=name):
        fast.Controller(Handler(), **options)


def test_a_folder_to_spool_to_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="which is not a directory"):
        fast.Controller(Handler(), spool_bytes=0, spool_dir=tmp_path / "none")


def test_what_is_relied_on_in_aiosmtpd() -> None:
    """Names that aiosmtpd does not document: a change in a new version shows here."""
    source = inspect.getsource(stock_smtp.SMTP)
    for name in (
        "_call_handler_hook",
        "_decode_data",
        "_ehlo_hook_ver",
        "_getaddr",
        "_handle_hooks",
        "_reader",
        "_set_post_data_state",
        "_create_envelope",
        "_smtp_methods",
        "_tls_protocol",
        "_auth_required",
        "_handler_coroutine",
        "_writer",
    ):
        assert name in source
    assert list(inspect.signature(stock_smtp.SMTP._call_handler_hook).parameters) == [
        "self",
        "command",
        "args",
    ]


def test_without_aiosmtpd_the_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['aiosmtpd'] = None; import wsgifast.mail, wsgifast;\n"
        "try: import wsgifast.mail.server\n"
        "except wsgifast.MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'wsgifast[mail]'" in done.stdout
