"""The acceptor: switched by several threads, without descriptors, and with many clients."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.server.output_harness import OPTIONS
from tests.support.calls import raising
from tests.workers.stepped_worker import Clock
from wsgifast.server import acceptor as accepting
from wsgifast.server.acceptor import _PAUSE_S, MAX_HANDSHAKES, SHORT_HANDSHAKE_S, Acceptor
from wsgifast.server.endpoint import HANDSHAKE, IDLE
from wsgifast.server.shared import _WARN_AGAIN_S, Shared

LISTENER = 3


class Listener:
    """A listener with this number of waiting connections, or with an error."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self.gone: set[int] = set()  # of the waiting connections
        self.error: OSError | None = None
        self.blocks = True

    def fileno(self) -> int:
        return LISTENER

    def getsockname(self) -> str:
        return "here"

    def setblocking(self, flag: bool) -> None:
        self.blocks = flag

    def accept(self) -> tuple[str, str]:
        if self.error is not None:
            raise self.error
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        if self.waiting in self.gone:
            raise ConnectionAbortedError
        return f"connection {self.waiting}", "peer"


class Listening:
    """A poller. It calls `between` as soon as it has forgotten a listener."""

    def __init__(self) -> None:
        self.fds: set[int] = set()
        self.queued: list[int] = []
        self.between: threading.Thread | None = None

    def forget(self, fd: int) -> None:
        if self.between is not None:
            self.between.start()
            # Long enough for the other thread to continue, if it is not blocked.
            self.between.join(0.3)
        self.fds.discard(fd)

    def requeue(self, fd: int) -> None:
        assert fd in self.fds
        self.queued.append(fd)

    def listen(self, fd: int) -> None:
        if fd in self.fds:
            raise FileExistsError(fd)  # like epoll
        self.fds.add(fd)


