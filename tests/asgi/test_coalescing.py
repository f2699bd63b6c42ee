"""How long the small messages of a response are delayed."""

from __future__ import annotations

import pytest
from asgifast import coalescing
from asgifast.coalescing import HELD_S, HELD_TURNS, LONE_TURNS, PASSED_ON, Held


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """As it is when LONE_TURNS turns have had one message each, at the time 0."""
    monkeypatch.setattr(coalescing, "monotonic", lambda: 0.0)
    held = Held()
    for _ in range(LONE_TURNS):
        held.chunks.append(b"a")
        assert not held.end_turn()
        assert held.take() == b"a"
    return held


def turns_held(held: Held) -> int:
    turns = 1
    while held.end_turn():
        turns += 1
    return turns


def test_message_staying_alone_passes_the_next_ones(held: Held) -> None:
    held.chunks.append(b"a")
    assert turns_held(held) == HELD_TURNS + 1
    assert held.to_pass_on == PASSED_ON
    held.take()
    held.chunks.append(b"a")
    assert turns_held(held) == HELD_TURNS + 1


def test_messages_of_some_turns_are_held_again(held: Held) -> None:
    for _ in range(3):
        held.chunks.append(b"a")
        assert held.end_turn()
        held.chunks.append(b"b")
        assert turns_held(held) == HELD_TURNS
        assert not held.to_pass_on
        assert held.take(b"c") == b"abc"


def test_messages_of_one_turn_are_not_held_for_longer(held: Held) -> None:
    held.chunks += b"a", b"b"
    assert not held.end_turn()
    held.take()
    held.chunks.append(b"a")
    assert not held.end_turn()


def test_no_message_is_held_for_long_where_turns_are(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.chunks.append(b"a")
    assert held.end_turn()
    assert held.end_turn()
    monkeypatch.setattr(coalescing, "monotonic", lambda: HELD_S * 1.1)
    assert not held.end_turn()
    assert held.to_pass_on == PASSED_ON


def test_turn_without_messages_does_not_count(held: Held) -> None:
    assert not held.end_turn()
    assert not held.to_pass_on
    held.chunks.append(b"a")
    assert not held.end_turn()
