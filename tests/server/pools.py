"""A pool whose jobs are callables; they come by `push`, or as an event: a byte on a socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from wsgifast.server.poller import READ, EpollPoller, Event, Poller, SelectorsPoller
from wsgifast.server.pool import Close, Pool, Task

__all__ = ["PATIENCE_S", "SIZE", "SPARE", "App", "Gate", "Harness", "poller_of"]

# Waiting that only a broken pool would sit out.
PATIENCE_S = 60.0
SIZE = 3
SPARE = "wsgifast-spare"

App = Callable[[], object]


def poller_of(kind: str) -> Poller:
    """:param kind: "epoll" or "selectors"."""
    kinds: dict[str, type[Poller]] = {"epoll": EpollPoller, "selectors": SelectorsPoller}
    return kinds[kind]()


class Harness:
    """A pool with its monitor in a thread of its own, and sockets whose events are apps.

    :param round_s: how long the monitor stays in one call, unless an interrupt ends it.
    """

    def __init__(self, kind: str, size: int, round_s: float = 10 * PATIENCE_S) -> None:
        self.poller = poller_of(kind)
        user: Any = self
        self.pool = Pool(size, self.poller, user)
        self.received_in: set[str] = set()
        self.ran_in: set[str] = set()
        self.failed = threading.Event()
        self.rounds = 0  # of the monitor
        self._round_s = round_s
        self._apps: dict[int, tuple[socket.socket, App]] = {}
        self._transfers: dict[int, Callable[[int], object]] = {}
        self._sockets = contextlib.ExitStack()
        self.stopping = False
        self._monitor = threading.Thread(target=self._monitor_on, name="monitor")
        before = set(threading.enumerate())
        self.pool.start()
        self.threads = sorted(set(threading.enumerate()) - before, key=lambda t: t.name)
        self._monitor.start()

    def deliver(self, app: App) -> None:
        """Let an event be the app's start."""
        sock = self._readable()
        self._apps[sock.fileno()] = (sock, app)
        self.poller.add(sock.fileno(), READ)

    def push(self, app: App) -> None:
        """Let a task be the app's start."""
        self.pool.push(lambda: app)

    def transfer(self, step: Callable[[int], object], *, push: bool = False) -> None:
        """Let an event be input or output only, with nothing to run.

        :param step: called with a descriptor that is readable.
        :param push: push the event instead of leaving it to the poller.
        """
        fd = self._readable().fileno()
        self._transfers[fd] = step
        if push:
            self.pool.push((fd, 0))
        else:
            self.poller.add(fd, READ)

    def sees_an_event(self, *, push: bool = False) -> bool:
        """Whether somebody handles an event that comes now, and has nothing to run."""
        handled = threading.Event()
        self.transfer(lambda _: handled.set(), push=push)
        return handled.wait(PATIENCE_S)

    @contextlib.contextmanager
    def occupied(self, count: int = SIZE) -> Iterator[list[Gate]]:
        """Keep so many threads in apps."""
        gates = [Gate() for _ in range(count)]
        try:
            for gate in gates:
                self.deliver(gate)
                assert gate.entered.wait(PATIENCE_S)
            yield gates
        finally:
            for gate in gates:
                gate.release()

    def _readable(self) -> socket.socket:
        sock, peer = socket.socketpair()
        self._sockets.enter_context(sock)
        self._sockets.enter_context(peer)
        peer.send(b"a")
        return sock

    def stop(self) -> None:
        """Stop the pool, and see that all its threads end."""
        self.stopping = True
        self.pool.monitor.interrupt()
        self._monitor.join(PATIENCE_S)
        self.pool.stop()
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} goes on"
        self._sockets.close()
        self.poller.close()

    def _monitor_on(self) -> None:
        while not self.stopping:
            self.pool.monitor.watch(self._round_s)
            self.rounds += 1

    # What the pool calls.

    def receive(self, item: Event | Task) -> App | None:
        self.received_in.add(threading.current_thread().name)
        if not isinstance(item, tuple):
            return item()
        if item[0] in self._transfers:
            self._transfers[item[0]](item[0])
            return None
        sock, app = self._apps[item[0]]
        assert sock.recv(2) == b"a", "an event has been delivered twice"
        return app

    def run(self, app: App) -> None:
        self.ran_in.add(threading.current_thread().name)
        app()

    def on_tick(self) -> bool:
        return False

    def on_failure(self) -> None:
        self.failed.set()

    def on_queued(self, app: App) -> None: ...
    def on_taken(self, app: App) -> None: ...
    def on_saturation(self) -> None: ...

    def close_body(self, close: Close) -> None:
        close.call()


class Gate:
    """An app that waits in its thread until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.left = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._released.wait(PATIENCE_S)
        self.left.set()

    def release(self) -> None:
        self._released.set()
