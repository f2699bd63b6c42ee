"""Connections that wait: claimed by an event or by the sweep, and a kernel that will not watch."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.server.connection import Connection
from wsgifast.server.disk import DiskThreads
from wsgifast.server.disk_budget import DiskBudget
from wsgifast.server.output import ClientGone
from wsgifast.server.output_memory import OutputMemory
from wsgifast.server.output_rules import Coalescing, OutputRules
from wsgifast.server.poller import READ, make_poller
from wsgifast.server.registry import Registry
from wsgifast.server.states import CLOSED, RUNNING

LATE = float("inf")


class Waits:
    """A connection that waits, as far as the registry looks at it."""

    def __init__(
        self, sock: Any = None, *, fd: int = -1, overdue: bool = False, retrying: bool = False
    ) -> None:
        self.sock: Any = sock
        self.fd = fd if sock is None else sock.fileno()
        self.deadline = float("-inf") if overdue else LATE
        self.retries = retrying
        self.known = False
        self.ended = 0
        self.retried = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_overdue(self) -> None:
        self.ended += 1
        self.meanwhile()

    def retry(self) -> None:
        self.retried += 1

    def close(self) -> None:
        self.sock.close()


class Armed:
    """A poller that does nothing; `meanwhile` happens in the middle of arming."""

    must_forget = False

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def add(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("add", fd, events))

    def arm(self, fd: int, events: int) -> None:
        self.meanwhile()
        self.events.append(("arm", fd, events))


@pytest.fixture
def registry() -> Registry[Waits]:
    poller: Any = Armed()
    return Registry(poller, on_closed=lambda: None, log=logging.getLogger("test"))


def wait(registry: Registry[Waits], *connections: Waits) -> None:
    for connection in connections:
        registry.wait(connection, READ)


def test_an_event_claims_what_waits_and_only_once(registry: Registry[Waits]) -> None:
    connection = Waits(fd=7)
    assert registry.claim(7) is None
    wait(registry, connection)
    assert registry.claim(8) is None
    assert registry.claim(7) is connection
    assert registry.claim(7) is None
    wait(registry, connection)
    poller: Any = registry._poller
    assert poller.events == [("add", 7, READ), ("arm", 7, READ)]


def test_only_what_is_overdue_or_retrying_is_swept(registry: Registry[Waits]) -> None:
    late, retrying, waiting = Waits(fd=7, overdue=True), Waits(fd=8, retrying=True), Waits(fd=9)
    wait(registry, late, retrying, waiting)
    registry.sweep(0.0)
    assert (late.ended, retrying.retried) == (1, 1)
    assert registry.waiting == {9: waiting}


def test_what_has_an_event_meanwhile_is_left_to_it(registry: Registry[Waits]) -> None:
    first, second = Waits(fd=7, overdue=True), Waits(fd=8, overdue=True)
    wait(registry, first, second)
    first.meanwhile = lambda: registry.claim(8)
    registry.sweep(0.0)
    assert (first.ended, second.ended) == (1, 0)


@pytest.mark.parametrize("why", ["overdue", "retrying"])
def test_a_descriptor_that_is_used_again_meanwhile_is_left_alone(
    registry: Registry[Waits], why: str
) -> None:
    first, closed, other = Waits(fd=7, overdue=True), Waits(fd=8, **{why: True}), Waits(fd=8)
    wait(registry, first, closed)

    def used_again() -> None:
        assert registry.claim(8) is closed
        wait(registry, other)

    first.meanwhile = used_again
    registry.sweep(0.0)
    assert (closed.ended, closed.retried, other.ended, other.retried) == (0, 0, 0, 0)
    assert registry.claim(8) is other


def test_an_error_at_a_connections_end_closes_it_and_stops_no_sweep(
    registry: Registry[Waits],
) -> None:
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


@pytest.mark.parametrize("kind", ["epoll", "selectors"])
@pytest.mark.parametrize("known", [False, True])
def test_a_sweep_between_publishing_and_arming_closes_nothing(kind: str, known: bool) -> None:
    """Its number would be another connection's by the time that it is armed."""
    poller: Any = make_poller(kind)
    registry: Registry[Waits] = Registry(
        poller, on_closed=lambda: None, log=logging.getLogger("test")
    )
    sock, peer = socket.socketpair()
    connection = Waits(sock)
    swept: list[threading.Thread] = []
    armed = False
    name = "arm" if known else "add"
    original = getattr(poller, name)

    def arm(fd: int, events: int) -> None:
        nonlocal armed
        setattr(poller, name, original)
        thread = threading.Thread(target=registry.sweep, args=(0.0,))
        swept.append(thread)
        thread.start()
        thread.join(0.2)  # far more than it needs; it has to wait
        os.fstat(fd)
        assert not connection.ended
        original(fd, events)
        armed = True

    def end() -> None:
        assert armed
        registry.forget(connection)
        sock.close()

    with peer:
        if known:
            registry.wait(connection, READ)
            assert registry.claim(connection.fd) is connection
        connection.deadline = float("-inf")
        connection.meanwhile = end
        setattr(poller, name, arm)
        registry.wait(connection, READ)
        for thread in swept:
            thread.join(30)
        assert connection.ended == 1
        assert not registry.waiting
    poller.close()


