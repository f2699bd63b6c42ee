"""Who waits for which descriptor: one interface, two pollers.

Theory of operation
-------------------
A connection is at any moment either *armed* here or *owned* by one thread, never both: an event is
delivered once and disarms its descriptor (EPOLLONESHOT), so that whichever thread receives it owns
the connection until it arms it again. Any thread may arm, at any time, while another one polls.
A descriptor that is *watched* is told of once for each time that something has come (EPOLLET), and
needs no arming: whoever owns it must read all there is, and an event may come meanwhile.
Listeners are not one-shot: they stay armed, and one event stands for one connection to accept. Of
the pollers that share one, as those of sibling processes do, epoll tells one only (EPOLLEXCLUSIVE).

:class:`EpollPoller` leaves all of this to the kernel. :class:`SelectorsPoller` does the
same over :mod:`selectors` (kqueue on macOS), whose objects may only be changed by the thread that
polls: changes are queued, and a pipe wakes the poll that has to take them up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import threading
from collections import deque
from typing import Protocol

from ..errors import ConfigurationError

__all__ = [
    "HUNG_UP",
    "POLLERS",
    "READ",
    "WRITE",
    "EpollPoller",
    "Poller",
    "SelectorsPoller",
    "make_poller",
]

# epoll's own values of EPOLLIN and EPOLLOUT, so that its events need no translation. An event may
# carry more bits (EPOLLHUP, EPOLLERR): whoever reads or writes next meets the error itself.
READ = 0x1
WRITE = 0x4
# Comes with READ: the peer will send nothing more than what is there, as far as the poller knows
# (EPOLLRDHUP; selectors do not tell).
HUNG_UP = 0x2000
# Comes with READ where a descriptor is watched: a receive ends in front of urgent data, although
# there may be more behind it (EPOLLPRI; RFC 9293 section 3.8.5).
_URGENT = 0x2

POLLERS = ("auto", "epoll", "selectors")

# What epoll is asked for, by the events that are waited for.
_ONCE = {
    events: events | (HUNG_UP if events & READ else 0) | getattr(select, "EPOLLONESHOT", 0)
    for events in (0, READ, WRITE, READ | WRITE)
}

# What epoll tells of in one call (select.epoll's own choice), and what a poll gathers of it.
_MOST_AT_ONCE = 1023
_MOST_EVENTS = 16 * _MOST_AT_ONCE
_WATCHED = READ | HUNG_UP | _URGENT | getattr(select, "EPOLLET", 0)

Event = tuple[int, int]


class Poller(Protocol):
    """Waits for descriptors. Every method but :meth:`close` may be called from any thread."""

    # Whether a descriptor must be forgotten before it is closed; epoll forgets by itself.
    must_forget: bool
    # Whether it can watch: tell of each arrival without being armed for it.
    watches: bool

    def add(self, fd: int, events: int) -> None:
        """Arm a descriptor that is new here for one event.

        :raises OSError: if the kernel refuses (out of memory, or of watches).
        """

    def arm(self, fd: int, events: int) -> None:
        """Arm a descriptor again after its event, or change what it waits for.

        :param events: 0 for nothing; epoll then still tells of an error or a hang-up.
        """

    def watch(self, fd: int, *, known: bool) -> None:
        """Report a descriptor whenever more has come to read, until it is armed or forgotten.

        Where :attr:`watches` is False, it is armed for the next time only.

        :param known: it has been armed or watched here before.
        """

    def forget(self, fd: int) -> None:
        """Stop waiting for a descriptor; to be called before it is closed or handed away."""

    def listen(self, fd: int) -> None:
        """Report a descriptor each time that it is readable, until :meth:`forget`."""

    def queue_behind_others(self, fd: int) -> None:
        """Let those that share a listener hear of its next connection first."""

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for events: at most `timeout` seconds, or without end where it is None."""

    def wake(self) -> None:
        """Make a poll that is waiting, or the next one, return at once."""

    def close(self) -> None:
        """Free the poller's own descriptors; nobody may be polling any more."""


def make_poller(kind: str) -> Poller:
    """Make the poller of a kind.

    :param kind: "epoll", "selectors", or "auto" for the first of them that this system has.
    :raises ConfigurationError: for any other kind, or epoll where there is none.
    """
    if kind not in POLLERS:
        raise ConfigurationError(f"poller_kind={kind!r}: expected one of {POLLERS}")
    has_epoll = hasattr(select, "epoll")
    if kind == "epoll" and not has_epoll:
        raise ConfigurationError("poller_kind='epoll': this system has none; use 'selectors'")
    return EpollPoller() if has_epoll and kind != "selectors" else SelectorsPoller()


