"""The client with Exim, which enforces the rules of pipelining."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mailservers import Exim, exim
from tests.support.servers import wait_for
from wsgifast.mail import SMTP

SENDER, RECIPIENT = "anne@example.com", "bart@example.com"


@pytest.fixture(scope="module")
def mta() -> Iterator[Exim]:
    with exim() as server:
        yield server


@pytest.fixture(params=["bdat", "data", "one by one"])
def client(request: pytest.FixtureRequest, mta: Exim) -> Iterator[SMTP]:
    with SMTP("127.0.0.1", mta.port, local_hostname="client", timeout=60) as client:
        client.ehlo()
        assert client.has_extn("pipelining")
        assert client.has_extn("chunking")
        client.chunking = request.param == "bdat"
        client.pipelining = request.param != "one by one"
        yield client


def message(name: str, lines: int) -> bytes:
    body = b".dot\r\n..dots\r\n.\r\n" + b"a line of text, and a dot.\r\n" * lines + b".last\r\n"
    return b"Subject: %b\r\n\r\n%b" % (name.encode(), body)


def arrived(mta: Exim, sent: bytes) -> bool:
    subject, expected = sent.partition(b"\r\n")[0], sent.replace(b"\r\n", b"\n")
    for path in mta.delivered.glob("new/*"):
        with path.open("rb") as file:
            beginning = file.read(4096)  # the other messages, of megabytes, are not read again
            if subject + b"\n" in beginning and (beginning + file.read()).endswith(expected):
                return True
    return False


@pytest.mark.parametrize("lines", [1, 200_000], ids=["small", "5 MB"])
@pytest.mark.parametrize("kind", ["bytes", "file", "iterable"])
def test_message_to_exim_arrives_whole(
    mta: Exim, client: SMTP, tmp_path: Path, request: pytest.FixtureRequest, kind: str, lines: int
) -> None:
    sent = message(request.node.name, lines)
    path = tmp_path / "message"
    path.write_bytes(sent)
    with path.open("rb") as file:
        source = {"bytes": sent, "file": file, "iterable": [sent[:99], sent[99:]]}[kind]
        assert client.sendmail(SENDER, [RECIPIENT], source) == {}
    wait_for(lambda: arrived(mta, sent), "the message is delivered")


def test_message_to_exim_after_refusals_arrives(
    mta: Exim, client: SMTP, request: pytest.FixtureRequest
) -> None:
    sent = message(request.node.name, 1)
    with pytest.raises(smtplib.SMTPSenderRefused):
        client.sendmail("refused@example.com", [RECIPIENT], sent)
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        client.sendmail(SENDER, ["refused@example.com"], sent)
    reply = (550, b"no such user")
    assert refused.value.recipients == {"refused@example.com": reply}
    both = ["refused@example.com", RECIPIENT]
    assert client.sendmail(SENDER, both, sent) == {"refused@example.com": reply}
    wait_for(lambda: arrived(mta, sent), "the message is delivered")


def test_non_ascii_addresses_reach_exim(
    mta: Exim, client: SMTP, request: pytest.FixtureRequest
) -> None:
    sent = message(request.node.name, 1)
    options = ["SMTPUTF8", "BODY=8BITMIME"]
    assert client.sendmail("änne@example.com", ["bärt@example.com"], sent, options) == {}
    wait_for(lambda: arrived(mta, sent), "the message is delivered")


def test_many_recipients_reach_exim(
    mta: Exim, client: SMTP, request: pytest.FixtureRequest
) -> None:
    sent = message(request.node.name, 1)
    recipients = [f"r{number}@example.com" for number in range(250)]
    assert client.sendmail(SENDER, ["refused@example.com", *recipients], sent).keys() == {
        "refused@example.com"
    }
    wait_for(lambda: arrived(mta, sent), "the message is delivered")
