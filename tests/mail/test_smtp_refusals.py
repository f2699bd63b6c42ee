"""Rejections, and replies out of order: the client's errors, and its state after them."""

from __future__ import annotations

import smtplib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mail.scripted import (
    FEATURES,
    LARGE,
    RECIPIENTS,
    SENDER,
    TEXT,
    ScriptedSMTP,
    connect,
    delivered,
)
from tests.support.effort import effort
from wsgifast.mail import SMTP

# The server's replies. smtplib's client gives the expected outcome for ours.
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
def test_outcome_of_a_message_is_smtplibs(features: tuple[str, ...], refusal: str) -> None:
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
            if connected:  # and the next message is accepted
                assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
            client.close()
            return result, reset, connected

    assert outcome(SMTP, features) == outcome(smtplib.SMTP, FEATURES["plain"])


@pytest.mark.parametrize("offered", ["plain", "pipelining"])
def test_refused_data_command_resets_the_transaction(offered: str) -> None:
    scripted = {"data": ["451 not now"]}
    with ScriptedSMTP(FEATURES[offered], scripted) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert refused.value.args == (451, b"not now")
        assert server.verbs()[-1] == "rset"


OUT_OF_STEP: list[tuple[str, Any, type[Exception]]] = [
    # A reply to DATA that is neither 354 nor an error, for instance from a server that has answered
    # the last message once for each recipient, like LMTP.
    *[
        (offered, {"data": [reply]}, smtplib.SMTPDataError)
        for offered in ("plain", "pipelining")
        for reply in ("250 fine", "252 perhaps", "334 what", "what?")
    ],
    # 354 although perhaps every recipient was rejected.
    *[
        ("pipelining", {"rcpt": rcpt, "data": ["354 go on"]}, smtplib.SMTPRecipientsRefused)
        for rcpt in (["354 what", "550 no"], ["what?", "550 no"], ["334 ", "450 no"])
    ],
    # 354 after a rejected sender, by a server that accepts recipients nevertheless.
    ("pipelining", {"mail": ["550 not you"]}, smtplib.SMTPSenderRefused),
]


@pytest.mark.parametrize(("offered", "scripted", "error"), OUT_OF_STEP)
def test_reply_out_of_step_ends_and_delivers_nothing(
    offered: str, scripted: dict[str, Sequence[str | None]], error: type[Exception]
) -> None:
    needs_sender = "mail" not in scripted
    with ScriptedSMTP(FEATURES[offered], scripted, needs_sender=needs_sender) as server:
        client = connect(server)
        with pytest.raises(error):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sock is None
    assert server.messages == []


def test_refusal_by_a_server_that_leaves_is_raised() -> None:
    scripted: dict[str, list[str | None]] = {"rcpt": ["550 no", "551 no"], "rset": [None]}
    with ScriptedSMTP(FEATURES["plain"], scripted) as server:
        client = connect(server)
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert [reply for reply, _ in refused.value.recipients.values()] == [550, 551]
        client.close()


def test_unwanted_354_is_answered_by_a_lone_dot() -> None:
    scripted = {
        "rcpt": ["550 no", "550 no"],
        "data": ["354 go on"],
        "message": ["554 no valid recipients"],
    }
    with ScriptedSMTP(FEATURES["pipelining"], scripted) as server, connect(server) as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail(SENDER, RECIPIENTS, TEXT)
        assert client.sendmail(SENDER, RECIPIENTS, TEXT) == {}
    assert server.messages == [b"", delivered(TEXT, chunked=False)]
    assert server.verbs()[-6:] == ["rset", "mail", "rcpt", "rcpt", "data", "quit"]


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
def test_refused_recipient_gets_nothing(
    offered: str, mail: str, rcpt: list[str], data: str | None, message: str | None
) -> None:
    scripted: dict[str, Sequence[str | None]] = {
        "mail": [mail],
        "rcpt": rcpt,
        "data": [data],
        "message": [message],
        "bdat": [message],
    }
    recipients = [f"r{number}@example.com" for number in range(len(rcpt))]
    with ScriptedSMTP(FEATURES[offered], scripted) as server:
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
