"""Connections that wait: the sweep beside other threads, and a kernel that will not watch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.server.connection import CLOSED, RUNNING, Connection
from wsgifast.server.poller import READ
from wsgifast.workers import FastWorker


class Waiting:
    """A connection that waits, as far as the sweep looks at it."""

    def __init__(self, fd: int, *, overdue: bool = False, starved: bool = False) -> None:
        self.fd = fd
        self.deadline = float("-inf") if overdue else float("inf")
        self.starved = starved
        self.ended = 0
        self.retried = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_overdue(self) -> None:
        self.ended += 1
        self.meanwhile()

    def retry(self) -> None:
        self.retried += 1


@pytest.fixture
def worker() -> Any:
    worker: Any = FastWorker.__new__(FastWorker)
    worker.waiting = {}
    worker.pushed = []
    worker.pool = SimpleNamespace(push=worker.pushed.append)
    worker._acceptor = SimpleNamespace(resume=lambda: None)
    return worker


def test_only_what_is_overdue_or_starved_is_taken(worker: Any) -> None:
    late, starved, waiting = Waiting(7, overdue=True), Waiting(8, starved=True), Waiting(9)
    worker.waiting = {each.fd: each for each in (late, starved, waiting)}
    worker._sweep()
    assert (late.ended, starved.retried) == (1, 1)
    assert worker.waiting == {9: waiting}
    assert not worker.pushed


def test_what_has_an_event_meanwhile_is_left_to_it(worker: Any) -> None:
    first, second = Waiting(7, overdue=True), Waiting(8, overdue=True)
    worker.waiting = {7: first, 8: second}
    first.meanwhile = lambda: worker.waiting.pop(8)
    worker._sweep()
    assert (first.ended, second.ended) == (1, 0)
    assert not worker.pushed


@pytest.mark.parametrize("why", ["overdue", "starved"])
def test_a_descriptor_that_is_used_again_meanwhile_loses_no_connection(
    worker: Any, why: str
) -> None:
    first, closed, other = Waiting(7, overdue=True), Waiting(8, **{why: True}), Waiting(8)
    worker.waiting = {7: first, 8: closed}

    def used_again() -> None:
        worker.waiting[8] = other

    first.meanwhile = used_again
    worker._sweep()
    assert (closed.ended, closed.retried, other.ended, other.retried) == (0, 0, 0, 0)
    assert worker.waiting == {8: other}
    assert worker.pushed == [(8, READ)]  # in place of an event that found it taken


class Unwatchable:
    """A poller of a kernel that has no room for one more."""

    must_forget = False

    def add(self, fd: int, events: int) -> None:
        raise OSError("no more watches")

    arm = add


def _connection(worker: Any, sock: socket.socket) -> Connection:
    settings = SimpleNamespace(is_ssl=False, sendfile=None, trusts=lambda peer: False)
    worker.settings = worker.trusted_settings = settings
    worker.poller = Unwatchable()
    worker.connections = set()
    worker.held = set()
    worker._acceptor = SimpleNamespace(on_room=lambda: None)
    worker.warnings = []
    worker.log = SimpleNamespace(warning=lambda text, *args: worker.warnings.append(text % args))
    sock.setblocking(False)
    return Connection(worker, sock, "peer", "address")


def test_an_idle_connection_that_cannot_be_watched_is_closed(worker: Any) -> None:
    client, sock = socket.socketpair()
    with client, sock:
        connection = _connection(worker, sock)
        connection.begin()
        assert connection.state == CLOSED
        assert not worker.waiting
        assert worker.warnings == ["cannot wait for a connection: no more watches"]
        assert client.recv(1) == b""


@pytest.mark.timeout(20)
def test_a_response_that_cannot_be_waited_for_fails_and_leaves_the_app_its_thread(
    worker: Any,
) -> None:
    client, sock = socket.socketpair()
    with client, sock:
        connection = _connection(worker, sock)
        connection.state = RUNNING
        connection.output.write(bytes(8 << 20))  # more than the kernel takes
        assert str(connection.output.error) == "no more watches"
        assert connection.state == RUNNING  # the app's thread is still in it, and closes it
        connection.app_is_done()
        assert connection.state == CLOSED
        assert not worker.waiting