class Room:
    """Return the number of open connections, as the acceptor counts them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    def __len__(self) -> int:
        return self.most - self.left


class Connection(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


class Server:
    """What a server gives its acceptor.

    :param waiting: so many connections wait at its listener.
    :param room: so many more it may have.
    """

    def __init__(self, waiting: int = 0, room: int = 1000, most: int = 1000) -> None:
        self.listener = Listener(waiting)
        self.poller = Listening()
        self.room = Room(most)
        self.room.left = room
        self.open = True
        self.begun: list[str] = []
        self.warnings: list[str] = []
        self.state = IDLE  # of the accepted connections
        self.connections: list[Any] = []
        self.pushed: list[tuple[Callable[[], object], int]] = []  # with the events before them
        log = SimpleNamespace(warning=lambda text, *args: self.warnings.append(text % args))
        poller, listeners = cast(Any, self.poller), cast(Any, [self.listener])
        self.acceptor = Acceptor(
            shared=Shared(dataclasses.replace(OPTIONS, worker_connections=most), log),
            poller=poller,
            listeners=listeners,
            connections=self.room,
            may_accept=lambda: self.open,
            connect=lambda *accepted: self.connect(*accepted),
            push=lambda step, *, after: self.pushed.append((step, after)),
        )
        self.acceptor.update()

    def connect(self, sock: Any, peer: Any, address: Any) -> Any:
        assert (peer, address) == ("peer", "here")
        self.room.left -= 1
        connection = Connection(
            begin=lambda: self.begun.append(sock), state=self.state, deadline=1020.0
        )
        self.connections.append(connection)
        return connection

    @property
    def listens(self) -> bool:
        return self.poller.fds == {LISTENER}

    def accept(self) -> None:
        self.acceptor.accept(LISTENER)

    def accept_all(self) -> None:
        while self.listens and self.listener.waiting:
            self.accept()

    def close_others(self, room: int) -> None:
        """Close this number of connections."""
        self.room.left = room
        self.acceptor.on_closed()

    def set_open(self, is_open: bool) -> None:
        self.open = is_open
        self.acceptor.update()


@pytest.mark.parametrize("stopping", [False, True])
def test_connection_closing_meanwhile_makes_room(stopping: bool) -> None:
    server = Server(waiting=1, room=1)
    errors: list[BaseException] = []

    def close_one() -> None:
        try:
            server.close_others(server.room.left + 1)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    server.poller.between = threading.Thread(target=close_one)
    if stopping:
        server.set_open(False)
    else:
        server.accept()
    server.poller.between.join()
    assert not errors
    # A worker that stops accepts no clients any more. Other workers continue.
    assert server.listens is not stopping


def test_full_worker_leaves_the_others_in_the_queue() -> None:
    server = Server(waiting=5, room=2)
    server.accept()
    assert len(server.begun) == 2
    assert not server.listens
    server.acceptor.update()
    server.acceptor.on_closed()  # another worker has accepted it first
    assert not server.listens
    server.close_others(1)
    server.acceptor.on_closed()  # at once, which starts only one wait
    assert server.listens


def test_accepting_without_descriptors_pauses(clock: Clock) -> None:
    server = Server(waiting=1)
    server.listener.error = OSError(errno.EMFILE, "Too many open files")
    server.accept()
    assert "Too many open files" in server.warnings[0]
    assert not server.listens
    server.acceptor.update()
    assert not server.listens
    clock.now += 1.0
    server.acceptor.update()
    assert server.listens
    # A closed connection has released its descriptor, so there is nothing to wait for.
    server.accept()
    assert not server.listens
    server.acceptor.on_closed()
    assert server.listens
    # A worker that is full for a moment afterwards waits for nothing, either.
    server.listener.error, server.room.left = None, 1
    server.accept()
    assert not server.listens
    server.room.left = 1
    server.acceptor.update()
    assert server.listens


@pytest.mark.parametrize("behind_others", [False, True])
def test_unwatchable_listener_pauses_accepting(
    behind_others: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        server.poller.fds.discard(fd)  # a listener that can be forgotten, but not added again
        raise OSError(errno.ENOSPC, "No space left on device")

    server = Server(waiting=1)
    listen = server.poller.listen
    monkeypatch.setattr(server.poller, "listen", refuse)
    if behind_others:
        monkeypatch.setattr(server.poller, "requeue", refuse)
        server.accept()
        assert len(server.begun) == 1
    else:
        server.set_open(False)
        server.set_open(True)
    assert not server.listens
    assert not server.acceptor.listening
    assert server.warnings == [
        "Cannot accept connections: [Errno 28] No space left on device. The worker tries again soon"
    ]
    server.acceptor.update()
    clock.now += 1
    server.acceptor.update()  # the second attempt fails, too
    assert not server.listens
    monkeypatch.setattr(server.poller, "listen", listen)
    clock.now += 1
    server.acceptor.update()
    assert server.listens


def test_listener_that_cannot_be_watched_ends_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.set_open(False)
    server.open = True
    monkeypatch.setattr(
        server.poller, "listen", raising(OSError, errno.EPERM, "Operation not permitted")
    )
    with pytest.raises(PermissionError):
        server.acceptor.update()


def test_worker_that_hears_of_a_connection_accepts_it() -> None:
    """The worker should not listen any more, but the kernel has reported this connection to no
    other worker.
    """
    server = Server(waiting=3)
    server.set_open(False)
    assert not server.listens
    server.accept()
    assert len(server.begun) == 1
    server = Server(waiting=3, room=0)
    server.accept()
    assert len(server.begun) == 1


def test_listener_queues_behind_others_after_a_turn() -> None:
    server = Server(waiting=9)
    server.accept()
    assert server.poller.queued == [LISTENER]
    server.accept()
    assert server.poller.queued == [LISTENER] * 2
    server.set_open(False)
    server.accept()
    assert server.poller.queued == [LISTENER] * 2


def test_full_worker_is_logged_once_a_minute(clock: Clock) -> None:
    server = Server(waiting=500, room=100, most=100)
    server.accept_all()
    assert len(server.warnings) == 1
    assert "100 worker_connections" in server.warnings[0]
    for room in (1, 5, 9):  # some connections close, others arrive
        server.close_others(room)
        server.accept_all()
    assert len(server.warnings) == 1
    server.listener.error = OSError(errno.EMFILE, "Too many open files")
    server.close_others(1)
    server.accept()
    assert "Too many open files" in server.warnings[1]  # those are tested elsewhere
    server.listener.error = None
    for pause_s, warnings in ((1.0, 2), (60.0, 3), (1.0, 3)):
        clock.now += pause_s
        server.close_others(20)  # many clients come and leave
        server.accept_all()
        assert len(server.warnings) == warnings


def test_each_limit_has_its_own_warning(clock: Clock) -> None:
    most = MAX_HANDSHAKES + 5
    server = Server(waiting=2000, room=most, most=most)
    server.state = HANDSHAKE
    server.accept_all()
    for connection in server.connections:
        server.acceptor.on_handshake_end(connection)
    server.state = IDLE
    server.accept_all()
    first, second = server.warnings
    assert f"{MAX_HANDSHAKES} TLS handshakes" in first
    assert f"{most} worker_connections" in second


def test_tls_handshakes_are_limited(clock: Clock) -> None:
    server = Server(waiting=2000)
    server.state = HANDSHAKE
    server.accept_all()
    assert len(server.begun) == MAX_HANDSHAKES
    (warning,) = server.warnings
    assert f"{MAX_HANDSHAKES} TLS handshakes" in warning
    # A connection that ends makes room for another. While there is room, no client has less time.
    server.acceptor.on_handshake_end(server.connections[0])
    server.acceptor.shorten_handshakes()
    assert {connection.deadline for connection in server.connections} == {1020.0}
    server.accept_all()
    assert len(server.begun) == MAX_HANDSHAKES + 1
    # Connections that do not end have less time now, counted from their begin.
    clock.now += 1
    server.acceptor.shorten_handshakes()
    server.acceptor.shorten_handshakes()
    hurried = server.connections[1:]
    assert {connection.deadline for connection in hurried} == {1000.0 + SHORT_HANDSHAKE_S}
    assert server.connections[0].deadline == 1020.0
    for connection in hurried:
        server.acceptor.on_handshake_end(connection)
    assert server.listens


def test_listener_that_fails_otherwise_stays() -> None:
    server = Server(waiting=1)
    server.listener.error = OSError(errno.EPROTO, "Protocol error")
    server.accept()
    assert server.listens
    assert not server.warnings


def test_unknown_error_is_logged_and_waited_out(clock: Clock) -> None:
    server = Server(waiting=1)
    server.listener.error = OSError(errno.EPERM, "Operation not permitted")
    server.accept()
    server.acceptor.update()  # as each sweep does
    assert not server.listens
    assert "Operation not permitted" in server.warnings[0]
    clock.now += _PAUSE_S
    server.acceptor.update()
    assert server.listens
    server.accept()
    assert len(server.warnings) == 1  # at most one line a minute


def test_connection_that_has_gone_again_ends_no_turn() -> None:
    server = Server(waiting=5)
    server.listener.gone = {1, 3, 4}
    server.accept()
    assert server.begun == ["connection 2", "connection 0"]
    # A worker that should not listen any more accepts the one connection that was reported to it.
    server = Server(waiting=2)
    server.listener.gone = {1}
    server.set_open(False)
    server.accept()
    assert not server.begun


def test_missing_descriptors_are_logged_now_and_then(clock: Clock) -> None:
    server = Server(waiting=1)
    server.listener.error = OSError(errno.EMFILE, "Too many open files")
    for _ in range(100):
        server.accept()
        server.acceptor.on_closed()
        assert server.listens
    assert len(server.warnings) == 1
    clock.now += _WARN_AGAIN_S
    server.accept()
    assert len(server.warnings) == 2


def test_newcomers_are_accepted_amid_a_crowd() -> None:
    waiting = 5 * accepting._ACCEPTS // 2
    server = Server(waiting=waiting)
    server.accept()
    assert len(server.begun) == accepting._ACCEPTS
    events = 0
    while server.pushed:
        ((step, after),) = server.pushed
        server.pushed.clear()
        events += after
        step()
    # The accept needs no other event of the listener, which would come after those of the crowd.
    assert len(server.begun) == waiting
    # The other connections do not wait for the new clients, either.
    assert events == 2 * accepting._EVENTS_BETWEEN_TURNS


def test_unfinished_turn_is_continued_once() -> None:
    server = Server(waiting=5 * accepting._ACCEPTS)
    server.accept()
    server.accept()  # the poller has reported the listener again
    assert len(server.pushed) == 1


def test_connection_that_fails_at_once_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(waiting=3)
    monkeypatch.setattr(server, "connect", lambda sock, peer, address: None)
    server.accept()
    assert server.listener.waiting == 0
    assert not server.begun


def test_listeners_are_made_non_blocking() -> None:
    assert not Server().listener.blocks


def test_event_of_another_descriptor_accepts_nothing() -> None:
    server = Server(waiting=1)
    server.acceptor.accept(LISTENER + 1)
    assert server.listener.waiting == 1


def test_turn_under_way_is_known_before_its_connection() -> None:
    server = Server(waiting=1)
    in_turn, go_on = threading.Event(), threading.Event()
    accept = server.listener.accept

    def slowly() -> tuple[str, str]:
        if in_turn.is_set():
            raise BlockingIOError  # the thread whose turn continues has the only one
        in_turn.set()
        assert go_on.wait(60)
        return accept()

    server.listener.accept = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=server.acceptor.accept, args=(LISTENER,))
    thread.start()
    assert in_turn.wait(60)
    server.acceptor.close()
    assert server.acceptor.accepting
    assert not server.begun
    go_on.set()
    thread.join(60)
    assert server.begun == ["connection 0"]
    assert not server.acceptor.accepting


def test_connection_after_last_turn_is_not_accepted() -> None:
    server = Server(waiting=1)
    server.acceptor.close()
    assert server.begun == ["connection 0"]  # an event of the listener may have been dropped
    server.listener.waiting = 1
    server.accept()  # reported to it before
    server.acceptor.update()
    assert server.listener.waiting == 1
    assert not server.poller.fds
