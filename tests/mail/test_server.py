"""The server: aiosmtpd's commands and replies, the fast path for data, and BDAT."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiosmtpd import controller as stock_controller
from aiosmtpd import smtp as stock_smtp
from hypothesis import given
from hypothesis import strategies as st

from tests.mail.serving import LARGE, RECIPIENT, SENDER, TEXT, Handler, Line, send, serving
from wsgifast.mail import SMTP
from wsgifast.mail import server as fast


@pytest.mark.parametrize("chunking", [True, False])
@pytest.mark.parametrize("message", [TEXT, b"", b".\r\n", LARGE, LARGE + b"."])
def test_message_arrives_whole(message: bytes, chunking: bool) -> None:
    with serving() as (port, handler):
        send(port, message, chunking=chunking)
        send(port, TEXT, chunking=chunking)
    whole = message if message.endswith(b"\r\n") else message + b"\r\n"
    assert handler.received == [whole, TEXT]


@pytest.mark.parametrize("client", [smtplib.SMTP, SMTP])
@pytest.mark.parametrize("controller", [stock_controller.Controller, fast.Controller])
def test_client_and_server_work_with_the_standard_ones(
    client: type[smtplib.SMTP], controller: type[Any]
) -> None:
    with serving(controller) as (port, handler):
        send(port, TEXT, client=client)
        with client("127.0.0.1", port, local_hostname="client", timeout=60) as smtp:
            refused = smtp.sendmail(SENDER, [RECIPIENT, "refused@example.com"], LARGE)
    assert refused == {"refused@example.com": (550, b"no such user")}
    assert handler.received == [TEXT, LARGE]


# The replies of each controller to the same bytes, sent at once: (name, stream, options).
CONVERSATIONS: list[tuple[str, bytes, dict[str, Any]]] = [
    ("no helo", b"DATA\r\nMAIL FROM:<a@b.c>\r\n", {}),
    ("no rcpt", b"HELO x\r\nDATA\r\n", {}),
    ("argument", b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<a@b.c>\r\nDATA now\r\n", {}),
    ("auth", b"HELO x\r\nMAIL FROM:<a@b.c>\r\nDATA\r\n", {"auth_required": True}),
    ("addresses", b"HELO x\r\nMAIL FROM:<a b>\r\nMAIL FROM:<@x:a@b.c>\r\nRCPT TO:a@b\r\n", {}),
    ("extended", b"EHLO x\r\nMAIL FROM:<a@b.c> SIZE=5 BODY=8BITMIME\r\nRCPT TO:<a@b> X=1\r\n", {}),
    ("too long for mail", b"EHLO x\r\nMAIL FROM:<a@b.c> SIZE=9\r\n", {"data_size_limit": 8}),
]
OFFERED = b"250-PIPELINING\r\n250-CHUNKING\r\n"  # only in our EHLO
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
def test_reply_is_aiosmtpds(stream: bytes, options: dict[str, Any]) -> None:
    def conversation(controller: type[Any], pieces: list[bytes]) -> object:
        with serving(controller, **options) as (port, handler), Line(port) as line:
            for piece in pieces:
                line.send(piece)
            line.send(b"NOOP end\r\nQUIT\r\n")
            return line.file.read().replace(OFFERED, b""), handler.received

    expected = conversation(stock_controller.Controller, [stream])
    assert conversation(fast.Controller, [stream]) == expected
    octets = [stream[at : at + 1] for at in range(len(stream))] if len(stream) < 500 else [stream]
    assert conversation(fast.Controller, octets) == expected


@given(
    st.text(st.sampled_from('ab.@<>" ()-_=\\1,:[]ä\t'), max_size=14).map(lambda t: f"<{t}>"),
    st.sampled_from(["", " SIZE=1", "  A B ", " (c) A", "X", " ä"]),
)
def test_plain_addresses_are_read_like_aiosmtpd(address: str, rest: str) -> None:
    loop = asyncio.new_event_loop()
    try:
        server = fast.SMTPServer(object(), loop=loop, hostname="x")
        try:
            expected = stock_smtp.SMTP._getaddr(server, address + rest)
        except (AttributeError, IndexError) as error:  # its parser fails for some: "<1@[>"
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


def test_many_waiting_replies_are_sent_before_the_last() -> None:
    with serving() as (port, _), Line(port) as line:
        line.say(b"EHLO x")
        line.send(b"MAIL FROM:<a@b.c>\r\n" + b"RCPT TO:<d@e.f>\r\n" * 5000 + b"QUIT\r\n")
        assert line.file.read() == b"250 OK\r\n" * 5001 + b"221 Bye\r\n"


@contextlib.asynccontextmanager
async def connected(handler: object, **options: Any) -> AsyncIterator[tuple[Any, socket.socket]]:
    """The server's end of a connection in this event loop, and the client's."""
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


async def test_client_reading_no_replies_pauses_commands() -> None:
    requested = 0
    commands = 20_000

    class Verbose(Handler):
        async def handle_RCPT(self, *args: Any) -> str:
            nonlocal requested
            requested += 1
            return "250 " + "x" * 500

    async with connected(Verbose()) as (_, client):
        stream = b"HELO x\r\nMAIL FROM:<a@b.c>\r\n" + b"RCPT TO:<d@e.f>\r\n" * commands
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(client, stream))
        before = -1
        while requested > before or not requested:
            before = requested
            for _ in range(10):
                await asyncio.sleep(0)
        assert requested < 3000
        assert len(await replies(client, commands + 3)) == commands + 3
        await sending
    assert requested == commands


async def test_input_after_a_message_is_read_though_paused() -> None:
    """An event loop may deliver input that arrived earlier."""
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


@pytest.mark.parametrize("smtputf8", [True, False])
async def test_non_ascii_reply_needs_smtputf8(smtputf8: bool) -> None:
    """Without SMTPUTF8 it is an error of the handler, like in aiosmtpd."""

    class Umlauts(Handler):
        async def handle_RCPT(self, *args: Any) -> str:
            return "250 grüße"

    async with connected(Umlauts(), enable_SMTPUTF8=smtputf8) as (_, client):
        client.send(b"HELO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<d@e.f>\r\n")
        last = (await replies(client, 4))[-1]
        assert last == "250 grüße".encode() if smtputf8 else last.startswith(b"500 ")


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


def test_ehlo_offers_pipelining_and_chunking() -> None:
    with serving() as (port, _), SMTP("127.0.0.1", port, timeout=60) as client:
        client.ehlo()
        assert client.has_extn("pipelining")
        assert client.has_extn("chunking")
        assert client.docmd("BDAT") == (501, b"Syntax: BDAT <size> [LAST]")


def test_handler_with_own_ehlo_decides_on_offers() -> None:
    class Own(Handler):
        async def handle_EHLO(
            self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]
        ) -> list[str]:
            session.host_name = hostname
            assert "250-CHUNKING" in responses
            return [line for line in responses if "CHUNKING" not in line]

    with serving(handler=Own()) as (port, _), SMTP("127.0.0.1", port) as client:
        client.ehlo()
        assert client.has_extn("pipelining")
        assert not client.has_extn("chunking")


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


def test_chunk_out_of_turn_is_read_and_refused() -> None:
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


def test_chunk_without_authentication_is_refused() -> None:
    with serving(auth_required=True) as (port, _), Line(port) as line:
        line.say(b"EHLO x")
        assert line.say(b"BDAT 6 LAST\r\nQUIT")[:3] == b"530"
        assert line.say(b"NOOP") == b"250 OK"


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_chunk_before_authentication_is_dropped() -> None:
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
def test_chunk_of_unknown_size_ends_the_connection(argument: bytes) -> None:
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
def test_chunk_without_a_size_limit_is_accepted(limit: int | None) -> None:
    with serving(data_size_limit=limit) as (port, handler), Line(port) as line:
        line.begin()
        assert line.say(b"BDAT 6 LAST\r\nabcd") == b"250 taken"
    assert handler.received == [b"abcd\r\n"]


def test_chunk_beyond_the_limit_is_refused_and_dropped() -> None:
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
def test_smuggled_end_is_content_or_refused(end: bytes) -> None:
    stream = ENVELOPE + b"a" + end + b"RSET\r\n.\r\n"
    for refuse, reply in [(False, b"250 taken"), (True, b"554 5.6.0")]:
        with serving(refuse_smuggling=refuse) as (port, handler), Line(port) as line:
            line.send(stream)
            assert [line.reply()[:3] for _ in range(4)] == [b"250", b"250", b"250", b"354"]
            assert line.reply().startswith(reply)
            assert line.say(b"NOOP") == b"250 OK"
        # Honest clients double a dot after CR LF, so the server removes the one here.
        content = (b"a" + end + b"RSET\r\n").replace(b"\r\n.", b"\r\n")
        assert handler.received == ([] if refuse else [content])


@pytest.mark.parametrize("cut", range(1, 5))
def test_smuggled_end_in_chunks_is_refused(cut: int) -> None:
    bad, good = b"a\n.\r\nb\r\n", b"a\r\n.\r\nb\r\n"
    with serving(refuse_smuggling=True) as (port, handler), Line(port) as line:
        for message, first, last in ((bad, b"250", b"554"), (good, b"250", b"250")):
            line.begin()
            line.send(b"BDAT %d\r\n%b" % (cut, message[:cut]))
            assert line.reply()[:3] == (last if cut > 3 and message == bad else first)
            line.send(b"BDAT %d LAST\r\n%b" % (len(message) - cut, message[cut:]))
            assert line.reply()[:3] == (b"503" if cut > 3 and message == bad else last)
    assert handler.received == [good]
