"""The table of a connection's states: complete, no dead ends, and something is done in each."""

from __future__ import annotations

import pytest

from wsgifast.server import endpoint
from wsgifast.server.connection import _ON_EVENT, _ON_OVERDUE
from wsgifast.server.endpoint import (
    ANSWERED,
    BEGUN,
    CLOSED,
    GONE,
    HANDSHAKE,
    IDLE,
    LEAVES,
    LINGERING,
    READY,
    RECEIVING,
    REFUSED,
    RUNNING,
    SECURED,
    SENDING,
    SKIPPING,
    SKIPS,
    STAYS,
    STREAMS,
    SWITCHES,
    TRANSITIONS,
)

EVENTS = {ANSWERED, BEGUN, GONE, LEAVES, READY, REFUSED, SECURED, STAYS, SKIPS, SWITCHES}


def after(state: str, *events: str) -> str:
    for event in events:
        state = TRANSITIONS[state][event]
    return state


def test_every_state_has_its_row_and_says_what_is_done_in_it() -> None:
    # In STREAMS it is another object, of HTTP/2.
    assert {*TRANSITIONS} - {STREAMS} == {*_ON_EVENT} == {*_ON_OVERDUE}
    constants = [value for name, value in vars(endpoint).items() if name.isupper()]
    named = {value for value in constants if isinstance(value, str)}
    assert {*TRANSITIONS} | EVENTS == named
    for moves in TRANSITIONS.values():
        assert {*moves} <= EVENTS
        assert {*moves.values()} <= {*TRANSITIONS}


def test_every_event_leads_somewhere() -> None:
    assert {event for moves in TRANSITIONS.values() for event in moves} == EVENTS


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ((BEGUN, READY, ANSWERED, STAYS), IDLE),
        ((READY, ANSWERED, STAYS), IDLE),
        ((READY, STAYS), IDLE),
        ((READY, LEAVES), LINGERING),
        ((BEGUN, READY, ANSWERED, LEAVES, GONE), CLOSED),
        ((READY, ANSWERED, SKIPS, STAYS), IDLE),
        ((READY, ANSWERED, SKIPS, LEAVES), LINGERING),
        ((BEGUN, REFUSED, LEAVES, GONE), CLOSED),
        ((REFUSED, LEAVES), LINGERING),
        ((SWITCHES, LEAVES, GONE), CLOSED),
        ((BEGUN, SWITCHES, GONE), CLOSED),
    ],
)
def test_ways_through(events: tuple[str, ...], end: str) -> None:
    assert after(IDLE, *events) == end
    assert after(HANDSHAKE, SECURED, *events) == end


def test_whatever_happens_it_can_be_closed_once() -> None:
    for state, moves in TRANSITIONS.items():
        assert (GONE in moves) is (state is not CLOSED)
    assert TRANSITIONS[CLOSED] == {}


def test_what_must_never_happen() -> None:
    """An app that runs is not refused, what is refused is not run, who lingers is not served."""
    assert REFUSED not in TRANSITIONS[RUNNING]
    assert READY not in TRANSITIONS[SENDING]
    assert {*TRANSITIONS[LINGERING]} == {GONE}
    assert {state for state, moves in TRANSITIONS.items() if READY in moves} == {IDLE, RECEIVING}
    stays = {state for state, moves in TRANSITIONS.items() if STAYS in moves}
    assert stays == {RUNNING, SENDING, SKIPPING}
