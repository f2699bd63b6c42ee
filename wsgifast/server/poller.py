"""Wait for events of descriptors, with epoll or poll.

Theory of operation
-------------------
A connection is either *armed* here or *owned* by one thread. The poller reports one event of an
armed descriptor, and disarms the descriptor (EPOLLONESHOT). The thread that gets the event owns the
connection until it arms the descriptor again, even while another thread polls.

Listeners are level-triggered and stay armed. If several workers share a listener, epoll reports
each new connection to one of the workers (EPOLLEXCLUSIVE).

:class:`EpollPoller` leaves all of this to the kernel. :class:`PollPoller` implements it with
poll(2), for systems without epoll. If a thread arms a descriptor while another thread polls, a byte
in a pipe wakes the polling thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import threading
from typing import TypeAlias

# The values of IN and OUT in both epoll and poll. An event may have more bits (EPOLLHUP, EPOLLERR).
# In that case the next read or write fails.
READ = 0x1
WRITE = 0x4
# Set together with READ if the peer has shut down its sending direction (EPOLLRDHUP, only with
# epoll).
HUNG_UP = 0x2000

# Errors of a non-blocking socket, plain or with TLS, that is not ready.
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# epoll's event masks of armed descriptors.
_ONESHOT_MASKS = {
    events: events | (HUNG_UP if events & READ else 0) | getattr(select, "EPOLLONESHOT", 0)
    for events in (0, READ, WRITE, READ | WRITE)
}

# EPOLLEXCLUSIVE. Some builds of Python do not define it.
_EXCLUSIVE = 1 << 28

# The maximum number of events of one call (select.epoll's default) and of one poll (several calls).
_CALL_EVENTS = 1023
_POLL_EVENTS = 16 * _CALL_EVENTS

Event = tuple[int, int]


def make_poller() -> Poller:
    """Return a new poller of the best kind for this system."""
    return EpollPoller() if hasattr(select, "epoll") else PollPoller()


class EpollPoller:
    """A poller for Linux. The kernel reports each event to one thread only.

    All methods except :meth:`close` are thread-safe.
    """

    def __init__(self) -> None:
        self._epoll = epoll = select.epoll()
        self._pipe = _WakePipe()
        epoll.register(self._pipe.fd, select.EPOLLIN)
        self._register = epoll.register
        self._modify = epoll.modify

    def add(self, fd: int, events: int) -> None:
        """Arm a new descriptor for one event.

        :raises OSError: if the kernel has no memory or watches left.
        """
        self._register(fd, _ONESHOT_MASKS[events])

    def arm(self, fd: int, events: int) -> None:
        """Arm a descriptor again after its event, or change the events for which it is armed.

        :param events: 0 for no event. epoll still reports an error or a hang-up.
        """
        self._modify(fd, _ONESHOT_MASKS[events])

    def forget(self, fd: int) -> None:
        """Stop reporting events of a descriptor."""
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def listen(self, fd: int) -> None:
        """Report a listener each time it is readable, until :meth:`forget`."""
        self._register(fd, select.EPOLLIN | _EXCLUSIVE)

    def requeue(self, fd: int) -> None:
        """Make the kernel report a shared listener's next connection to other processes first."""
        # The kernel tries processes in the order in which they registered the listener.
        self._epoll.unregister(fd)
        self.listen(fd)

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for events.

        :param timeout: the maximum time in seconds, or None for no limit.
        """
        poll = self._epoll.poll
        events = poll(timeout)
        if len(events) >= _CALL_EVENTS:
            # Poll again, because the kernel may have more events, which may be more urgent.
            while len(more := poll(0)) >= _CALL_EVENTS and len(events) < _POLL_EVENTS:
                events += more
            events += more
        wake_fd = self._pipe.fd
        for event in events:
            if event[0] == wake_fd:
                self._pipe.empty()
                # Several calls of epoll may have reported the pipe more than once.
                return [each for each in events if each[0] != wake_fd]
        return events

    def wake(self) -> None:
        """Make the current poll return at once, or the next poll if no thread polls."""
        self._pipe.wake()

    def close(self) -> None:
        """Close the descriptors of the poller itself. No thread may be polling at this time."""
        self._epoll.close()
        self._pipe.close()


class PollPoller:
    """A poller for any system with poll(2). Only one thread polls at a time.

    It has the same methods as :class:`EpollPoller`. A descriptor that is closed while it is armed
    is reported once. The report has no effect.
    """

    def __init__(self) -> None:
        self._pipe = _WakePipe()
        self._armed: dict[int, int] = {}  # the events for which each descriptor is armed
        self._listeners = {self._pipe.fd}  # descriptors that stay armed
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
        pass  # poll() reports each connection to all processes

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
    """A pipe that wakes a polling thread. Each wake-up writes a byte, which the poll reads."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        # OSError: the pipe is full, so a wake-up is pending. Or it is closed: the worker has ended.
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"\0")

    def empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        write_fd, self._write_fd = self._write_fd, -1  # the number may be reused for another file
        os.close(write_fd)
        os.close(self.fd)
