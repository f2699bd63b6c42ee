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

# The attributes in which objects store their socket. They are tried in this order:
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
# The longest chain of owners, such as a buffered reader that owns a raw stream, which owns the
# socket.
_MAX_OWNERS = 5

# tcpi_rtt (smoothed) and tcpi_min_rtt (the minimum of the last minutes) in Linux's struct tcp_info
# (linux/tcp.h), in microseconds.
_TCP_INFO_RTT_AND_MIN = struct.Struct("=68xI76xI")
# tcpi_state, and tcpi_last_data_recv: the milliseconds since the last segment with data arrived.
_TCP_INFO_STATE_AND_LAST_DATA = struct.Struct("=B51xI")
# The states of a connection whose client has sent its FIN (net/tcp_states.h).
_CLOSED_BY_CLIENT = frozenset({7, 8})
# A peer with a shorter round-trip time is on this host or in the same rack.
NEAR_RTT_US = 1_000
# The first send buffer for a near client. It is small, so that thousands of slow clients use less
# memory of the kernel. If the client receives bytes within QUICK_S, the kernel chooses the size
# again.
FIRST_SEND_BUFFER_BYTES = 64 * 1024
QUICK_S = 0.005
# SO_BUF_LOCK of Linux 5.14 (asm-generic/socket.h), which the socket module does not name.
_SO_BUF_LOCK = 72
# The largest send buffer of the kernel's auto-tuning (tcp_wmem). Kernels without SO_BUF_LOCK get
# this size instead.
_TUNED_SEND_BUFFER_BYTES = 4 * 1024 * 1024
_PORT = re.compile(r"[0-9]{1,5}")


class SocketLike(Protocol):
    """The methods of a socket that this module uses.

    gevent's socket is not a subclass of socket.socket.
    """

    @property
    def family(self) -> int: ...

    def fileno(self) -> int: ...
    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...
    @property
    def getsockopt(self) -> Callable[..., Any]: ...


class SocketNotFound(WSGIFastError, TypeError):
    """Raised for an object without a socket, or whose socket is not connected yet."""


class SocketInUse(WSGIFastError, RuntimeError):
    """Raised for a second receive or send at the same time. Both would get parts of one message.

    Start the second when the first has ended. Or use one thread or task for each socket.
    """


def set_nodelay(owner: object, enabled: bool = True) -> bool:
    """Set (or clear) TCP_NODELAY for a socket, or for any object that owns one.

    Without the option, a second small write waits until the peer acknowledges the first (Nagle's
    algorithm, RFC 896). The peer may delay the acknowledgement (RFC 1122, 4.2.3.2). Linux delays it
    by 40 ms.

    :param owner: a socket, an ssl or gevent socket, an asyncio transport or stream writer, or an
        object that owns a socket: imaplib.IMAP4, smtplib.SMTP, http.client.HTTPConnection, a file
        made by socket.makefile(), ...
    :returns: True if the option is set. False if the socket has no such option (Unix, UDP).
    :raises SocketNotFound: if the object owns no socket (it may not be connected yet).
    :raises OSError: if the socket is closed.
    """
    sock = owned_socket(owner)
    if sock is None:
        raise SocketNotFound(
            f"{type(owner).__name__} owns no socket: pass a connected socket, or a client "
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
    """Return when the last bytes of a TCP connection arrived, even if they are still in the kernel.

    :returns: the seconds since the last bytes arrived, and whether the client has closed its
        sending direction. None if the kernel does not report them.
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
                continue  # imaplib has a method socket(). Its attribute `sock` is tried before it.
            if owned is not None:
                owner = owned
                break
        else:
            return None
    return owner if _is_socket(owner) else None


def is_plain_socket(sock: object) -> TypeGuard[socket.socket]:
    """Return whether a system call on the descriptor has the same effect as the socket's method.

    The effect differs for these sockets:

    - TLS sockets: a system call would bypass TLS.
    - gevent's sockets: a system call would block all greenlets. Their class is named socket.socket
      if gevent has patched the module.
    - Sockets of subclasses, whose methods may do anything.
    """
    return type(sock) is socket.socket and isinstance(sock, _socket.socket)


def is_tls_socket(sock: object) -> bool:
    """Return whether a socket is an ssl.SSLSocket, without importing ssl."""
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(sock, ssl.SSLSocket)


def limit_send_buffer(sock: SocketLike, size: int = FIRST_SEND_BUFFER_BYTES) -> bool:
    """Set a small send buffer for a connection to a near peer.

    Bytes that a slow peer does not read use the kernel's memory for all TCP connections (tcp_mem).
    The kernel grows send buffers to megabytes, which only long network paths need. So the size is
    limited if the kernel has measured a short round trip (TCP_INFO). In all other cases, such as a
    Unix socket, the buffer is not changed.

    :param size: in bytes. The kernel doubles it for its own bookkeeping (socket(7)).
    :returns: True if the buffer was set. See :func:`release_send_buffer`. If the peer has left,
        the next send fails.
    """
    try:
        if not hasattr(socket, "TCP_INFO") or round_trip_us(sock) > NEAR_RTT_US:
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    except (OSError, struct.error):  # the peer has left, not a TCP socket, or Linux before 4.6
        return False
    return True


def limit_unsent(sock: SocketLike, size: int) -> None:
    """Make a TCP socket writable only while the kernel has fewer than `size` unsent bytes.

    So fewer unsent bytes precede the bytes of a later write. Sent bytes that the peer has not
    acknowledged do not count, so the connection is not slower (TCP_NOTSENT_LOWAT, Linux and macOS).

    :param size: 0 for the system's default.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with contextlib.suppress(OSError):  # a Unix socket, or the peer has left
            sock.setsockopt(socket.IPPROTO_TCP, option, size)


def release_send_buffer(sock: SocketLike) -> None:
    """Let the kernel choose the size of a send buffer again, after :func:`limit_send_buffer`.

    For a fast peer a large buffer is cheaper, because the sender is woken less often.

    :raises OSError: if the socket is closed.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        # This is a kernel before 5.14. net.core.wmem_max may limit the size further.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _TUNED_SEND_BUFFER_BYTES)


def round_trip_us(sock: SocketLike) -> int:
    """Return the minimum round-trip time of a TCP connection, in microseconds.

    The minimum shows how far away the peer is. The smoothed time would include delays of a busy
    peer.

    :raises OSError: if the socket is closed or not TCP.
    """
    # Before the first measurement, the kernel reports the largest number as the minimum.
    return min(_round_trips_us(sock))


def smoothed_round_trip_us(sock: SocketLike) -> int:
    """Return the smoothed round-trip time of a TCP connection, in microseconds.

    :raises OSError: if the socket is closed or not TCP, or if the system has no TCP_INFO.
    """
    if not hasattr(socket, "TCP_INFO"):
        raise OSError(errno.ENOPROTOOPT, "no TCP_INFO")
    return _round_trips_us(sock)[0]


def _round_trips_us(sock: SocketLike) -> tuple[int, int]:
    """Return the smoothed round-trip time, and the minimum."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT_AND_MIN.size)
    smoothed, minimum = _TCP_INFO_RTT_AND_MIN.unpack(info)
    return smoothed, minimum


def _is_socket(candidate: object) -> TypeGuard[SocketLike]:
    return hasattr(candidate, "setsockopt") and hasattr(candidate, "family")


class Address(NamedTuple):
    """The address of a listener. Port 0 stands for any free port."""

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
        """Check that a listener can use the address.

        :raises OSError: if it cannot, for example because the address is in use.
        """
        with socket.socket(self.family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
