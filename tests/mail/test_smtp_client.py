"""The client: how it sends messages, files and iterables, and its errors."""

from __future__ import annotations

import email.message
import io
import smtplib
import socket
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mail.scripted import (
    FEATURES,
    LARGE,
    PLAIN,
    RECIPIENTS,
    SENDER,
    TEXT,
    ScriptedSMTP,
    connect,
    delivered,
)
from tests.support.calls import raising
from wsgifast.mail import SMTP
from wsgifast.mail import smtp as smtp_module


@pytest.mark.parametrize(
    "message", [TEXT, b"", b".", b"\r\n", LARGE, LARGE + b".", PLAIN, PLAIN + b"end"]
)
def test_bytes_arrive_as_smtplib_sends_them(features: tuple[str, ...], message: bytes) -> None:
    with ScriptedSMTP(features) as server, connect(server) as client:
        assert client.sendmail(SENDER, RECIPIENTS, message) == {}
        assert client.sendmail(SENDER, RECIPIENTS[0], message) == {}
    expected = delivered(message, chunked="CHUNKING" in features)
    assert server.messages == [expected, expected]
    assert server.commands[1] == f"mail from:<{SENDER}> size={len(message)}"


@pytest.mark.parametrize("message", [TEXT, b".\n.\r.\r\n", LARGE, b"\n." + PLAIN])
def test_data_is_to_the_byte_what_smtplib_sends(message: bytes) -> None:
    sent = []
    for client_class in (smtplib.SMTP, SMTP):
        for form in (message, message.decode()):
            with ScriptedSMTP(FEATURES["plain"]) as server, connect(server, client_class) as client:
                client.sendmail(SENDER, RECIPIENTS, form)
            sent.append(server.messages)
    assert sent[:2] == sent[2:]


def test_small_message_with_extensions_is_a_round_trip() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        client.ehlo()
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    transaction = next(data for data in server.reads if data.startswith(b"mail"))
    assert transaction.count(b"\r\nrcpt to:") == 2
    assert transaction.endswith(b"BDAT %d LAST\r\n%b\r\n" % (len(TEXT) + 2, TEXT))


def test_pipelined_envelope_is_one_send() -> None:
    with ScriptedSMTP(FEATURES["pipelining"]) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    transaction = next(data for data in server.reads if data.startswith(b"mail"))
    assert transaction.endswith(b"rcpt to:<cate@example.com>\r\ndata\r\n")


def test_large_message_waits_for_accepted_recipients() -> None:
    scripted = {"rcpt": ["550 no", "550 no"]}
    with ScriptedSMTP(scripted=scripted) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail(SENDER, RECIPIENTS, LARGE)
        assert server.verbs() == ["ehlo", "mail", "rcpt", "rcpt", "rset"]


@pytest.mark.parametrize("switch", ["pipelining", "chunking"])
def test_extension_switched_off_is_not_used(switch: str) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        setattr(client, switch, False)
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert ("bdat" in server.verbs()) == (switch == "pipelining")
    assert any(b"mail" in data and b"rcpt" in data for data in server.reads) == (
        switch == "chunking"
    )


def test_many_recipients_are_sent_in_groups() -> None:
    recipients = [f"r{number}@example.com" for number in range(1000)]
    scripted = {"rcpt": ["550 no", *["250 yes"] * 998, "551 no"]}
    with ScriptedSMTP(scripted=scripted) as server, connect(server) as client:
        refused = client.sendmail(SENDER, recipients, TEXT)
    assert refused == {"r0@example.com": (550, b"no"), "r999@example.com": (551, b"no")}
    assert max(data.count(b"rcpt") for data in server.reads) <= 100
    assert len(server.messages) == 1


def test_message_without_recipients_is_refused(features: tuple[str, ...]) -> None:
    with ScriptedSMTP(features) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.sendmail(SENDER, [], TEXT)
        assert refused.value.recipients == {}
        assert server.messages == []


def test_server_without_ehlo_gets_no_options() -> None:
    with ScriptedSMTP(None) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT, ["body=8bitmime"], ["notify=never"])
    assert server.commands[:4] == [
        "ehlo client",
        "helo client",
        f"mail from:<{SENDER}>",
        f"rcpt to:<{RECIPIENTS[0]}>",
    ]


