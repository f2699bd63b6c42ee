"""How long asgifast delays the small messages of a response."""

from __future__ import annotations

import pytest
from asgifast import coalescing
from asgifast.coalescing import DELAY_S, DELAY_TURNS, LONE_TURNS, PASSED_ON, DelayedMessages


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> DelayedMessages:
    """Return the state after LONE_TURNS turns with one message each, at time 0."""
    monkeypatch.setattr(coalescing, "monotonic", lambda: 0.0)
    delayed = DelayedMessages()
    for _ in range(LONE_TURNS):
        delayed.chunks.append(b"a")
        assert not delayed.end_turn()
        assert delayed.take() == b"a"
    return delayed


def delayed_turns(delayed: DelayedMessages) -> int:
    turns = 1
    while delayed.end_turn():
        turns += 1
    return turns


def test_message_staying_alone_passes_the_next_ones(delayed: DelayedMessages) -> None:
    delayed.chunks.append(b"a")
    assert delayed_turns(delayed) == DELAY_TURNS + 1
    assert delayed.to_pass_on == PASSED_ON
    delayed.take()
    delayed.chunks.append(b"a")
    assert delayed_turns(delayed) == DELAY_TURNS + 1


def test_messages_of_some_turns_are_delayed_again(delayed: DelayedMessages) -> None:
    for _ in range(3):
        delayed.chunks.append(b"a")
        assert delayed.end_turn()
        delayed.chunks.append(b"b")
        assert delayed_turns(delayed) == DELAY_TURNS
        assert not delayed.to_pass_on
        assert delayed.take(b"c") == b"abc"


def test_messages_of_one_turn_are_delayed_no_longer(delayed: DelayedMessages) -> None:
    delayed.chunks += b"a", b"b"
    assert not delayed.end_turn()
    delayed.take()
    delayed.chunks.append(b"a")
    assert not delayed.end_turn()


def test_no_message_is_delayed_long_in_long_turns(
    delayed: DelayedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed.chunks.append(b"a")
    assert delayed.end_turn()
    assert delayed.end_turn()
    monkeypatch.setattr(coalescing, "monotonic", lambda: DELAY_S * 1.1)
    assert not delayed.end_turn()
    assert delayed.to_pass_on == PASSED_ON


def test_turn_without_messages_does_not_count(delayed: DelayedMessages) -> None:
    assert not delayed.end_turn()
    assert not delayed.to_pass_on
    delayed.chunks.append(b"a")
    assert not delayed.end_turn()
