"""Waits for events of descriptors: one interface, two implementations.

Theory of operation
-------------------
A connection is either *armed* here or *owned* by one thread. An event is reported once and disarms
its descriptor (EPOLLONESHOT). So the thread that gets the event owns the connection until it arms
it again. Any thread may arm a descriptor while another thread polls.

Listeners are level-triggered and stay armed. If several workers share a listener, epoll reports a
connection to one of them (EPOLLEXCLUSIVE).

:class:`EpollPoller` leaves all of this to the kernel. :class:`PollPoller` does it with poll(2)
elsewhere: a pipe wakes the poll under way if a descriptor is armed.
"""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import threading
from typing import TypeAlias

# epoll's and poll's values of IN and OUT, so that their events need no translation. An event may
# have more bits set (EPOLLHUP, EPOLLERR): the next read or write then fails.
READ = 0x1
WRITE = 0x4
# Set together with READ: the peer has shut down its sending side (EPOLLRDHUP, epoll only).
HUNG_UP = 0x2000

# The errors of a non-blocking socket, plain or TLS, that is not ready.
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# epoll's event mask of an armed descriptor.
_ONCE = {
    events: events | (HUNG_UP if events & READ else 0) | getattr(select, "EPOLLONESHOT", 0)
    for events in (0, READ, WRITE, READ | WRITE)
}

# EPOLLEXCLUSIVE, which Pythons that were built with old headers do not have.
_EXCLUSIVE = 1 << 28

# The most events of one call (select.epoll's default), and of one poll, which may make several.
_MOST_AT_ONCE = 1023
_MOST_EVENTS = 16 * _MOST_AT_ONCE

Event = tuple[int, int]


def make_poller() -> Poller:
    """Make the best poller that this system has."""
    return EpollPoller() if hasattr(select, "epoll") else PollPoller()


class EpollPoller:
    """Linux: the kernel gives each event to one thread only.

    Every method but :meth:`close` may be called from any thread.
    """

    def __init__(self) -> None:
        self._epoll = epoll = select.epoll()
        self._pipe = _WakePipe()
        epoll.register(self._pipe.fd, select.EPOLLIN)
        self._register = epoll.register
        self._modify = epoll.modify

    def add(self, fd: int, events: int) -> None:
        """Arm a new descriptor for one event.

        :raises OSError: if the kernel refuses (out of memory, or of watches).
        """
        self._register(fd, _ONCE[events])

    def arm(self, fd: int, events: int) -> None:
        """Arm a descriptor again after its event, or change the events it is armed for.

        :param events: 0 for none. epoll then still reports an error or a hang-up.
        """
        self._modify(fd, _ONCE[events])

    def forget(self, fd: int) -> None:
        """Report nothing more of a descriptor."""
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def listen(self, fd: int) -> None:
        """Report a listener whenever it is readable, until :meth:`forget`."""
        self._register(fd, select.EPOLLIN | _EXCLUSIVE)

    def requeue(self, fd: int) -> None:
        """Have the next connection of a shared listener reported to other processes first."""
        # The kernel asks the processes in the order of registration.
        self._epoll.unregister(fd)
        self.listen(fd)

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for events: at most `timeout` seconds, or indefinitely if it is None."""
        poll = self._epoll.poll
        events = poll(timeout)
        if len(events) >= _MOST_AT_ONCE:
            # Those that follow may be more urgent.
            while len(more := poll(0)) >= _MOST_AT_ONCE and len(events) < _MOST_EVENTS:
                events += more
            events += more
        wake_fd = self._pipe.fd
        for event in events:
            if event[0] == wake_fd:
                self._pipe.empty()
                # It may be among the events more than once, if several calls were made.
                return [each for each in events if each[0] != wake_fd]
        return events

    def wake(self) -> None:
        """Make the poll that is waiting, or else the next one, return at once."""
        self._pipe.wake()

    def close(self) -> None:
        """Close the poller's own descriptors. No thread may be polling."""
        self._epoll.close()
        self._pipe.close()


class PollPoller:
    """Any system with poll(2). Only one thread polls at a time.

    The methods are those of :class:`EpollPoller`. A descriptor that is closed while it is armed is
    reported once, without effect.
    """

    def __init__(self) -> None:
        self._pipe = _WakePipe()
        self._armed: dict[int, int] = {}  # the events that each descriptor is watched for
        self._listeners = {self._pipe.fd}  # those that stay armed
        self._armed[self._pipe.fd] = READ
        self._polling = threading.Lock()

    def add(self, fd: int, events: int) -> None:
        self._armed[fd] = events
        self._pipe.wake()

    arm = add

    def forget(self, fd: int) -> None:
        self._listeners.discard(fd)
        self._armed.pop(fd, None)

    def listen(self, fd: int) -> None:
        self._listeners.add(fd)
        self.add(fd, READ)

    def requeue(self, fd: int) -> None:
        pass  # each connection is reported to all of them

    def poll(self, timeout: float | None) -> list[Event]:
        with self._polling:
            poll = select.poll()
            for fd, events in self._armed.copy().items():
                poll.register(fd, events)
            reported = []
            for fd, events in poll.poll(None if timeout is None else timeout * 1000):
                if fd == self._pipe.fd:
                    self._pipe.empty()
                elif fd in self._listeners or self._armed.pop(fd, None) is not None:
                    reported.append((fd, events))
            return reported

    def wake(self) -> None:
        self._pipe.wake()

    def close(self) -> None:
        self._pipe.close()


Poller: TypeAlias = EpollPoller | PollPoller


class _WakePipe:
    """A pipe that makes a poll return. Each wake-up is one byte, which the poll reads."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        # Full: a wake-up is pending already. Closed: the worker has stopped.
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"\0")

    def empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        write_fd, self._write_fd = self._write_fd, -1  # wake() must not use a reused number
        os.close(write_fd)
        os.close(self.fd)
