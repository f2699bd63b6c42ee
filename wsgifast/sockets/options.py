"""Socket options (TCP_NODELAY, the send buffer) and addresses of listeners."""

from __future__ import annotations

import _socket
import contextlib
import errno
import re
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeGuard

from ..errors import WSGIFastError

# The attributes in which objects store their socket, in the order in which they are tried:
# - `sock`: imaplib, smtplib, poplib, ftplib, http.client
# - `connection`, `request`: socketserver's handlers
# - `raw`, then `_sock`: streams of socket.makefile()
# - `rfile`: request bodies of gevent and cheroot
# - `fp`: responses of http.client
# - `transport`: asyncio's protocols
_OWNER_ATTRIBUTES = (
    "sock",
    "socket",
    "connection",
    "request",
    "raw",
    "_sock",
    "rfile",
    "fp",
    "transport",
)
# The longest chain of owners, such as a buffered reader, its raw stream and the socket.
_MAX_OWNERS = 5

# tcpi_rtt (smoothed) and tcpi_min_rtt (the minimum of the last minutes) in Linux's struct tcp_info
# (linux/tcp.h), in microseconds.
_TCP_INFO_RTT_AND_LEAST = struct.Struct("=68xI76xI")
# tcpi_state, and tcpi_last_data_recv: the milliseconds since the last segment with data came.
_TCP_INFO_STATE_AND_LAST_DATA = struct.Struct("=B51xI")
# The states of a connection whose client has closed its side (net/tcp_states.h).
_CLOSED_BY_CLIENT = frozenset({7, 8})
# Below this round-trip time the peer is on this host or in this rack.
NEAR_RTT_US = 1_000
# A server's first send buffer for a near client, so that thousands of slow ones take less of the
# kernel's memory. The kernel sizes it again for a client that makes room within QUICK_S.
FIRST_SEND_BUFFER_BYTES = 64 * 1024
QUICK_S = 0.005
# SO_BUF_LOCK of Linux 5.14 (asm-generic/socket.h), which the socket module does not name.
_SO_BUF_LOCK = 72
# The most that auto-tuning reaches (tcp_wmem), for older kernels.
_TUNED_SEND_BUFFER_BYTES = 4 * 1024 * 1024
_PORT = re.compile(r"[0-9]{1,5}")


class SocketLike(Protocol):
    """The part of socket.socket that is used here. gevent's socket is not a subclass of it."""

    @property
    def family(self) -> int: ...

    def fileno(self) -> int: ...
    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...
    @property
    def getsockopt(self) -> Callable[..., Any]: ...


class SocketNotFound(WSGIFastError, TypeError):
    """An object has no socket, or has not connected it yet."""


class SocketInUse(WSGIFastError, RuntimeError):
    """Two receives or sends at once would split one message between them.

    Wait for the end of one before the next begins, or use one thread or task for each socket.
    """


def set_nodelay(owner: object, enabled: bool = True) -> bool:
    """Set (or clear) TCP_NODELAY for a socket, or for any object that owns one.

    Without it, a small write after another one waits for the peer's acknowledgement (Nagle's
    algorithm, RFC 896). The peer may delay that (RFC 1122, 4.2.3.2), on Linux by 40 ms.

    :param owner: a socket, an ssl or gevent socket, an asyncio transport or stream writer, or an
        object that owns one: imaplib.IMAP4, smtplib.SMTP, http.client.HTTPConnection, a file made
        by socket.makefile(), ...
    :returns: True if the option is set. False if the socket has no such option (Unix, UDP).
    :raises SocketNotFound: if the object owns no socket (it may not be connected yet).
    :raises OSError: if the socket is closed.
    """
    sock = owned_socket(owner)
    if sock is None:
        raise SocketNotFound(
            f"{type(owner).__name__} owns no socket: hand over a connected socket, or a client "
            "object after it has connected"
        )
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(enabled))
    except OSError as error:
        if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            return False  # UDP and the like
        raise
    return True


def last_received(sock: Any) -> tuple[float, bool] | None:
    """Return when the last bytes of a TCP connection arrived, also those that wait in the kernel.

    :returns: for how many seconds they are there, and whether the client has closed its side. None
        if the kernel does not know.
    """
    info = _TCP_INFO_STATE_AND_LAST_DATA
    try:
        state, ago_ms = info.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, info.size))
    except (OSError, AttributeError, struct.error):  # closed, not TCP, or not Linux
        return None
    return ago_ms / 1000, state in _CLOSED_BY_CLIENT


