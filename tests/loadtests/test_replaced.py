"""The client that counts losses. It repeats only requests that may be repeated."""

from __future__ import annotations

import signal

import pytest

from loadtests.replaced import FAST_SERVER, Outcome, RepeatingClient, measure
from tests.support.http import answering

BODY = b"0123456789"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + BODY


@pytest.mark.parametrize("end", [[], [b""], [b"reset"]])
def test_request_on_closed_idle_connection_is_repeated(end: list[bytes]) -> None:
    outcome = Outcome()
    with answering([GOOD, *end], [GOOD]) as address:
        client = RepeatingClient(address, "/", BODY, outcome)
        assert client.ask()
        assert client.ask()
        client.close()
    assert (outcome.done["repeated"], outcome.lost) == (1, {})


@pytest.mark.parametrize(
    ("connections", "reason"),
    [
        ([[GOOD], []], "closed without a response"),  # it gets at most two requests
        ([[GOOD, GOOD[:20]]], "incomplete headers"),
        ([[GOOD, GOOD[:-3]]], "status 200, then closed after 7 of 10 bytes"),
        ([[GOOD, b"HTTP/1.1 503 No\r\nContent-Length: 10\r\n\r\n" + BODY]], "status 503"),
        ([[GOOD, GOOD.replace(b"5", b"6")]], "other bytes"),
        ([[GOOD, GOOD.replace(b": 10", b": 9")]], "status 200 with 9 bytes instead of 10"),
    ],
)
def test_other_interrupted_request_is_lost(connections: list[list[bytes]], reason: str) -> None:
    outcome = Outcome()
    with answering(*connections) as address:
        client = RepeatingClient(address, "/", BODY, outcome)
        assert client.ask()
        assert not client.ask()
        client.close()
    assert outcome.lost == {reason: 1}
    assert not outcome.done["repeated"]


def test_first_request_of_a_connection_is_not_repeated() -> None:
    outcome = Outcome()
    with answering([]) as address:
        assert not RepeatingClient(address, "/", BODY, outcome).ask()
    assert outcome.lost == {"closed without a response": 1}


@pytest.mark.long
def test_reloaded_fastworker_loses_no_request() -> None:
    signals = [signal.SIGHUP]
    outcome = measure(
        FAST_SERVER, signals, requests=50, times=1, longest_s=60, clients=4, downloads=1
    )
    assert outcome.lost == {}
    assert outcome.done["answered"] >= 50
    assert outcome.signals == {"SIGHUP": 1}
