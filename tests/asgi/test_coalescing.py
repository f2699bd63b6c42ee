"""How long asgifast delays the small messages of a response."""

from __future__ import annotations

import pytest
from asgifast import coalescing
from asgifast.coalescing import (
    DELAY_ITERATIONS,
    DELAY_S,
    SINGLE_ITERATIONS,
    UNDELAYED_MESSAGES,
    DelayedMessages,
)


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> DelayedMessages:
    """Return the state after SINGLE_ITERATIONS iterations with one message each, at time 0."""
    monkeypatch.setattr(coalescing, "monotonic", lambda: 0.0)
    delayed = DelayedMessages()
    for _ in range(SINGLE_ITERATIONS):
        delayed.chunks.append(b"a")
        assert not delayed.end_iteration()
        assert delayed.pop_joined() == b"a"
    return delayed


def delayed_iterations(delayed: DelayedMessages) -> int:
    iterations = 1
    while delayed.end_iteration():
        iterations += 1
    return iterations


def test_message_staying_alone_passes_the_next_ones(delayed: DelayedMessages) -> None:
    delayed.chunks.append(b"a")
    assert delayed_iterations(delayed) == DELAY_ITERATIONS + 1
    assert delayed.undelayed_messages == UNDELAYED_MESSAGES
    delayed.pop_joined()
    delayed.chunks.append(b"a")
    assert delayed_iterations(delayed) == DELAY_ITERATIONS + 1


def test_messages_of_some_iterations_are_delayed_again(delayed: DelayedMessages) -> None:
    for _ in range(3):
        delayed.chunks.append(b"a")
        assert delayed.end_iteration()
        delayed.chunks.append(b"b")
        assert delayed_iterations(delayed) == DELAY_ITERATIONS
        assert not delayed.undelayed_messages
        assert delayed.pop_joined(b"c") == b"abc"


def test_messages_of_one_iteration_have_no_more_delay(delayed: DelayedMessages) -> None:
    delayed.chunks += b"a", b"b"
    assert not delayed.end_iteration()
    delayed.pop_joined()
    delayed.chunks.append(b"a")
    assert not delayed.end_iteration()


def test_no_message_is_delayed_long_in_long_iterations(
    delayed: DelayedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed.chunks.append(b"a")
    assert delayed.end_iteration()
    assert delayed.end_iteration()
    monkeypatch.setattr(coalescing, "monotonic", lambda: DELAY_S * 1.1)
    assert not delayed.end_iteration()
    assert delayed.undelayed_messages == UNDELAYED_MESSAGES


def test_iteration_without_messages_does_not_count(delayed: DelayedMessages) -> None:
    assert not delayed.end_iteration()
    assert not delayed.undelayed_messages
    delayed.chunks.append(b"a")
    assert not delayed.end_iteration()