def test_smtputf8_and_other_options_are_sent() -> None:
    features = (*FEATURES["both"], "SMTPUTF8")
    with ScriptedSMTP(features) as server, connect(server) as client:
        client.sendmail(
            "änne@example.com", ["bärt@example.com"], TEXT, ["SMTPUTF8"], ["notify=never"]
        )
    assert server.commands[1:3] == [
        f"mail from:<änne@example.com> size={len(TEXT)} SMTPUTF8",
        "rcpt to:<bärt@example.com> notify=never",
    ]


def test_smtputf8_without_extension_is_refused_unsent() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPNotSupportedError):
            client.sendmail(SENDER, RECIPIENTS, TEXT, ["smtputf8"])
        with pytest.raises(UnicodeEncodeError):
            client.sendmail("änne@example.com", RECIPIENTS, TEXT)
        assert server.verbs() == ["ehlo"]


def test_command_with_line_end_is_refused_unsent() -> None:
    bad = "\r\n"  # smtplib.quoteaddr strips most others
    with ScriptedSMTP() as server, connect(server) as client:
        for sender, recipients in ((bad, RECIPIENTS), (SENDER, [SENDER, bad])):
            with pytest.raises(ValueError, match="line end"):
                client.sendmail(sender, recipients, TEXT)
        for line_end in ("\r\n", "\r", "\n"):
            with pytest.raises(ValueError, match="line end"):
                client.sendmail(SENDER, RECIPIENTS, TEXT, [f"size=1{line_end}rset"])
        assert server.verbs() == ["ehlo"]


@pytest.mark.parametrize("wrong", [5, None, email.message.EmailMessage()])
def test_object_that_is_no_message_is_refused_unsent(wrong: Any) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        with pytest.raises(TypeError):
            client.sendmail(SENDER, RECIPIENTS, wrong)
        assert server.verbs() == ["ehlo"]


def test_message_object_is_sent_by_send_message(features: tuple[str, ...]) -> None:
    message = email.message.EmailMessage()
    message["From"], message["To"], message["Subject"] = SENDER, ", ".join(RECIPIENTS), "hello"
    message.set_content(".dot\nend\n")
    with ScriptedSMTP(features) as server, connect(server) as client:
        assert client.send_message(message) == {}
    dot = b".dot" if "CHUNKING" in features else b"..dot"
    assert server.messages[0].endswith(b"\r\n\r\n" + dot + b"\r\nend\r\n")


