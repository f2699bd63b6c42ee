"""Accepting: on and off from several threads, and between the events of a crowd."""

from __future__ import annotations

import socket
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.workers import FastWorker

LISTENER = 3


class Interrupted:
    """A dispatcher in which another thread comes between as soon as a listener is forgotten."""

    def __init__(self) -> None:
        self.listening = {LISTENER}
        self.other: threading.Thread | None = None

    def forget(self, fd: int) -> None:
        assert self.other is not None
        self.other.start()
        # Long enough for the other one to come through, if nothing holds it back.
        self.other.join(0.3)
        self.listening.discard(fd)

    def listen(self, fd: int) -> None:
        if fd in self.listening:
            raise FileExistsError(fd)  # as epoll does
        self.listening.add(fd)


def worker_with(dispatcher: Interrupted, *, stopping: bool) -> Any:
    worker: Any = FastWorker.__new__(FastWorker)
    worker.dispatcher = dispatcher
    worker._accepting = True
    worker._stopping = stopping
    worker._accept_lock = threading.Lock()
    worker._listeners = {LISTENER: None}
    return worker


@pytest.mark.parametrize("stopping", [False, True])
def test_a_connection_closes_while_the_last_one_allowed_is_accepted(stopping: bool) -> None:
    dispatcher = Interrupted()
    worker = worker_with(dispatcher, stopping=stopping)
    errors: list[BaseException] = []

    def resume() -> None:
        try:
            worker._set_accepting(True)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    dispatcher.other = threading.Thread(target=resume)
    worker._set_accepting(False)
    dispatcher.other.join()
    assert not errors
    # A worker that stops takes nobody any more; any other goes on.
    assert worker._accepting is not stopping
    assert dispatcher.listening == (set() if stopping else {LISTENER})


class Queue:
    """A listener with so many connections waiting."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting

    def accept(self) -> tuple[socket.socket, None]:
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        return socket.socket(), None


def test_newcomers_do_not_wait_for_the_end_of_a_crowds_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[socket.socket] = []

    def begin(sock: socket.socket) -> None:
        begun.append(sock)
        sock.close()

    served: list[int] = []
    monkeypatch.setattr(
        "wsgifast.workers.worker.Connection",
        lambda server, sock, peer, address: SimpleNamespace(begin=partial(begin, sock)),
    )
    queue = Queue(waiting=20)
    worker: Any = FastWorker.__new__(FastWorker)
    worker._accepting = True
    worker._tls = None
    worker._listeners = {LISTENER: (queue, None)}
    worker._crowded = None
    worker._max_connections = 1000
    worker.connections = Bag()
    busy = SimpleNamespace(on_event=served.append)
    worker.waiting = dict.fromkeys(range(100, 200), busy)
    worker._receive((LISTENER, 1))
    accepted_at_once = len(begun)
    assert 0 < accepted_at_once < 20
    for fd in range(100, 200):
        worker._receive((fd, 4))
    # Without one more event of the listener, which would come behind the crowd's.
    assert len(begun) == 20
    assert len(served) == 100
    assert worker._crowded is None


class Bag(list[Any]):
    """As much of a set as is needed, of things that have no hash."""

    add = list.append
