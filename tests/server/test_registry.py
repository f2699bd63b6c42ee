"""Connections that wait: claimed by an event or by the sweep, and errors of the kernel."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.server.pool_harness import poller_of
from tests.workers.serving import POLLERS
from wsgifast.server.endpoint import Registry
from wsgifast.server.poller import READ

LATE = float("inf")


class Waits:
    """A connection that waits, with the attributes that the registry uses."""

    def __init__(
        self, sock: Any = None, *, fd: int = -1, overdue: bool = False, retrying: bool = False
    ) -> None:
        self.sock: Any = sock
        self.fd = fd if sock is None else sock.fileno()
        self.deadline = float("-inf") if overdue else LATE
        self.waits_for_memory = retrying
        self.ended = 0
        self.retried = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_overdue(self) -> None:
        self.ended += 1
        self.meanwhile()

    def end_memory_wait(self) -> None:
        self.retried += 1

    def close(self) -> None:
        self.sock.close()


class Armed:
    """A poller that does nothing. `meanwhile` runs in the middle of arming."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def add(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("add", fd, events))

    def arm(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("arm", fd, events))


def make_registry(poller: Any) -> Any:
    deferred: list[Any] = []
    registry: Any = Registry(
        shared=cast(Any, SimpleNamespace(log=logging.getLogger("test"))),
        poller=poller,
        defer=deferred.append,
        push_first=deferred.append,
        submit=lambda job: job(),
        on_closed=lambda connection: None,
        on_handshake_end=lambda connection: None,
        begin_http2=lambda *connection: None,
    )
    registry.deferred = deferred
    return registry


@pytest.fixture
def poller() -> Armed:
    return Armed()


@pytest.fixture
def registry(poller: Armed) -> Any:
    return make_registry(poller)


def wait(registry: Any, *connections: Waits) -> None:
    for connection in connections:
        registry.wait(connection, READ, is_new=True)


def test_event_claims_a_waiting_connection_once(registry: Any, poller: Armed) -> None:
    connection = Waits(fd=7)
    assert registry.waiting.pop(7, None) is None
    wait(registry, connection)
    assert registry.waiting.pop(8, None) is None
    assert registry.waiting.pop(7, None) is connection
    assert registry.waiting.pop(7, None) is None
    registry.wait(connection, READ)
    assert poller.events == [("add", 7, READ), ("arm", 7, READ)]


def test_sweep_claims_only_overdue_connections(registry: Any) -> None:
    late, retrying, waiting = Waits(fd=7, overdue=True), Waits(fd=8, retrying=True), Waits(fd=9)
    wait(registry, late, retrying, waiting)
    registry.sweep(0.0)
    assert (late.ended, retrying.retried) == (1, 1)
    assert registry.waiting == {8: retrying, 9: waiting}


def test_sweep_leaves_a_connection_with_an_event_to_it(registry: Any) -> None:
    first, second = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True)
    wait(registry, first, second)
    first.meanwhile = lambda: registry.waiting.pop(8, None)
    registry.sweep(0.0)
    assert (first.ended, second.ended) == (1, 0)


def test_sweep_leaves_a_reused_descriptor(registry: Any) -> None:
    first, closed, other = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True), Waits(fd=8)
    wait(registry, first, closed)

    def used_again() -> None:
        assert registry.waiting.pop(8, None) is closed
        wait(registry, other)

    first.meanwhile = used_again
    registry.sweep(0.0)
    assert (closed.ended, other.ended) == (0, 0)
    assert registry.waiting.pop(8, None) is other


def test_sweep_leaves_a_connection_that_had_a_turn(registry: Any) -> None:
    first, second = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True)
    wait(registry, first, second)

    def has_a_turn() -> None:
        assert registry.waiting.pop(8, None) is second
        second.deadline = LATE
        wait(registry, second)

    first.meanwhile = has_a_turn
    registry.sweep(0.0)
    assert second.ended == 0
    assert registry.waiting.pop(8, None) is second