class Unseekable(io.RawIOBase):
    """A file that the kernel cannot send."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


def blocks_of(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("message", [TEXT, LARGE, LARGE * 3 + b"end", b"\r\n.", b"\r\n", b"."])
@pytest.mark.parametrize("kind", ["file", "stream", "reader", "iterable"])
def test_file_or_iterable_is_sent_as_a_message(
    tmp_path: Path, features: tuple[str, ...], kind: str, message: bytes
) -> None:
    path = tmp_path / "message"
    path.write_bytes(b"skipped" + message)
    with ScriptedSMTP(features) as server, connect(server) as client, path.open("rb") as file:
        file.read(len(b"skipped"))
        source: Any = {
            "file": file,
            "stream": Unseekable(message),
            "reader": types.SimpleNamespace(read=io.BytesIO(message).read),
            "iterable": blocks_of(message),
        }[kind]
        assert client.sendmail(SENDER, RECIPIENTS, source) == {}
        assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
    assert server.messages[0] == delivered(message, chunked="CHUNKING" in features)
    assert (f"size={len(message)}" in server.commands[1]) == (kind == "file")


@pytest.mark.parametrize("blocks", [["text"], [b"bytes\r\n", "text"]])
def test_text_blocks_are_refused_and_deliver_nothing(
    features: tuple[str, ...], blocks: list[Any]
) -> None:
    with ScriptedSMTP(features) as server:
        client = connect(server)
        with pytest.raises(TypeError, match="str"):
            client.sendmail(SENDER, RECIPIENTS, iter(blocks))
        client.close()
    assert server.messages == []


def failing_after(*blocks: bytes) -> Iterator[bytes]:
    yield from blocks
    raise LookupError("the source is gone")


def test_failed_source_delivers_nothing(features: tuple[str, ...]) -> None:
    with ScriptedSMTP(features) as server:
        client = connect(server)
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b"))
        if "CHUNKING" in features:  # chunks can be withdrawn
            assert server.verbs()[-1] == "rset"
            assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
        else:
            assert client.sock is None
        client.close()
    assert server.messages == ([TEXT + b"\r\n"] if "CHUNKING" in features else [])


@pytest.mark.parametrize("offered", ["chunking", "both"])
def test_replies_to_chunks_of_a_failed_source_are_read(offered: str) -> None:
    scripted = {"mail": ["250 fine", "550 not again"]}
    with ScriptedSMTP(FEATURES[offered], scripted) as server, connect(server) as client:
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b" * 300_000))
        with pytest.raises(smtplib.SMTPSenderRefused, match="not again"):
            client.sendmail(SENDER, RECIPIENTS, TEXT)


def test_size_is_sent_with_the_extension_only() -> None:
    with ScriptedSMTP(["8BITMIME"]) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert server.commands[1] == f"mail from:<{SENDER}>"


def test_failed_source_is_raised_though_server_left() -> None:
    with ScriptedSMTP(scripted={"rset": [None]}) as server:
        client = connect(server)
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b"))
        assert client.sock is None
    assert server.messages == []


def test_connection_lost_in_a_file_is_a_disconnection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtp_module, "send_file_segment", raising(ConnectionResetError, "by peer"))
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    with ScriptedSMTP(FEATURES["chunking"]) as server, path.open("rb") as file:
        client = connect(server)
        with pytest.raises(smtplib.SMTPServerDisconnected):
            client.sendmail(SENDER, RECIPIENTS, file)
        assert client.sock is None
    assert server.messages == []


@pytest.mark.parametrize("offered", ["chunking", "both"])
def test_shrinking_file_delivers_nothing(tmp_path: Path, offered: str) -> None:
    path = tmp_path / "message"
    path.write_bytes(LARGE)

    class Shrinking(SMTP):
        def send(self, s: Any) -> None:
            if isinstance(s, bytes) and s.endswith(b" LAST\r\n"):
                path.write_bytes(b"short\r\n")
            super().send(s)

    with ScriptedSMTP(FEATURES[offered]) as server, path.open("rb") as file:
        client = connect(server, Shrinking)
        with pytest.raises(OSError, match="shrank"):
            client.sendmail(SENDER, RECIPIENTS, file)
        assert client.sock is None
    assert server.messages == []


def test_refused_chunk_ends_an_endless_message() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"a" * 300_000

    scripted = {"bdat": ["250 chunk", "552 too much", *["503 no"] * 100]}
    with ScriptedSMTP(scripted=scripted) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail(SENDER, RECIPIENTS, endless())
        assert refused.value.args == (552, b"too much")
        assert server.verbs()[-1] == "rset"


@pytest.mark.parametrize("offered", ["chunking", "both"])
def test_binary_message_of_unknown_size_needs_bdat(offered: str) -> None:
    # BINARYMIME cannot be used with DATA (RFC 3030, section 3)
    message = b"\0" * 300_000 + b"\n.\r\n"
    with ScriptedSMTP([*FEATURES[offered], "BINARYMIME"]) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, blocks_of(message), mail_options=["BODY=BINARYMIME"])
    assert "data" not in server.verbs()
    assert server.messages == [message]


def test_data_takes_what_sendmail_takes() -> None:
    scripted = {"data": ["354 go", "354 go", "354 go", "503 no"]}
    with ScriptedSMTP(scripted=scripted) as server, connect(server) as client:
        client.ehlo()
        assert client.data(TEXT) == (250, b"taken")
        assert client.data(blocks_of(TEXT)) == (250, b"taken")
        assert client.data(io.BytesIO(TEXT)) == (250, b"taken")
        with pytest.raises(smtplib.SMTPDataError):
            client.data(TEXT)
    assert server.messages == [delivered(TEXT, chunked=False)] * 3


def test_smtp_client_has_nodelay() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        assert client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_debug_level_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        client.set_debuglevel(1)
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert "mail from:<anne@example.com>" in capsys.readouterr().err
