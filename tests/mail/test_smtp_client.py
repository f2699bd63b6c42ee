"""The client: what it sends, and that every outcome is smtplib's."""

from __future__ import annotations

import email.message
import io
import smtplib
import socket
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import effort
from tests.support.smtp import ScriptedSMTP
from wsgifast.mail import SMTP
from wsgifast.mail import smtp as smtp_module

FEATURES = {
    "plain": ("SIZE", "8BITMIME"),
    "pipelining": ("SIZE", "8BITMIME", "PIPELINING"),
    "chunking": ("SIZE", "8BITMIME", "CHUNKING"),
    "both": ("SIZE", "8BITMIME", "PIPELINING", "CHUNKING"),
}
SENDER, RECIPIENTS = "anne@example.com", ["bart@example.com", "cate@example.com"]
TEXT = b"Subject: dots\r\n\r\n.one\r\n..two\r\n.\r\nlast"
LARGE = b"Subject: large\r\n\r\n" + (b".x" * 38 + b"\r\n") * 4000
PLAIN = LARGE.replace(b".x", b"xx")  # no line starts with a dot


def connect(server: ScriptedSMTP, client_class: type[smtplib.SMTP] = SMTP) -> Any:
    return client_class("127.0.0.1", server.port, local_hostname="client", timeout=60)


def delivered(message: bytes, *, chunked: bool) -> bytes:
    """What the server receives for a message."""
    whole = message if message.endswith(b"\r\n") else message + b"\r\n"
    if chunked:
        return whole
    quoted = whole.replace(b"\n.", b"\n..")
    return b"." + quoted if quoted.startswith(b".") else quoted