def test_event_of_a_swept_connection_comes_again(registry: Any, poller: Armed) -> None:
    connection = Waits(fd=7, overdue=True)
    wait(registry, connection)

    def goes_on() -> None:
        assert registry.waiting.pop(7, None) is None  # its event finds no connection
        registry.wait(connection, READ)

    connection.meanwhile = goes_on
    registry.sweep(0.0)
    assert poller.events == [("add", 7, READ), ("arm", 7, READ)]
    assert registry.waiting.pop(7, None) is connection


def test_error_at_connection_end_stops_no_sweep(registry: Any) -> None:
    sock, peer = socket.socketpair()
    with peer:
        failing, other = Waits(sock, overdue=True), Waits(fd=-7, overdue=True)

        def fail() -> None:
            raise RuntimeError("an error of our own")

        failing.meanwhile = fail
        wait(registry, failing, other)
        registry.sweep(0.0)
        assert sock.fileno() == -1
        assert other.ended == 1


@pytest.mark.parametrize("kind", POLLERS)
@pytest.mark.parametrize("is_new", [False, True])
def test_sweep_before_arming_closes_nothing(kind: str, is_new: bool) -> None:
    """Another connection could have its descriptor's number by the time that it is armed."""
    poller: Any = poller_of(kind)
    registry = make_registry(poller)
    sock, peer = socket.socketpair()
    connection = Waits(sock)
    swept: list[threading.Thread] = []
    armed = False
    name = "add" if is_new else "arm"
    original = getattr(poller, name)

    def arm(fd: int, events: int) -> None:
        nonlocal armed
        setattr(poller, name, original)
        thread = threading.Thread(target=registry.sweep, args=(0.0,))
        swept.append(thread)
        thread.start()
        thread.join(0.2)  # far more than it needs. It has to wait
        os.fstat(fd)
        assert not connection.ended
        original(fd, events)
        armed = True

    def end() -> None:
        assert armed
        registry.claim(connection)
        sock.close()

    with peer:
        if not is_new:
            wait(registry, connection)
            assert registry.waiting.pop(connection.fd, None) is connection
        connection.deadline = float("-inf")
        connection.meanwhile = end
        setattr(poller, name, arm)
        registry.wait(connection, READ, is_new=is_new)
        for thread in swept:
            thread.join(60)
        assert connection.ended == 1
        assert not registry.waiting
    poller.close()


def test_event_while_a_connection_is_armed_is_not_lost(registry: Any, poller: Armed) -> None:
    connection = Waits(fd=7)
    claimed: list[Waits | None] = []
    poller.meanwhile = lambda: claimed.append(registry.waiting.pop(7, None))
    wait(registry, connection)
    assert claimed == [connection]
    assert not registry.waiting


def test_connection_of_a_reused_number_ends(registry: Any) -> None:
    connection = Waits(socket.socket())
    fd = connection.fd
    registry.wait(connection, READ)
    connection.sock.close()
    its_own = socket.socket()
    if its_own.fileno() != fd:
        with its_own:
            os.dup2(its_own.fileno(), fd)
        its_own = socket.socket(fileno=fd)
    other = Waits(its_own)
    wait(registry, other)
    assert connection.ended == 0  # not under a lock of the other connection
    (end,) = registry.deferred
    end()
    assert (connection.ended, other.ended) == (1, 0)
    registry.claim(connection)
    assert registry.waiting.pop(fd, None) is other
    other.close()


def test_closed_socket_ends_no_other_of_its_number(registry: Any) -> None:
    connection = Waits(socket.socket())
    connection.sock.close()
    other = Waits(fd=connection.fd)
    registry.wait(other, READ)
    with pytest.raises(OSError, match="Bad file descriptor"):
        registry.wait(connection, READ)
    assert other.ended == 0
    assert registry.waiting.pop(other.fd, None) is other
