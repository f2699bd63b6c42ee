"""APPEND in one send, over a real Dovecot and over a scripted server."""

from __future__ import annotations

import contextlib
import imaplib
import math
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.mailservers import PASSWORD, USER, Dovecot, dovecot
from wsgifast import ConfigurationError
from wsgifast.mail import IMAP4, IMAP4_SSL

MESSAGE = b"Subject: hello\r\n\r\nfirst\r\nlast"
MIXED = b"Subject: hello\n\nbare LF\rbare CR\r\n"
REPAIRED = b"Subject: hello\r\n\r\nbare LF\r\nbare CR\r\n"


class Sends:
    """A socket that records the bytes of each send."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))
        self._sock.sendall(data)

    def send(self, data: bytes, flags: int = 0) -> int:
        self.sent.append(bytes(data))
        self._sock.sendall(data)
        return len(data)

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        return self.send(b"".join(buffers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def watched(client: Any) -> Sends:
    client.sock = sends = Sends(client.sock)
    return sends


def fetched(client: Any) -> list[bytes]:
    client.select("INBOX")
    _, found = client.search(None, "ALL")
    numbers = found[0].split()
    return [client.fetch(number.decode(), "(RFC822)")[1][0][1] for number in numbers]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def mailbox(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dovecot]:
    folder: Path = tmp_path_factory.mktemp("imap")
    certificate = authority.issue_cert("localhost")
    files = folder / "cert.pem", folder / "key.pem"
    certificate.private_key_pem.write_to_path(str(files[1]))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(files[0]), append=True)
    with dovecot(certificate=files) as server:
        yield server


@pytest.mark.parametrize("transport", ["plain", "starttls", "tls"])
def test_append_to_dovecot_is_one_send(
    mailbox: Dovecot, authority: trustme.CA, transport: str
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if transport == "tls":
        client: Any = IMAP4_SSL("localhost", mailbox.tls_port, ssl_context=context, timeout=60)
    else:
        client = IMAP4("localhost", mailbox.port, timeout=60)
    with client:
        if transport == "starttls":
            client.starttls(context)
        client.login(transport, PASSWORD)
        assert client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        sends = watched(client)
        assert client.append("INBOX", r"\Seen", None, MESSAGE)[0] == "OK"
        assert client.append(None, None, imaplib.Time2Internaldate(0), MIXED)[0] == "OK"
        assert client.append("Missing", None, None, MESSAGE)[0] == "NO"
        assert [data.count(b"\r\n") for data in sends.sent] == [5, 6, 5]
        literal = b"{%d+}\r\n%b\r\n" % (len(MESSAGE), MESSAGE)
        assert sends.sent[0].endswith(b" APPEND INBOX (\\Seen) " + literal)
        assert fetched(client) == [MESSAGE, REPAIRED]


def test_mailbox_after_append_is_as_with_imaplib(mailbox: Dovecot) -> None:
    contents = []
    for user, client_class in (("stock", imaplib.IMAP4), ("ours", IMAP4)):
        with client_class("localhost", mailbox.port, timeout=60) as client:
            client.login(user, PASSWORD)
            for number in range(20):
                message = b"Subject: %d\r\n\r\n" % number + b"x\ny\r\n" * 40_000
                assert client.append("INBOX", r"(\Flagged)", None, message)[0] == "OK"
            assert client.noop()[0] == "OK"
            contents.append(fetched(client))
    assert contents[0] == contents[1]
    assert len(contents[0]) == 20


def test_append_literal_and_line_end_leave_together() -> None:
    with dovecot() as server, IMAP4("localhost", server.port, timeout=60) as client:
        client.login(USER, PASSWORD)
        client.capabilities = ("IMAP4REV1",)  # as if it had announced no more capabilities
        sends = watched(client)
        for _ in range(3):
            assert client.append("INBOX", None, None, MESSAGE)[0] == "OK"
        assert client.append("Missing", None, None, MESSAGE)[0] == "NO"
        assert sends.sent[1:6:2] == [MESSAGE + b"\r\n"] * 3
        announced = b"{%d}\r\n" % len(MESSAGE)
        assert [data.endswith(announced) for data in sends.sent[:6]] == [True, False] * 3
        assert fetched(client) == [MESSAGE] * 3


class ScriptedIMAP:
    """Accept any login, and answer each other line with the next of some replies."""

    def __init__(self, capability: bytes, replies: list[bytes]) -> None:
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._prologue = {  # in any order, since newer imaplibs ask again after the login
            b"CAPABILITY": b"* CAPABILITY IMAP4rev1 " + capability + b"\r\nTAG OK done\r\n",
            b"LOGIN": b"TAG OK in\r\n",
        }
        self._replies = replies
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> ScriptedIMAP:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.close()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.received

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(60)
            sock.sendall(b"* OK hello\r\n")
            tag = b""
            replies = iter(self._replies)
            while data := sock.recv(1 << 20):
                self.received += data
                if not data.startswith(MESSAGE):
                    tag, verb = data.split()[:2]
                reply = self._prologue.get(verb) or next(replies)
                sock.sendall(reply.replace(b"TAG", tag))
                if b"BYE" in reply:
                    return


@contextlib.contextmanager
def scripted(
    capability: bytes, replies: list[bytes], client_class: type[imaplib.IMAP4] = IMAP4
) -> Iterator[tuple[ScriptedIMAP, Any]]:
    """A server, and a client that has logged in."""
    with ScriptedIMAP(capability, replies) as server:
        client: Any = client_class("127.0.0.1", server.port, timeout=60)
        client.login(USER, PASSWORD)
        yield server, client
        client.shutdown()


@pytest.mark.parametrize(
    ("capability", "size", "at_once"),
    [(b"LITERAL-", 4096, True), (b"LITERAL-", 4097, False), (b"LITERAL+", 4097, True)],
)
def test_literal_minus_is_used_up_to_its_limit(capability: bytes, size: int, at_once: bool) -> None:
    replies = [b"TAG OK done\r\n"] if at_once else [b"+ go\r\n", b"TAG OK done\r\n"]
    message = MESSAGE.ljust(size, b"x")
    with scripted(capability, replies) as (server, client):
        assert client.append("INBOX", None, None, message)[0] == "OK"
    assert (b"{%d+}" % size in server.received) == at_once
    assert server.received.endswith(b"\r\n" + message + b"\r\n")


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([b"TAG NO [TRYCREATE] none\r\n"], ("NO", [b"[TRYCREATE] none"])),
        ([b"TAG BAD what\r\n"], imaplib.IMAP4.error),
        ([b"* BYE going\r\n"], imaplib.IMAP4.abort),
    ],
)
@pytest.mark.parametrize("capability", [b"LITERAL+", b""])
def test_refused_append_leaves_nothing_like_imaplib(
    replies: list[bytes], outcome: Any, capability: bytes
) -> None:
    results: list[Any] = []
    for client_class in (imaplib.IMAP4, IMAP4):
        announced = b"" if client_class is imaplib.IMAP4 else capability
        with scripted(announced, [*replies, b"TAG OK noop\r\n"], client_class) as (_, client):
            try:
                results.append(client.append("INBOX", None, None, MESSAGE))
            except imaplib.IMAP4.error as error:
                results.append(type(error))
            if outcome is not imaplib.IMAP4.abort:
                assert client.noop() == ("OK", [b"noop"])
    assert results == [outcome, outcome]


@pytest.mark.parametrize("capability", ["LITERAL+", "IMAP4REV1"])
@pytest.mark.parametrize("size", [0, 512 * 1024, 5_000_000])
def test_long_message_is_appended_without_a_copy(
    mailbox: Dovecot, capability: str, size: int
) -> None:
    message = b"Subject: long\r\n\r\n".ljust(size, b"x")
    with IMAP4("localhost", mailbox.port, timeout=60) as client:
        client.login(f"long{size}{capability[:4]}", PASSWORD)
        client.capabilities = ("IMAP4REV1", capability)
        sends = watched(client)
        tracemalloc.start()
        assert client.append("INBOX", None, None, message)[0] == "OK"
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # The command waits for permission where it must.
        assert len(sends.sent) == 1 + (capability != "LITERAL+")
        assert fetched(client) == [message]
    assert most < size + 500_000  # the bytes in `sends`


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_append_of_no_bytes_is_refused_before_a_send(wrong: Any) -> None:
    with scripted(b"LITERAL+", [b"TAG OK noop\r\n"]) as (server, client):
        with pytest.raises(TypeError):
            client.append("INBOX", None, None, wrong)
        assert client.noop() == ("OK", [b"noop"])
    assert b"APPEND" not in server.received


def test_append_takes_any_buffer() -> None:
    date = imaplib.Time2Internaldate(0)
    with scripted(b"LITERAL+", [b"TAG OK done\r\n"]) as (server, client):
        assert client.append("INBOX", None, date, bytearray(MIXED))[0] == "OK"
    assert b" APPEND INBOX %b {" % date.encode() in server.received
    assert server.received.endswith(REPAIRED + b"\r\n")


def test_append_in_utf8_mode_is_imaplibs() -> None:
    with scripted(b"LITERAL+ ENABLE UTF8=ACCEPT", [b"TAG OK\r\n"]) as (_, client):
        client._mode_utf8()
        calls: list[object] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(imaplib.IMAP4, "append", lambda *args: calls.append(args))
            client.append("INBOX", None, None, MESSAGE)
        assert len(calls) == 1


@pytest.mark.parametrize(
    "command",
    [
        lambda client, break_: client.append("INBOX" + break_, None, None, MESSAGE),
        lambda client, break_: client.append("INBOX", r"\Seen" + break_, None, MESSAGE),
        lambda client, break_: client.append("INBOX", None, f'"{break_}"', MESSAGE),
        lambda client, break_: client.select("INBOX" + break_),
        lambda client, break_: client.create("a" + break_),
        lambda client, break_: client.search(None, "SUBJECT", f'"a{break_}"'),
        lambda client, break_: client.status(f"a{break_}", "(MESSAGES)"),
        lambda client, break_: client.xatom("ID", f"a{break_}".encode()),
    ],
)
@pytest.mark.parametrize("capability", [b"LITERAL+", b""])
def test_imap_argument_with_a_line_end_is_refused(
    command: Callable[[Any, str], object], capability: bytes
) -> None:
    breaks = ["\r\nTAG NOOP", "\n", "\r", "\0"]
    with scripted(capability, [b"TAG OK noop\r\n"] * len(breaks)) as (server, client):
        before = server.received
        for break_ in breaks:
            with pytest.raises(ValueError, match="contains NUL, CR or LF"):
                command(client, break_)
            assert client.noop() == ("OK", [b"noop"]), break_
    sent = server.received.removeprefix(before)
    assert sent.split()[1::2] == [b"NOOP"] * len(breaks)


def test_password_with_line_end_is_refused_unshown() -> None:
    with ScriptedIMAP(b"", []) as server:
        client = IMAP4("127.0.0.1", server.port, timeout=60)
        with pytest.raises(ValueError, match="contains NUL, CR or LF") as refused:
            client.login(USER, "secret\r\nTAG NOOP")
        assert "secret" not in str(refused.value)
        client.shutdown()
    assert b"LOGIN" not in server.received


@pytest.mark.parametrize("flags", [None, r"\Seen", r"(\Seen \Flagged)"])
@pytest.mark.parametrize("mailbox", [None, "INBOX", '"two words"', "two words", b"Sent", ""])
def test_append_arguments_equal_imaplibs(mailbox: Any, flags: str | None) -> None:
    lines = []
    for client_class, capability in ((imaplib.IMAP4, b""), (IMAP4, b""), (IMAP4, b"LITERAL+")):
        replies = [b"TAG NO not here\r\n"]
        with scripted(capability, replies, client_class) as (server, client):
            before = server.received
            assert client.append(mailbox, flags, 0, MESSAGE) == ("NO", [b"not here"])
        sent = server.received.removeprefix(before)
        lines.append(sent[: sent.index(b"\r\n")].replace(b"+}", b"}").split()[1:])
    assert lines[0] == lines[1] == lines[2]
    assert lines[0][0] == b"APPEND"


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, 1e8, None], ids=str)
def test_imap_client_without_a_time_limit_connects(mailbox: Dovecot, timeout: Any) -> None:
    for client in (
        IMAP4("localhost", mailbox.port, timeout),
        IMAP4("localhost", mailbox.port, timeout=timeout),
    ):
        with client:
            assert client.sock.gettimeout() is None
            client.login(USER, PASSWORD)


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", True], ids=repr)
@pytest.mark.parametrize("client_class", [IMAP4, IMAP4_SSL])
def test_imap_client_with_wrong_time_limit_is_refused(
    client_class: type[IMAP4], timeout: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout=.*: seconds from 0 on; math\.inf"):
        client_class("localhost", 1, timeout=timeout)