def owned_socket(owner: object) -> SocketLike | None:
    """Return the socket that an object is or owns, or None.

    :param owner: any object. :func:`set_nodelay` lists the known ones.
    """
    for _ in range(_MAX_OWNERS):
        if _is_socket(owner):
            return owner
        get_extra_info = getattr(owner, "get_extra_info", None)
        if callable(get_extra_info):  # asyncio's transports and StreamWriter
            owner = get_extra_info("socket")
            continue
        for attribute in _OWNER_ATTRIBUTES:
            owned = getattr(owner, attribute, None)
            if callable(owned) and not _is_socket(owned):
                continue  # imaplib's socket() is a method. Its `sock` was found before.
            if owned is not None:
                owner = owned
                break
        else:
            return None
    return owner if _is_socket(owner) else None


def is_plain_socket(sock: object) -> TypeGuard[socket.socket]:
    """Return whether a system call on the descriptor has the same effect as the socket's method.

    It does not for these sockets:

    - TLS sockets, because it would bypass TLS.
    - gevent's sockets, because it would block all greenlets. They are socket.socket once gevent has
      patched the module.
    - Subclasses, which may do anything.
    """
    return type(sock) is socket.socket and isinstance(sock, _socket.socket)


def is_tls_socket(sock: object) -> bool:
    """Return whether a socket is an ssl.SSLSocket, without importing ssl."""
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(sock, ssl.SSLSocket)


def limit_send_buffer(sock: SocketLike, size: int = FIRST_SEND_BUFFER_BYTES) -> bool:
    """Give a connection to a near peer a small send buffer.

    Bytes that a slow peer does not read count against the kernel's memory for all TCP connections
    (tcp_mem). The kernel grows send buffers to megabytes, which only a long path needs. The size is
    set if the kernel has measured a short round trip (TCP_INFO). Otherwise, and for a Unix socket,
    it is not changed.

    :param size: bytes. The kernel doubles it, to allow for its bookkeeping (socket(7)).
    :returns: True if the buffer was set. See :func:`release_send_buffer`. If the peer has left,
        the next send fails.
    """
    try:
        if not hasattr(socket, "TCP_INFO") or round_trip_us(sock) > NEAR_RTT_US:
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    except (OSError, struct.error):  # the peer has gone, no TCP socket, or Linux before 4.6
        return False
    return True


def limit_unsent(sock: SocketLike, size: int) -> None:
    """Have a TCP socket be writable only while the kernel has less than `size` bytes to send.

    Bytes that the peer has not acknowledged do not count, so the connection is as fast as before
    (TCP_NOTSENT_LOWAT, Linux and macOS). Later writes then need not wait for much.

    :param size: 0 for the system's default.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with contextlib.suppress(OSError):  # a Unix socket, or the peer has gone
            sock.setsockopt(socket.IPPROTO_TCP, option, size)


def release_send_buffer(sock: SocketLike) -> None:
    """Leave the size of a send buffer to the kernel again, as before :func:`limit_send_buffer`.

    A peer that reads quickly costs less with a large one: the sender is woken less often.

    :raises OSError: if the socket is closed.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        # A kernel before 5.14. net.core.wmem_max limits the size.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _TUNED_SEND_BUFFER_BYTES)


def round_trip_us(sock: SocketLike) -> int:
    """Return the minimum round-trip time of a TCP connection, in microseconds.

    The minimum shows how far away the peer is. The smoothed time includes delays of a busy peer.

    :raises OSError: if the socket is closed or not TCP.
    """
    # Before it is measured, the minimum is the largest number.
    return min(_round_trips_us(sock))


def smoothed_round_trip_us(sock: SocketLike) -> int:
    """Return the smoothed round-trip time of a TCP connection, in microseconds.

    :raises OSError: as :func:`round_trip_us`; or if the system does not tell.
    """
    if not hasattr(socket, "TCP_INFO"):
        raise OSError(errno.ENOPROTOOPT, "no TCP_INFO")
    return _round_trips_us(sock)[0]


def _round_trips_us(sock: SocketLike) -> tuple[int, int]:
    """Return the smoothed round-trip time, and the minimum."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT_AND_LEAST.size)
    smoothed, least = _TCP_INFO_RTT_AND_LEAST.unpack(info)
    return smoothed, least


def _is_socket(candidate: object) -> TypeGuard[SocketLike]:
    return hasattr(candidate, "setsockopt") and hasattr(candidate, "family")


class Address(NamedTuple):
    """The address of a listener. Port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: object) -> Address | None:
        """Parse HOST:PORT, [IPV6]:PORT or PORT (on 127.0.0.1). Return None for anything else."""
        if not isinstance(text, str):
            return None
        host, _, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if not _PORT.fullmatch(port) or int(port) > 65535 or (":" in host and not is_bracketed):
            return None
        return cls(host[1:-1] if is_bracketed else host or "127.0.0.1", int(port))

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def check_free(self) -> None:
        """:raises OSError: if nothing can listen there."""
        with socket.socket(self.family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