def test_an_event_that_comes_while_it_is_armed_is_not_lost(registry: Registry[Waits]) -> None:
    connection = Waits(fd=7)
    claimed: list[Waits | None] = []
    poller: Any = registry._poller
    poller.meanwhile = lambda: claimed.append(registry.claim(7))
    wait(registry, connection)
    assert claimed == [connection]
    assert not registry.waiting


# A kernel that has no room for one more descriptor to wait for


class Unwatchable:
    must_forget = False

    def add(self, fd: int, events: int) -> None:
        raise OSError("no more watches")

    arm = add


@pytest.fixture
def server() -> Iterator[Any]:
    """What a connection takes for its core."""
    server: Any = SimpleNamespace(
        limits=SimpleNamespace(is_tls=False, head_timeout_s=20.0),
        parser_for=lambda peer: None,
        output_rules=OutputRules(
            ahead_bytes=1 << 18,
            response_on_disk_bytes=0,
            timeout_s=60.0,
            least_bytes_per_s=0.0,
            sendfile=True,
            memory=OutputMemory(1 << 30, DiskBudget(0), pytest.fail),
            disk=DiskThreads(lambda error: pytest.fail(repr(error))),
            coalescing=Coalescing(lambda: False),
        ),
    )
    server.warnings = []
    server.log = SimpleNamespace(warning=lambda text, *args: server.warnings.append(text % args))
    poller: Any = Unwatchable()
    server.registry = Registry(poller, on_closed=lambda: None, log=server.log)
    yield server
    assert server.warnings == ["cannot wait for a connection: no more watches"]
    assert not server.registry.waiting


def test_an_idle_connection_that_cannot_be_watched_is_closed(server: Any) -> None:
    client, sock = socket.socketpair()
    with client, sock:
        sock.setblocking(False)
        connection = Connection(server, sock, "peer", "address")
        connection.begin()
        assert connection.state == CLOSED
        assert client.recv(1) == b""


@pytest.mark.timeout(20)
def test_a_response_that_cannot_be_waited_for_fails_and_leaves_the_app_its_thread(
    server: Any,
) -> None:
    client, sock = socket.socketpair()
    with client, sock:
        sock.setblocking(False)
        connection = Connection(server, sock, "peer", "address")
        connection.state = RUNNING
        with pytest.raises(ClientGone):
            connection.output.write(bytes(8 << 20))  # more than the kernel takes
        assert str(connection.output.error) == "no more watches"
        assert connection.state == RUNNING  # the app's thread is still in it, and closes it
        connection.app_is_done()
        assert connection.state == CLOSED
