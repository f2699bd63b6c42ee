"""Receive a known number of bytes into one buffer, in as few system calls as possible.

A loop over recv() costs a call, an object and a wait for the GIL for each piece. The functions of
this module receive directly into the result. On a blocking socket, one call receives all bytes
(MSG_WAITALL). So the receive waits for the GIL once, and not for each piece. With a time limit,
each call receives all bytes that have arrived.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..checks import LONGEST_S, checked_timeout
from ..errors import WSGIFastError
from .options import SocketInUse, is_plain_socket, is_tls_socket

if TYPE_CHECKING:
    import asyncio

    from _typeshed import WriteableBuffer

# Sockets with a running receive, by id(). A second receive could get bytes that belong to the
# first.
_receiving: dict[int, object] = {}
os.register_at_fork(after_in_child=_receiving.clear)

# Receives into a view. Returns the number of received bytes, which is 0 at the end of the
# connection.
Receive = Callable[[memoryview], int]


class ReceivingSocket(Protocol):
    """The methods of a socket that this module uses."""

    def fileno(self) -> int: ...
    def gettimeout(self) -> float | None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def recv_into(self, buffer: memoryview, nbytes: int = ..., flags: int = ..., /) -> int: ...


class ReceiveCount:
    """Counts of one or more receives, including failed and cancelled ones.

    :ivar calls: the number of receive calls, including calls that received nothing.
    :ivar received: the number of received bytes.
    """

    __slots__ = ("calls", "received")

    def __init__(self) -> None:
        self.calls = 0
        self.received = 0


class IncompleteReceive(WSGIFastError):
    """Raised if fewer bytes arrived than requested.

    The connection is then in the middle of a message.

    :ivar partial: the received bytes. If the caller passed a buffer, a view of its first bytes.
    :ivar expected: the number of bytes requested.
    """

    _reason = "the receive ended"

    def __init__(self, partial: bytes | memoryview, expected: int) -> None:
        super().__init__(f"{self._reason} after {len(partial)} of {expected} bytes")
        self.partial = partial
        self.expected = expected


class ClosedEarly(IncompleteReceive, EOFError):
    """Raised if the peer closed the connection, or reset it (see __cause__)."""

    _reason = "the peer closed the connection"


class ReceiveTimedOut(IncompleteReceive, TimeoutError):
    """Raised if the time limit of the whole receive was reached."""

    _reason = "the time was over"


def recv_exactly(
    sock: ReceivingSocket,
    size: int,
    *,
    timeout: float | None = None,
    count: ReceiveCount | None = None,
) -> bytes:
    """Receive exactly `size` bytes.

    Memory for all bytes is reserved at once, but is only used when they arrive. If the size comes
    from the peer, check it first.

    :param sock: a connected socket, such as a plain one, a TLS socket or gevent's.
    :param size: in bytes. For 0 the function returns at once without a call.
    :param timeout: seconds for the whole receive, not for each of its calls. The default is the
        socket's own timeout. A non-blocking socket requires a value. math.inf means no limit.
    :param count: counts the receive calls and bytes.
    :raises ClosedEarly: if the peer closes the connection first. The error contains the received
        bytes.
    :raises ReceiveTimedOut: after `timeout`. The error contains the received bytes.
    :raises SocketInUse: if another receive uses the socket. The other receive continues.
    :raises ValueError: if `size` or `timeout` is negative or not a number, or a non-blocking socket
        has no timeout.
    :raises OSError: on any other failure of the socket.
    """
    if size < 0:
        raise ValueError(f"cannot receive {size} bytes: the size must be 0 or more")
    receive = _receive_call(sock, timeout)
    counted = count or ReceiveCount()
    key = _claim(sock)
    # Python clears the memory of a new bytearray, which takes time, but not that of a bytes object.
    # Only BufferedReader.read(n) can receive into a bytes object, because it passes the memory of
    # its result to the raw stream. With a buffer of 1 byte, it neither copies nor reads ahead.
    try:
        return io.BufferedReader(_FillingStream(receive, counted), 1).read(size)
    finally:
        _receiving.pop(key, None)


def recv_exactly_into(
    sock: ReceivingSocket,
    buffer: WriteableBuffer,
    *,
    timeout: float | None = None,
    count: ReceiveCount | None = None,
) -> None:
    """Fill a buffer from a socket.

    For the other parameters and the errors see :func:`recv_exactly`.

    :param buffer: a writable and contiguous buffer: a bytearray, a memoryview, an array, ...
    """
    with memoryview(buffer) as given, given.cast("B") as view:
        receive = _receive_call(sock, timeout)
        key = _claim(sock)
        try:
            _fill(view, receive, count or ReceiveCount())
        finally:
            _receiving.pop(key, None)


async def async_recv_exactly(
    sock: socket.socket, size: int, *, count: ReceiveCount | None = None
) -> bytearray:
    """Receive `size` bytes from a non-blocking socket in asyncio. See :func:`recv_exactly`.

    For a time limit use asyncio.wait_for() or asyncio.timeout(). The bytes of a cancelled receive
    are lost. `count.received` is their number.

    :returns: a bytearray, because it is filled in several iterations of the event loop.
    :raises TypeError: for a TLS socket, which asyncio's socket methods reject as well. Use a
        stream.
    :raises SocketInUse: if another receive uses the socket. The other receive continues.
    :raises RuntimeError: from asyncio, if an asyncio transport uses the socket.
    """
    if size < 0:
        raise ValueError(f"cannot receive {size} bytes: the size must be 0 or more")
    buffer = bytearray(size)
    try:
        await async_recv_exactly_into(sock, buffer, count=count)
    except IncompleteReceive as error:
        error.partial = bytes(error.partial)
        raise
    return buffer


async def async_recv_exactly_into(
    sock: socket.socket, buffer: WriteableBuffer, *, count: ReceiveCount | None = None
) -> None:
    """Fill a buffer from a non-blocking socket in asyncio. See :func:`async_recv_exactly`.

    Each iteration of the event loop makes one receive call. So a fast peer does not delay other
    tasks.
    """
    from asyncio import get_running_loop  # already imported: its event loop runs this code

    if is_tls_socket(sock):
        raise TypeError("a TLS socket cannot be received from in asyncio: use a StreamReader")
    if sock.gettimeout() != 0:
        raise ValueError("the socket must be non-blocking: call sock.setblocking(False)")
    loop = get_running_loop()
    counted = count or ReceiveCount()
    view = memoryview(buffer).cast("B")
    size = len(view)
    got = 0
    done: asyncio.Future[None] = loop.create_future()

    def receive() -> None:
        nonlocal got
        if done.done():
            return  # cancelled in this iteration of the event loop
        try:
            got += _receive_once(sock.recv_into, view, got, counted)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - the awaiting task raises it
            done.set_exception(error)
        if got == size and not done.done():
            done.set_result(None)

    if not size:
        return
    key = _claim(sock)
    try:
        loop.add_reader(sock, receive)
        try:
            await done
        finally:
            loop.remove_reader(sock)
    finally:
        _receiving.pop(key, None)


def _claim(sock: ReceivingSocket) -> int:
    """Record that a call receives from a socket. Return the socket's key in `_receiving`.

    :raises SocketInUse: if another call receives from the socket.
    """
    key, claim = id(sock), object()
    if _receiving.setdefault(key, claim) is not claim:  # setdefault() is atomic
        raise SocketInUse(
            "another receive uses this socket: wait until it ends, or use one thread or task"
        )
    return key


class _FillingStream(io.RawIOBase):
    """A raw stream whose readinto() returns only when the whole buffer is filled."""

    def __init__(self, receive: Receive, count: ReceiveCount) -> None:
        self._receive = receive
        self._count = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        # If the receive fails, the reader frees the memory of `buffer`, but the traceback still
        # refers to this frame. So all views are released, and the error gets a copy of the received
        # bytes.
        with memoryview(buffer) as view:
            size = len(view)
            try:
                _fill(view, self._receive, self._count)
            except IncompleteReceive as error:
                error.partial = bytes(error.partial)
                raise
            finally:
                if isinstance(buffer, memoryview):
                    buffer.release()
        return size


def _fill(view: memoryview, receive: Receive, count: ReceiveCount) -> None:
    got = 0
    while got < len(view):
        got += _receive_once(receive, view, got, count)


def _receive_once(receive: Receive, view: memoryview, got: int, count: ReceiveCount) -> int:
    """Make one receive call for all missing bytes.

    :raises IncompleteReceive: at the end of the connection, or after the time limit.
    """
    count.calls += 1
    try:
        with view[got:] as unfilled:
            received = receive(unfilled)
    except TimeoutError as error:
        raise ReceiveTimedOut(view[:got], len(view)) from error
    except ConnectionError as error:
        raise ClosedEarly(view[:got], len(view)) from error
    if not received:
        raise ClosedEarly(view[:got], len(view))
    count.received += received
    return received


def _receive_call(sock: ReceivingSocket, timeout: float | None) -> Receive:
    """Choose the receive call for a socket and a time limit."""
    socket_timeout = sock.gettimeout()
    limit = socket_timeout if timeout is None else checked_timeout(timeout)
    if socket_timeout == 0 and timeout is None:
        raise ValueError("the socket is non-blocking: pass a timeout, or use async_recv_exactly")
    deadline = math.inf if limit is None else time.monotonic() + limit
    has_limit = socket_timeout is not None or limit is not None
    if not is_plain_socket(sock):
        return _receive_by_timeout(sock, deadline) if has_limit else sock.recv_into
    if has_limit:
        return _receive_by_poll(sock, deadline)
    return lambda unfilled: sock.recv_into(unfilled, 0, socket.MSG_WAITALL)


def _receive_by_poll(sock: socket.socket, deadline: float) -> Receive:
    """Return a receive call for plain sockets. It waits with poll()."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    is_blocking = sock.gettimeout() is None

    def receive(unfilled: memoryview) -> int:
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            if not poller.poll(None if remaining_s > LONGEST_S else remaining_s * 1e3):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):  # another process has received the bytes
                if is_blocking:
                    return sock.recv_into(unfilled, 0, socket.MSG_DONTWAIT)
                return os.readv(sock.fileno(), [unfilled])  # recv_into() would wait for its timeout

    return receive


def _receive_by_timeout(sock: ReceivingSocket, deadline: float) -> Receive:
    """Return a receive call for TLS sockets and gevent's. It sets the socket's own timeout."""

    def receive(unfilled: memoryview) -> int:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        socket_timeout = sock.gettimeout()
        sock.settimeout(None if remaining_s > LONGEST_S else remaining_s)
        try:
            return sock.recv_into(unfilled)
        finally:
            sock.settimeout(socket_timeout)

    return receive