@pytest.fixture(params=FEATURES)
def features(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return FEATURES[request.param]


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


def test_a_transaction_is_one_round_trip_with_both_extensions() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        client.ehlo()
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    transaction = next(data for data in server.reads if data.startswith(b"mail"))
    assert transaction.count(b"\r\nrcpt to:") == 2
    assert transaction.endswith(b"BDAT %d LAST\r\n%b\r\n" % (len(TEXT) + 2, TEXT))


def test_pipelining_sends_the_envelope_at_once_and_data_after_its_leave() -> None:
    with ScriptedSMTP(FEATURES["pipelining"]) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    transaction = next(data for data in server.reads if data.startswith(b"mail"))
    assert transaction.endswith(b"rcpt to:<cate@example.com>\r\ndata\r\n")


def test_a_large_message_waits_until_its_recipients_are_taken() -> None:
    answers = {"rcpt": ["550 no", "550 no"]}
    with ScriptedSMTP(answers=answers) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail(SENDER, RECIPIENTS, LARGE)
        assert server.verbs() == ["ehlo", "mail", "rcpt", "rcpt", "rset"]


@pytest.mark.parametrize("switch", ["pipelining", "chunking"])
def test_an_extension_can_be_switched_off(switch: str) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        setattr(client, switch, False)
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert ("bdat" in server.verbs()) == (switch == "pipelining")
    assert any(b"mail" in data and b"rcpt" in data for data in server.reads) == (
        switch == "chunking"
    )


def test_many_recipients_go_in_groups_whose_replies_are_read() -> None:
    recipients = [f"r{number}@example.com" for number in range(1000)]
    answers = {"rcpt": ["550 no", *["250 yes"] * 998, "551 no"]}
    with ScriptedSMTP(answers=answers) as server, connect(server) as client:
        refused = client.sendmail(SENDER, recipients, TEXT)
    assert refused == {"r0@example.com": (550, b"no"), "r999@example.com": (551, b"no")}
    assert max(data.count(b"rcpt") for data in server.reads) <= 100
    assert len(server.messages) == 1


# What the server answers. Each is run with smtplib's client, which sets the outcome, and ours.
REFUSALS: dict[str, dict[str, Sequence[str | None]]] = {
    "nothing": {},
    "sender": {"mail": ["550 not you"]},
    "sender by 421": {"mail": ["421 go"]},
    "one recipient": {"rcpt": ["250 yes", "550 no"]},
    "251 is taken": {"rcpt": ["251 forwarded", "251 forwarded"]},
    "all recipients": {"rcpt": ["550 no", "450 later"]},
    "recipient by 421": {"rcpt": ["250 yes", "421 go"]},
    "data": {"message": ["554 spam"], "bdat": ["554 spam"]},
    "data by 421": {"message": ["421 go"], "bdat": ["421 go"]},
    "closed after mail": {"mail": [None]},
    "closed after rcpt": {"rcpt": ["250 yes", None]},
    "closed in data": {"message": [None], "bdat": [None]},
    "no reply code": {"mail": ["what?"]},
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_every_outcome_is_smtplibs(features: tuple[str, ...], refusal: str) -> None:
    def outcome(client_class: type[smtplib.SMTP], offered: Sequence[str]) -> tuple[object, ...]:
        with ScriptedSMTP(offered, REFUSALS[refusal]) as server:
            client = connect(server, client_class)
            result: object
            try:
                result = client.sendmail(SENDER, RECIPIENTS, TEXT)
            except smtplib.SMTPException as error:
                result = (type(error), error.args)
            reset = server.verbs().count("rset")
            connected = client.sock is not None
            if connected:  # and the next message goes through
                assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
            client.close()
            return result, reset, connected

    assert outcome(SMTP, features) == outcome(smtplib.SMTP, FEATURES["plain"])


@pytest.mark.parametrize("offered", ["plain", "pipelining"])
def test_a_refusal_of_data_itself_leaves_the_transaction(offered: str) -> None:
    answers = {"data": ["451 not now"]}
    with ScriptedSMTP(FEATURES[offered], answers) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert refused.value.args == (451, b"not now")
        assert server.verbs()[-1] == "rset"


@pytest.mark.parametrize("offered", ["plain", "pipelining"])
@pytest.mark.parametrize("reply", ["250 fine", "252 perhaps", "334 what", "what?"])
def test_another_reply_to_data_than_354_is_no_success(offered: str, reply: str) -> None:
    """As after a server that has answered the last message once for each recipient, as in LMTP."""
    with ScriptedSMTP(FEATURES[offered], {"data": [reply]}) as server:
        client = connect(server)
        with pytest.raises(smtplib.SMTPDataError):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sock is None
    assert server.messages == []


def test_a_refusal_is_what_is_raised_though_the_server_is_gone_too() -> None:
    answers: dict[str, list[str | None]] = {"rcpt": ["550 no", "551 no"], "rset": [None]}
    with ScriptedSMTP(FEATURES["plain"], answers) as server:
        client = connect(server)
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert [reply for reply, _ in refused.value.recipients.values()] == [550, 551]
        client.close()


def test_a_354_that_nobody_wants_gets_a_lone_dot() -> None:
    answers = {
        "rcpt": ["550 no", "550 no"],
        "data": ["354 go on"],
        "message": ["554 no valid recipients"],
    }
    with ScriptedSMTP(FEATURES["pipelining"], answers) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
    assert server.messages == [b"", delivered(TEXT, chunked=False)]
    assert server.verbs()[-6:] == ["rset", "mail", "rcpt", "rcpt", "data", "quit"]


@pytest.mark.parametrize("rcpt", [["354 what", "550 no"], ["what?", "550 no"], ["334 ", "450 no"]])
def test_354_where_a_recipient_may_have_been_taken_ends_the_connection(rcpt: list[str]) -> None:
    answers = {"rcpt": rcpt, "data": ["354 go on"]}
    with ScriptedSMTP(FEATURES["pipelining"], answers) as server:
        client = connect(server)
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sock is None
    assert server.messages == []


def test_354_after_a_refused_sender_delivers_no_empty_message() -> None:
    answers = {"mail": ["550 not you"]}
    with ScriptedSMTP(FEATURES["pipelining"], answers, needs_sender=False) as server:
        client = connect(server)
        with pytest.raises(smtplib.SMTPSenderRefused):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sock is None
    assert server.messages == []


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("message", [TEXT, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "codes",
    [("252",), ("252", "252"), ("250", "252", "550"), ("252", "550"), ("252", "450", "299")],
)
def test_252_for_a_recipient_is_no_refusal(
    features: tuple[str, ...], pipelining: bool, message: bytes, codes: tuple[str, ...]
) -> None:
    recipients = [f"r{number}@example.com" for number in range(len(codes))]
    replies = [f"{code}-several lines\r\n{code} of text" for code in codes]
    with ScriptedSMTP(features, {"rcpt": replies}) as server, connect(server) as client:
        client.pipelining = pipelining
        refused = client.sendmail(SENDER, recipients, message)
    accepted = [name for name, code in zip(recipients, codes, strict=True) if code < "300"]
    assert list(refused) == [name for name in recipients if name not in accepted]
    expected = delivered(message, chunked="CHUNKING" in features)
    assert server.deliveries == [(accepted, expected)]


REPLIES = ["250 yes", "251 forwarded", "252 perhaps", "299 odd", "354 what", "450 no", "550 no"]


@given(
    offered=st.sampled_from(sorted(FEATURES)),
    mail=st.sampled_from(["250 yes", "252 perhaps", "450 no", "550 no"]),
    rcpt=st.lists(st.sampled_from(REPLIES), min_size=1, max_size=4),
    data=st.sampled_from(["354 go on", "503 no recipients", "451 not now", None]),
    message=st.sampled_from(["250 taken", "252 taken", "550 spam", None]),
)
@settings(max_examples=effort(100), deadline=None)
def test_refused_recipient_gets_nothing_and_no_other_message_is_delivered(
    offered: str, mail: str, rcpt: list[str], data: str | None, message: str | None
) -> None:
    answers: dict[str, Sequence[str | None]] = {
        "mail": [mail],
        "rcpt": rcpt,
        "data": [data],
        "message": [message],
        "bdat": [message],
    }
    recipients = [f"r{number}@example.com" for number in range(len(rcpt))]
    with ScriptedSMTP(FEATURES[offered], answers) as server:
        client = connect(server)
        try:
            refused = set(client.sendmail(SENDER, recipients, TEXT))
        except smtplib.SMTPException:
            refused = set(recipients)
        client.close()
    for reached, content in server.deliveries:
        assert refused.isdisjoint(reached)
        if reached:
            assert content == delivered(TEXT, chunked="CHUNKING" in FEATURES[offered])
    if refused != set(recipients):
        assert [set(reached) for reached, _ in server.deliveries] == [set(recipients) - refused]


def test_no_recipients_are_all_refused(features: tuple[str, ...]) -> None:
    with ScriptedSMTP(features) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.sendmail(SENDER, [], TEXT)
        assert refused.value.recipients == {}
        assert server.messages == []


def test_a_server_of_helo_only_gets_no_options() -> None:
    with ScriptedSMTP(None) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT, ["body=8bitmime"], ["notify=never"])
    assert server.commands[:4] == [
        "ehlo client",
        "helo client",
        f"mail from:<{SENDER}>",
        f"rcpt to:<{RECIPIENTS[0]}>",
    ]


def test_options_and_smtputf8() -> None:
    features = (*FEATURES["both"], "SMTPUTF8")
    with ScriptedSMTP(features) as server, connect(server) as client:
        client.sendmail(
            "änne@example.com", ["bärt@example.com"], TEXT, ["SMTPUTF8"], ["notify=never"]
        )
    assert server.commands[1:3] == [
        f"mail from:<änne@example.com> size={len(TEXT)} SMTPUTF8",
        "rcpt to:<bärt@example.com> notify=never",
    ]


def test_smtputf8_without_the_extension_is_refused_before_anything_is_sent() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPNotSupportedError):
            client.sendmail(SENDER, RECIPIENTS, TEXT, ["smtputf8"])
        with pytest.raises(UnicodeEncodeError):
            client.sendmail("änne@example.com", RECIPIENTS, TEXT)
        assert server.verbs() == ["ehlo"]


def test_a_line_end_in_a_command_is_refused_before_anything_is_sent() -> None:
    bad = "\r\n"  # most others are stripped by smtplib.quoteaddr
    with ScriptedSMTP() as server, connect(server) as client:
        for sender, recipients in ((bad, RECIPIENTS), (SENDER, [SENDER, bad])):
            with pytest.raises(ValueError, match="line end"):
                client.sendmail(sender, recipients, TEXT)
        for line_end in ("\r\n", "\r", "\n"):
            with pytest.raises(ValueError, match="line end"):
                client.sendmail(SENDER, RECIPIENTS, TEXT, [f"size=1{line_end}rset"])
        assert server.verbs() == ["ehlo"]


@pytest.mark.parametrize("wrong", [5, None, email.message.EmailMessage()])
def test_what_is_no_message_is_refused_before_anything_is_sent(wrong: Any) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        with pytest.raises(TypeError):
            client.sendmail(SENDER, RECIPIENTS, wrong)
        assert server.verbs() == ["ehlo"]


def test_a_message_object_goes_by_send_message(features: tuple[str, ...]) -> None:
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
def test_files_and_iterables(
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


def test_text_blocks_are_repaired_as_a_str_is(features: tuple[str, ...]) -> None:
    blocks = ["a\r", "\nb\r", "c\n", ".d", "\n", "."]
    sent = []
    for message in ("".join(blocks), iter(blocks)):
        with ScriptedSMTP(features) as server, connect(server) as client:
            client.sendmail(SENDER, RECIPIENTS, message)
        sent.append(server.messages)
    assert sent[0] == sent[1]


def failing_after(*blocks: bytes) -> Iterator[bytes]:
    yield from blocks
    raise LookupError("the source is gone")


def test_a_failing_source_delivers_nothing(features: tuple[str, ...]) -> None:
    with ScriptedSMTP(features) as server:
        client = connect(server)
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b"))
        if "CHUNKING" in features:  # chunks can be taken back
            assert server.verbs()[-1] == "rset"
            assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
        else:
            assert client.sock is None
        client.close()
    assert server.messages == ([TEXT + b"\r\n"] if "CHUNKING" in features else [])


@pytest.mark.parametrize("offered", ["chunking", "both"])
def test_replies_to_chunks_that_were_taken_back_are_not_anothers(offered: str) -> None:
    answers = {"mail": ["250 fine", "550 not again"]}
    with ScriptedSMTP(FEATURES[offered], answers) as server, connect(server) as client:
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b" * 300_000))
        with pytest.raises(smtplib.SMTPSenderRefused, match="not again"):
            client.sendmail(SENDER, RECIPIENTS, TEXT)


def test_a_size_is_told_to_servers_that_ask_for_it() -> None:
    with ScriptedSMTP(["8BITMIME"]) as server, connect(server) as client:
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert server.commands[1] == f"mail from:<{SENDER}>"


def test_a_failing_source_is_what_is_raised_though_the_server_is_gone_too() -> None:
    with ScriptedSMTP(answers={"bdat": [None]}) as server:
        client = connect(server)
        with pytest.raises(LookupError):
            client.sendmail(SENDER, RECIPIENTS, failing_after(b"a" * 300_000, b"b"))
        assert client.sock is None
    assert server.messages == []


def test_a_connection_lost_in_a_file_is_a_disconnection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(sock: object, segment: object) -> None:
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(smtp_module, "send_file_segment", reset)
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    with ScriptedSMTP(FEATURES["chunking"]) as server, path.open("rb") as file:
        client = connect(server)
        with pytest.raises(smtplib.SMTPServerDisconnected):
            client.sendmail(SENDER, RECIPIENTS, file)
        assert client.sock is None
    assert server.messages == []


@pytest.mark.parametrize("offered", ["chunking", "both"])
def test_a_file_that_shrinks_delivers_nothing(tmp_path: Path, offered: str) -> None:
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


def test_a_refused_chunk_ends_an_endless_message() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"a" * 300_000

    answers = {"bdat": ["250 chunk", "552 too much", *["503 no"] * 100]}
    with ScriptedSMTP(answers=answers) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail(SENDER, RECIPIENTS, endless())
        assert refused.value.args == (552, b"too much")
        assert server.verbs()[-1] == "rset"


def test_data_by_itself_takes_what_sendmail_takes() -> None:
    answers = {"data": ["354 go", "354 go", "503 no"]}
    with ScriptedSMTP(answers=answers) as server, connect(server) as client:
        client.ehlo()
        assert client.data(TEXT) == (250, b"taken")
        assert client.data(blocks_of(TEXT)) == (250, b"taken")
        with pytest.raises(smtplib.SMTPDataError):
            client.data(TEXT)
    assert server.messages == [delivered(TEXT, chunked=False)] * 2


def test_nodelay_is_on_from_the_start() -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        assert client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_debugging_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedSMTP() as server, connect(server) as client:
        client.set_debuglevel(1)
        client.sendmail(SENDER, RECIPIENTS, TEXT)
    assert "mail from:<anne@example.com>" in capsys.readouterr().err


def test_what_is_relied_on_in_smtplib() -> None:
    """Attributes that smtplib does not document: a change in a new Python shows here."""
    with ScriptedSMTP() as server, connect(server, smtplib.SMTP) as client:
        client.ehlo()
        assert (client.command_encoding, client.does_esmtp) == ("ascii", True)
        assert isinstance(client.sock, socket.socket)
        client.rset()
    assert smtplib.quoteaddr("Anne <anne@example.com>") == "<anne@example.com>"
    assert smtp_module._PIPELINED_COMMANDS > 1
