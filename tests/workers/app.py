"""The app of the live tests of FastWorker. Each path responds in a different way."""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import json
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wsgifast.bodies.files import SegmentedBody
from wsgifast.sockets import FileSegment

FILE_BYTES = 10 * 1024 * 1024
# gunicorn's bodies read ahead up to this size, however little the app reads.
PIECE_BYTES = 1024
# The duration of apps that "never" return. It is far longer than any test.
FOREVER_S = 300.0

closed: list[str] = []
exhausted: list[str] = []
_folder = tempfile.TemporaryDirectory(prefix="wsgifast-app-")
_released = threading.Event()


def block(size: int, seed: int = 0) -> bytes:
    """Return bytes that differ at every place, so that a shifted or mixed-up body is detected."""
    unit = struct.pack(">4096I", *range(seed, seed + 4096))
    return (unit * (size // len(unit) + 1))[:size]


def file_path() -> Path:
    path = Path(_folder.name, "file")
    if not path.exists():
        part = path.with_suffix(f".{threading.get_ident()}")
        part.write_bytes(block(FILE_BYTES))
        part.rename(path)
    return path


class Blocks:
    """An iterable that records its iteration and its close()."""

    def __init__(self, blocks: Iterator[bytes], name: str) -> None:
        self._blocks = blocks
        self._name = name
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[bytes]:
        for data in self._blocks:
            assert threading.get_ident() == self._thread
            yield data
        exhausted.append(self._name)

    def close(self) -> None:
        same = threading.get_ident() == self._thread
        closed.append(f"{self._name} {'same' if same else 'other'} thread")


def stats() -> dict[str, Any]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return {
        "pid": os.getpid(),
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "rss_kib": int(rss.split()[1]),
        "closed": closed,
        "exhausted": exhausted,
    }


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    name, _, argument = environ["PATH_INFO"].strip("/").partition("/")
    handler = globals().get("do_" + (name or "small"))
    if handler is None:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    result: Iterable[bytes] = handler(environ, start_response, argument)
    return result


def _ok(start_response: Any, length: int | None = None, *headers: tuple[str, str]) -> Any:
    fields = [("Content-Type", "application/octet-stream"), *headers]
    if length is not None:
        fields.append(("Content-Length", str(length)))
    return start_response("200 OK", fields)


def _json(start_response: Any, value: object) -> list[bytes]:
    data = json.dumps(value).encode()
    _ok(start_response, len(data))
    return [data]


def do_small(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    size = int(argument or 1024)
    _ok(start_response, size)
    return [block(size)]


def do_stats(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    return _json(start_response, stats())


def do_environ(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    shown = {k: v for k, v in environ.items() if isinstance(v, (str, bool))}
    shown["file_wrapper"] = environ["wsgi.file_wrapper"].__module__
    shown["thread"] = threading.current_thread().name
    return _json(start_response, shown)


def do_chunks(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    return _chunks(environ, start_response, argument)


def do_events(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    return _chunks(environ, start_response, argument, ("X-Accel-Buffering", "no"))


def _chunks(
    environ: Any, start_response: Any, argument: str, *headers: tuple[str, str]
) -> Iterable[bytes]:
    count, size = (int(number) for number in argument.split("-"))
    _ok(start_response, None, *headers)
    return Blocks((block(size, i) for i in range(count)), environ["QUERY_STRING"])


def do_empty_chunks(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    def late() -> Iterator[bytes]:
        yield b""
        _ok(start_response)
        yield b""
        yield b"a"
        yield b""
        yield b"b"

    return late()


def do_endless(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    _ok(start_response)
    return itertools.repeat(b"")


def do_first_then_wait(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Send two blocks at once, then nothing until /release. Neither block may be delayed."""
    _released.clear()
    _ok(start_response)

    def blocks() -> Iterator[bytes]:
        yield b"first"
        yield b"second"
        _released.wait(FOREVER_S)
        yield b"third"

    return blocks()


def do_until(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Send a block, and another one as soon as a file exists."""
    _ok(start_response)

    def blocks() -> Iterator[bytes]:
        yield b"first"
        while not Path("/", argument).exists():
            time.sleep(0.01)
        yield b"third"

    return blocks()


def do_release(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    _released.set()
    _ok(start_response, 0)
    return []


def do_written(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    write = _ok(start_response)
    write(b"written ")
    write(b"first, ")
    return [b"then returned"]


def do_file(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    file = file_path().open("rb")
    offset = int(argument or 0)
    file.seek(offset)
    _ok(start_response, None if environ["QUERY_STRING"] else FILE_BYTES - offset)
    wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](file)
    return wrapped


def do_segments(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    file = file_path().open("rb")
    fd = file.fileno()
    segments: list[bytes | FileSegment] = [
        b"--a\r\n",
        FileSegment(fd, 100, 1000),
        b"--b\r\n",
        FileSegment(fd, 4096, 2_000_000),
        b"--end",
    ]

    def close() -> None:
        file.close()
        closed.append("segments")

    _ok(start_response, None if argument == "chunked" else 5 + 1000 + 5 + 2_000_000 + 5)
    return SegmentedBody(segments, close)


def do_noting(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """A file whose close() records its call and its thread in the file that X-File names."""
    path, size = environ["HTTP_X_FILE"], int(argument)
    thread = threading.get_ident()
    _ok(start_response, size)
    with tempfile.NamedTemporaryFile(dir=_folder.name, delete=False) as made:
        made.truncate(size)

    class Body(io.FileIO):
        def close(self) -> None:
            if self.closed:
                return
            super().close()
            same = threading.get_ident() == thread
            time.sleep(float(environ.get("HTTP_X_SECONDS", "0")))
            with open(path, "a") as file:
                file.write(f"{'same' if same else 'other'}\n")

    wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](Body(made.name))
    return wrapped


def do_noting_events(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """The same for a stream without end."""
    _ok(start_response)

    def events() -> Iterator[bytes]:
        try:
            while True:
                yield b"event"
                time.sleep(0.02)
        finally:
            with open(environ["HTTP_X_FILE"], "a") as file:
                file.write("same\n")

    return events()


def do_echo(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    data = environ["wsgi.input"].read()
    _ok(start_response, len(data))
    return [data]


def do_digest(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    body = environ["wsgi.input"]
    digest = hashlib.sha256()
    while data := body.read(100_000):
        digest.update(data)
    return _json(start_response, digest.hexdigest())


def do_dialogue(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Answer each piece of the body before reading the next one."""
    body = environ["wsgi.input"]
    _ok(start_response)

    def responses() -> Iterator[bytes]:
        while data := body.read(PIECE_BYTES):
            yield data.upper()

    return Blocks(responses(), "dialogue")


def do_lines(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    body = environ["wsgi.input"]
    first = body.readline()
    rest = list(body)
    body.seek(0)
    return _json(
        start_response, [first.decode(), len(rest), len(body.read()), body.read().decode()]
    )


def do_ignore_body(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Respond without reading the body. If a file is named, wait until it exists."""
    while argument and not Path("/", argument).exists():
        time.sleep(0.01)
    _ok(start_response, 2)
    return [b"ok"]


def do_sleep(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    time.sleep(float(argument))
    _ok(start_response, 2)
    return [b"ok"]


def do_compute(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    end = time.monotonic() + float(argument)
    while time.monotonic() < end:
        pass
    _ok(start_response, 2)
    return [b"ok"]


_meetings: dict[int, threading.Barrier] = {}


def do_meet(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Respond once this number of requests have arrived at the same time."""
    count = int(argument)
    _meetings.setdefault(count, threading.Barrier(count)).wait(FOREVER_S)
    _ok(start_response, 0)
    return []


def do_stuck(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    if "HTTP_X_FILE" in environ:  # the app creates this file when it begins
        Path(environ["HTTP_X_FILE"]).touch()
    time.sleep(FOREVER_S)
    raise AssertionError("nobody waits for this")


def do_raise(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    if argument == "before":
        raise ValueError("raised before the response")
    if argument == "exit":
        raise SystemExit(3)
    if argument == "header":
        start_response("200 OK", [("X-Bad", "a\r\nInjected: 1")])
        return [b""]

    def blocks() -> Iterator[bytes]:
        if argument == "first":
            raise ValueError("raised at the first block")
        yield b"some of it"
        raise ValueError("raised after some of it")

    _ok(start_response, 100)
    return Blocks(blocks(), argument)


def do_short(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    _ok(start_response, 10)
    return [b"short"]


def do_long(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    _ok(start_response, 5)
    return [b"long, ", b"too long"]


def do_status(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    start_response(f"{argument} Status", [("Content-Length", "4"), ("X-Kept", "1")])
    return [b"body"]


def do_hints(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    environ["wsgi.early_hints"]([("Link", "</style.css>; rel=preload")])
    _ok(start_response, 2)
    return [b"ok"]


def do_hijack(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Act like a WebSocket library: take the socket, use it, and raise StopIteration."""
    sock = environ["gunicorn.socket"]
    sock.sendall(b"yours: ")
    sock.sendall(sock.recv(100).upper())
    raise StopIteration


def do_peer(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    """Call methods of the socket that middleware may use without harm to HTTP."""
    sock = environ["gunicorn.socket"]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert not hasattr(sock, "what_no_socket_has")
    return _json(start_response, list(sock.getpeername()))


def do_errors(environ: Any, start_response: Any, argument: str) -> Iterable[bytes]:
    environ["wsgi.errors"].write("said by the app\n")
    environ["wsgi.errors"].flush()
    return _json(start_response, True)