class EpollPoller:
    """Linux: the kernel keeps the descriptors, and gives each event to one thread only."""

    must_forget = False
    watches = True

    def __init__(self) -> None:
        self._epoll = epoll = select.epoll()
        self._pipe = _WakePipe()
        epoll.register(self._pipe.fd, select.EPOLLIN)
        self._register = epoll.register
        self._exclusive = getattr(select, "EPOLLEXCLUSIVE", 0)
        self._modify = epoll.modify

    def add(self, fd: int, events: int) -> None:
        self._register(fd, _ONCE[events])

    def arm(self, fd: int, events: int) -> None:
        self._modify(fd, _ONCE[events])

    def watch(self, fd: int, *, known: bool) -> None:
        (self._modify if known else self._register)(fd, _WATCHED)

    def forget(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def listen(self, fd: int) -> None:
        try:
            self._register(fd, select.EPOLLIN | self._exclusive)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._exclusive:
                raise
            self._exclusive = 0  # a kernel before Linux 4.5
            self._register(fd, select.EPOLLIN)

    def queue_behind_others(self, fd: int) -> None:
        if self._exclusive:  # the kernel asks in the order in which they have registered
            self._epoll.unregister(fd)
            self._register(fd, select.EPOLLIN | self._exclusive)

    def poll(self, timeout: float | None) -> list[Event]:
        poll = self._epoll.poll
        events = poll(timeout)
        if len(events) >= _MOST_AT_ONCE:
            # Who comes behind them may have more hurry.
            while len(more := poll(0)) >= _MOST_AT_ONCE and len(events) < _MOST_EVENTS:
                events += more
            events += more
        wake_fd = self._pipe.fd
        for event in events:
            if event[0] == wake_fd:
                self._pipe.drain()
                # Of many events it is told again each time that more are asked for.
                return [each for each in events if each[0] != wake_fd]
        return events

    def wake(self) -> None:
        self._pipe.wake()

    def close(self) -> None:
        self._epoll.close()
        self._pipe.close()


class SelectorsPoller:
    """Any system with :mod:`selectors`; one thread polls, a second one that comes waits for it."""

    must_forget = True
    watches = False

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipe = _WakePipe()
        self._selector.register(self._pipe.fd, selectors.EVENT_READ)
        # What others have asked for since the last poll: (descriptor, events), 0 to forget it.
        self._changes: deque[Event] = deque()
        self._listeners: set[int] = set()
        self._polling = threading.Lock()

    def add(self, fd: int, events: int) -> None:
        self._changes.append((fd, events))
        self._pipe.wake()

    arm = add

    def watch(self, fd: int, *, known: bool) -> None:
        self.add(fd, READ)

    def forget(self, fd: int) -> None:
        # Its number may be used again before the poll takes this up; the changes keep their order,
        # and an event for a stranger is one that every owner must be able to take anyway.
        self._listeners.discard(fd)
        self.add(fd, 0)

    def listen(self, fd: int) -> None:
        self._listeners.add(fd)
        self.add(fd, READ)

    def queue_behind_others(self, fd: int) -> None:
        pass  # they hear of it all at once

    def poll(self, timeout: float | None) -> list[Event]:
        with self._polling:
            self._take_up_changes()
            ready = self._selector.select(timeout)
            events = []
            for key, mask in ready:
                fd = key.fd
                if fd == self._pipe.fd:
                    self._pipe.drain()
                    continue
                if fd not in self._listeners:
                    self._change(fd, 0)
                events.append(
                    (
                        fd,
                        (READ if mask & selectors.EVENT_READ else 0)
                        | (WRITE if mask & selectors.EVENT_WRITE else 0),
                    )
                )
            return events

    def wake(self) -> None:
        self._pipe.wake()

    def close(self) -> None:
        self._selector.close()
        self._pipe.close()

    def _take_up_changes(self) -> None:
        while self._changes:
            self._change(*self._changes.popleft())

    def _change(self, fd: int, events: int) -> None:
        mask = (selectors.EVENT_READ if events & READ else 0) | (
            selectors.EVENT_WRITE if events & WRITE else 0
        )
        try:
            if not mask:
                self._selector.unregister(fd)
            elif fd in self._selector.get_map():
                self._selector.modify(fd, mask)
            else:
                self._selector.register(fd, mask)
        except (KeyError, OSError):
            pass  # it is not here, or has been closed meanwhile: nothing left to wait for


class _WakePipe:
    """A pipe that makes a poll return; each wake is one byte, drained by the poll that saw it."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        # Full: a wake is under way already. Closed: the worker has stopped.
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"\0")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        write_fd, self._write_fd = self._write_fd, -1  # the number may be somebody else's soon
        os.close(write_fd)
        os.close(self.fd)
