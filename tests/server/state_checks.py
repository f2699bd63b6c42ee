"""The states of a connection, and which may follow which. Every change in a test is checked."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from wsgifast.server.endpoint import (
    CLOSED,
    HANDSHAKE,
    IDLE,
    LINGERING,
    RECEIVING,
    RECEIVING_HEAD,
    RUNNING,
    SENDING,
    SKIPPING,
    STREAMS,
    Endpoint,
)

FOLLOWS = {
    HANDSHAKE: {IDLE, LINGERING, CLOSED},
    IDLE: {RECEIVING_HEAD, RUNNING, SENDING, STREAMS, CLOSED},
    RECEIVING_HEAD: {RECEIVING, RUNNING, SENDING, STREAMS, CLOSED},
    RECEIVING: {RUNNING, SENDING, CLOSED},
    RUNNING: {SENDING, IDLE, SKIPPING, LINGERING, CLOSED},
    SENDING: {IDLE, SKIPPING, LINGERING, CLOSED},
    SKIPPING: {IDLE, LINGERING, CLOSED},
    STREAMS: {LINGERING, CLOSED},
    LINGERING: {CLOSED},
    CLOSED: set(),
}


class _Checked:
    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, connection: Any, owner: Any = None) -> Any:
        return self._slot.__get__(connection, owner)

    def __set__(self, connection: Any, state: str) -> None:
        try:
            before = self._slot.__get__(connection)
        except AttributeError:  # the connection is being made
            before = None
        if before is not None:
            assert state is before or state in FOLLOWS[before], f"{state} after {before}"
        self._slot.__set__(connection, state)


def checked_states() -> AbstractContextManager[object]:
    """Fail if a connection changes to a state that must not follow its current state."""
    return mock.patch.object(Endpoint, "state", _Checked(Endpoint.__dict__["state"]))
