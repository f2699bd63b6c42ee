"""The states of a connection: each is handled, and none follows another that it may not follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.states import FOLLOWS
from tests.workers.bench import Bench, echo, make_bench
from wsgifast.server import endpoint
from wsgifast.server.connection import _IN_STATE
from wsgifast.server.endpoint import CLOSED, HANDSHAKE, RUNNING, STREAMS

__all__ = ["make_bench"]


def test_every_state_is_handled() -> None:
    # In STREAMS it is another object, of HTTP/2.
    assert {*FOLLOWS} - {STREAMS} == {*_IN_STATE}
    constants = [value for name, value in vars(endpoint).items() if name.isupper()]
    assert {*FOLLOWS} == {value for value in constants if isinstance(value, str)}


def test_every_state_can_be_reached_and_left() -> None:
    assert {state for states in FOLLOWS.values() for state in states} == {*FOLLOWS} - {HANDSHAKE}
    for state, following in FOLLOWS.items():
        assert (CLOSED in following) is (state is not CLOSED)


def test_state_that_may_not_follow_fails_in_tests(make_bench: Callable[..., Bench]) -> None:
    client = make_bench(echo).connect()
    with pytest.raises(AssertionError, match="handshake after idle"):
        client.near.state = HANDSHAKE
    client.near.state = RUNNING
    client.near.close()
    with pytest.raises(AssertionError, match="running after closed"):
        client.near.state = RUNNING
