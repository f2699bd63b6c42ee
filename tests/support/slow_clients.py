"""The kinds of slow clients in crowds (tests.support.crowds), and ordinary clients beside them.

The load tests and the attacks measure the response times of an ordinary client beside a crowd.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

from hpack import Encoder
from hyperframe.frame import HeadersFrame, SettingsFrame, WindowUpdateFrame

from loadtests.clients import BadResponse, Connection, percentile
from tests.support import crowds
from tests.support.crowds import Kind
from wsgifast.commands.bench.processes import HOST

# An ordinary client beside a crowd gives up after this time, and counts a failure.
GIVE_UP_S = 5.0


def _kind(clients: int, opening: bytes, path: str = "/small", **more: Any) -> Kind:
    return Kind(opening, clients=clients, path=path, **more)


_GET = b"GET {path} HTTP/1.1\r\nHost: a\r\n"
_POST = b"POST {path} HTTP/1.1\r\nHost: a\r\n"
# 99 fields, each a little shorter than the 8,190 bytes that gunicorn allows: 790 kB.
_LARGE_FIELDS = b"".join(b"X-%02d: %s\r\n" % (n, b"a" * 7970) for n in range(99))
_KIB_CHUNK = b"400\r\n" + bytes(1024) + b"\r\n"
_TWO_BYTE_CHUNK = b"2\r\nxx\r\n"


def _chunks(chunk: bytes, count: int, bytes_per_s: int) -> Kind:
    """Return clients that send this number of chunks at once, and then continue at a rate."""
    opening = _POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * count
    return _kind(20, opening, "/upload", then=chunk, send_bytes_per_s=bytes_per_s)


# Over HTTP/2: the number of requests at once.
_HTTP2, _IDLE_HTTP2 = b"{http2}", b"{http2 once}"
# For readers of HTTP/2 streams: the first window of a stream, and the size of each update.
_STREAMS = 100
_WINDOW_BYTES = 16 * 1024
_STEP_BYTES = 4096


def _readers_of_streams(clients: int, bytes_per_s: int) -> Kind:
    """Return clients that read 100 streams each, at a rate each: by their windows, not by the
    socket.
    """
    updates = b"".join(
        WindowUpdateFrame(number, window_increment=_STEP_BYTES).serialize() for number in _numbers()
    )
    return Kind(
        _HTTP2,
        then=updates,
        send_bytes_per_s=len(updates) * bytes_per_s // _STEP_BYTES,
        receive_bytes_per_s=1 << 24,
        clients=clients,
        path="/file",
        streams=_STREAMS,
    )


def _numbers(streams: int = _STREAMS) -> range:
    return range(1, 2 * streams, 2)


def _http2_requests(path: str, streams: int) -> bytes:
    """Return a preface, a window for the connection that is never exhausted, and the requests."""
    encode = Encoder().encode
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)]
    frames = [
        SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW_BYTES}),
        WindowUpdateFrame(0, window_increment=2**31 - 1 - 65_535),
        *(
            HeadersFrame(number, encode(fields), flags=["END_HEADERS", "END_STREAM"])
            for number in _numbers(streams)
        ),
    ]
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(each.serialize() for each in frames)


KINDS = {
    "idle": _kind(10_000, _GET + b"\r\n", receive_bytes_per_s=1 << 20),
    "downloads": _kind(2000, _GET + b"\r\n", "/file", receive_bytes_per_s=64 * 1024),
    "slow readers": _kind(2000, _GET + b"\r\n", "/file", receive_bytes_per_s=4096),
    "uploads": _kind(
        200,
        _POST + b"Content-Length: 100000000\r\n\r\n",
        "/upload",
        then=bytes(4096),
        send_bytes_per_s=64 * 1024,
    ),
    "headers byte by byte": _kind(500, _GET + b"X-Slow: ", then=b"a", send_bytes_per_s=10),
    "790 kB headers": _kind(3, _GET + _LARGE_FIELDS + b"X: ", then=b"a", send_bytes_per_s=500),
    "one-byte chunks": _kind(
        20,
        _POST + b"Transfer-Encoding: chunked\r\n\r\n",
        "/upload",
        then=b"1\r\nx\r\n",
        send_bytes_per_s=17_000,
    ),
    "two-byte chunks": _chunks(_TWO_BYTE_CHUNK, 200_000, 130_000),
    "1 KiB chunks": _chunks(_KIB_CHUNK, 390, 130_000),
    # The fields of their body: 400 kB of content, and its end never arrives.
    "a beginning of two-byte chunks": _chunks(_TWO_BYTE_CHUNK, 200_000, 0),
    "a beginning of 1 KiB chunks": _chunks(_KIB_CHUNK, 390, 0),
    "500 kB trailers": _kind(
        12,
        _POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + _LARGE_FIELDS[:500_000],
        "/upload",
        then=b"a",
        send_bytes_per_s=500,
    ),
    "readers of a list": _kind(100, _GET + b"\r\n", "/list", receive_bytes_per_s=1000),
    "readers of a file": _kind(100, _GET + b"\r\n", "/file", receive_bytes_per_s=1000),
    "readers of a generator": _kind(100, _GET + b"\r\n", "/stream", receive_bytes_per_s=1000),
    "readers of HTTP/2 streams": _readers_of_streams(20, 4096),
    "idle HTTP/2 connections": _kind(500, _IDLE_HTTP2, receive_bytes_per_s=1 << 20),
    "silent bodies": _kind(100, _POST + b"Content-Length: 500000\r\n\r\n", "/upload"),
    # Less than the 500 bytes a second that slow clients must send.
    "dribblers": _kind(
        200,
        _POST + b"Content-Length: 1000000\r\n\r\n",
        "/stream",
        then=b"a",
        send_bytes_per_s=10,
    ),
    "unread uploads": _kind(
        100,
        _POST + b"Content-Length: 1000000000\r\n\r\n",
        "/unread",
        then=bytes(65_536),
        send_bytes_per_s=1 << 24,
    ),
    "downloads from a slow disk": _kind(3, _GET + b"\r\n", "/slow", receive_bytes_per_s=1 << 30),
    "silent connections": _kind(1000, b""),
    "connection flood": _kind(50, _GET + b"\r\n", leaves=True),
}


def slow_clients(
    kind: str,
    port: int,
    *,
    clients: int | None = None,
    seconds: float = 60.0,
    path: str | None = None,
    tls: bool = False,
    host: str = HOST,
) -> AbstractContextManager[crowds.SlowClients]:
    """Run a crowd of one of KINDS against host:port.

    :param clients: how many, if not the default of the kind.
    :param path: requested in place of the kind's own.
    """
    of = KINDS[kind]
    does = replace(of, opening=opening(kind, path or of.path), tls=tls)
    return crowds.slow_clients(does, (host, port), clients or of.clients, seconds=seconds)


def opening(kind: str, path: str) -> bytes:
    """Return the bytes that a client of one of KINDS sends at once."""
    template = KINDS[kind].opening
    if template in (_HTTP2, _IDLE_HTTP2):
        return _http2_requests(path, _STREAMS if template == _HTTP2 else 1)
    return template.replace(b"{path}", path.encode())


@dataclass(frozen=True)
class Others:
    """The result of an ordinary client: milliseconds of each response, ascending, and failures."""

    times_ms: Sequence[float]
    failures: int

    def percentile(self, percent: float) -> float:
        """Return the nearest rank. A response that never arrived counts as GIVE_UP_S."""
        return percentile(self.times_ms, percent) if self.times_ms else GIVE_UP_S * 1e3


def others(
    port: int,
    *,
    path: str = "/small",
    seconds: float = 8.0,
    pause_s: float = 0.005,
    tls: bool = False,
    host: str = HOST,
) -> Others:
    """Send requests like ordinary clients beside a crowd, every tenth one on a new connection.

    :param pause_s: between a response and the next request.
    """
    times: list[float] = []
    failures = 0
    connection = Connection((host, port), path, receive_bytes=65_536, tls=tls, timeout_s=GIVE_UP_S)
    end = time.monotonic() + seconds
    with closing(connection):
        while time.monotonic() < end:
            if len(times) % 10 == 0:
                connection.close()
            begun = time.perf_counter()
            try:
                connection.ask()
            except (BadResponse, OSError):
                failures += 1
            times.append((time.perf_counter() - begun) * 1e3)
            time.sleep(pause_s)
    return Others(sorted(times), failures)
