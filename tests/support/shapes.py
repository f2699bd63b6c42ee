"""An app with a URL for every kind of body, and the response that a client must receive.

The behaviour suite serves `app` (wrapped) on every server. `raw` is the same without wsgifast.
"""

from __future__ import annotations

import array
import functools
import gzip
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import wsgiref.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import werkzeug.wsgi

from wsgifast import Compression, WSGIFast
from wsgifast.sockets import owned_socket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

TEXT = "Grüße, 世界! " * 300
CRUMBS = [b"%06d|" % number for number in range(20_000)]
# The number of chunks of a generator. Each takes one system call of the server, and two of the
# client.
STREAMED_CRUMBS = 2_000
# Not a multiple of any block size, and more than the initial size of a socket's buffers.
FILE_BYTES = bytes(range(256)) * 4_099 + b"the end"

MIXED = ["zwölf", b"bytes", bytearray(b"array"), memoryview(b"view")]
MIXED_BYTES = "zwölf".encode() + b"bytesarrayview"

View = Callable[["WSGIEnvironment", "StartResponse"], Any]


@dataclass(frozen=True)
class Shape:
    """One URL: the app's view, and the body in response to GET."""

    view: View
    expected: bytes
    content_type: str = "text/plain"
    # Whether the length is known before the body is sent, so that there must be a Content-Length.
    sized: bool = True


def file_path() -> str:
    """Return a file with FILE_BYTES. It is made once in each process and removed with it."""
    return os.path.join(_folder().name, "file.bin")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="wsgifast-shapes-")
    Path(folder.name, "file.bin").write_bytes(FILE_BYTES)
    Path(folder.name, "empty").write_bytes(b"")
    with gzip.open(Path(folder.name, "file.gz"), "wb", 1) as stream:
        stream.write(FILE_BYTES)
    Path(folder.name, "text").write_text(TEXT, encoding="utf-16")
    return folder


def neighbour(name: str) -> str:
    return os.path.join(os.path.dirname(file_path()), name)


def opened(at: int = 0, whence: int = os.SEEK_SET, **how: Any) -> Any:
    """Return the file, from an offset on."""
    file = open(file_path(), "rb", **how)
    file.seek(at, whence)
    return file


def filled(file: Any, at: int = 0) -> Any:
    """Return another file with the same bytes, from an offset on."""
    file.write(FILE_BYTES)
    file.seek(at)
    return file


def partly_read() -> Any:
    file = open(file_path(), "rb")
    file.read(1000)  # the descriptor is now at the end of the first buffer, not at 1000
    return file


class CommandOutput:
    """Return the output of a command, as a file that is read once and has no size."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._stream = self._process.stdout
        self.read = self._stream.read
        self.read1 = self._stream.read1  # type: ignore[attr-defined]

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._stream.close()
        self._process.wait()


class OnlyRead:
    """An object with the fewest methods of a file."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._stream.read(size)


class Lines:
    """An iterable that is neither a list nor an iterator, and has a len()."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[bytes]:
        yield b"one line"


# The body that an app returns after a 200: the function that makes it, the received bytes, whether
# its length is known, and its type.
_OCTETS = "application/octet-stream"
_MADE: dict[str, tuple[Callable[[], Any], bytes, bool, str]] = {
    "text": (lambda: TEXT, TEXT.encode(), True, "text/plain; charset=utf-8"),
    "text-in-utf-16": (lambda: TEXT, TEXT.encode("utf-16"), True, 'text/plain; charset="utf-16"'),
    "text-in-latin-1": (lambda: "café", b"caf\xe9", True, "text/plain; charset=iso-8859-1"),
    "empty-text": (lambda: "", b"", True, _OCTETS),
    "bare-bytes": (lambda: FILE_BYTES, FILE_BYTES, True, _OCTETS),
    "bare-bytearray": (lambda: bytearray(FILE_BYTES), FILE_BYTES, True, _OCTETS),
    "bare-memoryview": (lambda: memoryview(FILE_BYTES)[::2], FILE_BYTES[::2], True, _OCTETS),
    "one-chunk": (lambda: [b"hello"], b"hello", True, _OCTETS),
    "empty-list": (list, b"", True, _OCTETS),
    "list-of-an-empty-chunk": (lambda: [b""], b"", True, _OCTETS),
    "crumbs": (lambda: list(CRUMBS), b"".join(CRUMBS), True, _OCTETS),
    "tuple-of-crumbs": (lambda: tuple(CRUMBS), b"".join(CRUMBS), True, _OCTETS),
    "mixed-sizes": (
        lambda: [FILE_BYTES, FILE_BYTES, *CRUMBS], FILE_BYTES * 2 + b"".join(CRUMBS), True, _OCTETS
    ),
    "mixed-types": (
        lambda: [*MIXED, array.array("H", [1, 2])],
        MIXED_BYTES + array.array("H", [1, 2]).tobytes(), True, _OCTETS,
    ),
    "iterator-of-mixed-types": (lambda: iter(MIXED), MIXED_BYTES, False, _OCTETS),
    "generator": (
        lambda: (crumb for crumb in CRUMBS[:STREAMED_CRUMBS]),
        b"".join(CRUMBS[:STREAMED_CRUMBS]), False, _OCTETS,
    ),
    "generator-with-empty-chunks": (
        lambda: (chunk for chunk in (b"", b"a", b"", b"b", b"")), b"ab", False, _OCTETS
    ),
    "empty-generator": (lambda: (crumb for crumb in CRUMBS[:0]), b"", False, _OCTETS),
    "sized-iterable": (lambda: Lines(), b"one line", False, _OCTETS),
    "open-file": (opened, FILE_BYTES, True, _OCTETS),
    "unbuffered-file": (lambda: opened(buffering=0), FILE_BYTES, True, _OCTETS),
    "file-that-was-read-from": (partly_read, FILE_BYTES[1000:], True, _OCTETS),
    "file-at-its-end": (lambda: opened(0, os.SEEK_END), b"", True, _OCTETS),
    "empty-file": (lambda: open(neighbour("empty"), "rb"), b"", True, _OCTETS),
    "temporary-file": (lambda: filled(tempfile.TemporaryFile()), FILE_BYTES, True, _OCTETS),
    "named-temporary-file": (
        lambda: filled(tempfile.NamedTemporaryFile(), 10), FILE_BYTES[10:], True, _OCTETS
    ),
    "spooled-file-in-memory": (
        lambda: filled(tempfile.SpooledTemporaryFile(max_size=1 << 30)), FILE_BYTES, True, _OCTETS
    ),
    "spooled-file-on-disk": (
        lambda: filled(tempfile.SpooledTemporaryFile(max_size=1)), FILE_BYTES, True, _OCTETS
    ),
    "bytes-io": (lambda: filled(io.BytesIO(), 5), FILE_BYTES[5:], True, _OCTETS),
    "string-io": (lambda: io.StringIO(TEXT), TEXT.encode(), False, _OCTETS),
    "gzip-file": (lambda: gzip.open(neighbour("file.gz"), "rb"), FILE_BYTES, False, _OCTETS),
    "text-file": (
        lambda: open(neighbour("text"), encoding="utf-16"),
        TEXT.encode(), False, "text/plain; charset=utf-8",
    ),
    "pipe": (lambda: CommandOutput("cat", file_path()), FILE_BYTES, False, _OCTETS),
    "anything-readable": (lambda: OnlyRead(FILE_BYTES), FILE_BYTES, False, _OCTETS),
    "wsgiref-wrapper": (lambda: wsgiref.util.FileWrapper(opened()), FILE_BYTES, True, _OCTETS),
    "werkzeug-wrapper": (
        lambda: werkzeug.wsgi.FileWrapper(opened(77)), FILE_BYTES[77:], True, _OCTETS
    ),
}  # fmt: skip
# Linux reports no bytes. Only reading shows them.
KERNEL_FILE = Path("/proc/sys/kernel/ostype")
if KERNEL_FILE.exists():
    _MADE["kernel-file"] = lambda: KERNEL_FILE.open("rb"), KERNEL_FILE.read_bytes(), False, _OCTETS


def returning(make: Callable[[], Any], content_type: str, *headers: tuple[str, str]) -> View:
    """Return a view that responds with 200 and a body made by a function."""

    def view(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", content_type), *headers])
        return make()

    return view


SHAPES = {
    name: Shape(returning(make, kind), expected, kind, sized)
    for name, (make, expected, sized, kind) in _MADE.items()
}
# Do the same with a Content-Length, right or wrong.
_DECLARED: dict[str, tuple[Callable[[], Any], bytes, tuple[str, str]]] = {
    "run-of-a-file": (lambda: opened(100), FILE_BYTES[100:300], ("Content-Length", "200")),
    "declared-length": (lambda: iter([b"decl", b"ared"]), b"declared", ("content-length", "8")),
    "length-in-characters": (lambda: "Größe", "Größe".encode(), ("Content-Length", "5")),
    "more-than-declared": (
        lambda: iter([b"12345", b"67890", b"never sent"]), b"12345678", ("Content-Length", "8")
    ),
}  # fmt: skip
SHAPES |= {
    name: Shape(returning(make, "text/plain", length), expected)
    for name, (make, expected, length) in _DECLARED.items()
}


def view(expected: bytes, *, sized: bool = True) -> Callable[[View], View]:
    """Register a whole WSGI app under its own URL."""

    def register(function: View) -> View:
        name = function.__name__.replace("_", "-")
        SHAPES[name] = Shape(function, expected, sized=sized)
        return function

    return register


@view(FILE_BYTES)
def servers_own_wrapper(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("200 OK", [("Content-Type", "text/plain")])
    wrapper = environ.get("wsgi.file_wrapper", wsgiref.util.FileWrapper)
    return wrapper(open(file_path(), "rb"))


@view(b"lazy start", sized=False)
def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"lazy "
    yield b"start"


@view(b"lazy str", sized=False)
def lazy_text(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield "lazy str"


@view(b"written and returned", sized=False)
def written(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    write(b"written")
    write(" and")  # type: ignore[arg-type]
    return [b" re", b"turned"]


@view(FILE_BYTES[:7] + FILE_BYTES, sized=False)
def written_and_a_file(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    write(FILE_BYTES[:7])
    return open(file_path(), "rb")


@view(b"second try", sized=True)
def started_again(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("500 Oh", [("Content-Type", "text/html"), ("X-First", "1")])
    try:
        raise ValueError("the view failed")
    except ValueError:
        start_response("200 OK", [("Content-Type", "text/plain")], sys.exc_info())
    return ["second ", "try"]


@view(b"echo of 5", sized=True)
def post(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return f"echo of {len(data) or 5}"


# Bodies that nothing can repair: the response is a 500 at once.
BROKEN: dict[str, Any] = {
    "none": lambda: None,
    "number": lambda: 42,
    "dict": lambda: {"a": 1},
    "set": lambda: {"a"},
    "numbers": lambda: [1, 2, 3],
    "unencodable": lambda: "世界",
    "coroutine": lambda: _coroutine(),
    "async-generator": lambda: _async_generator(),
}


async def _coroutine() -> bytes:
    return b"never awaited"


async def _async_generator() -> Any:
    yield b"never awaited"


def broken(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    name = environ["PATH_INFO"].rpartition("/")[2]
    if name == "not-started":
        return [b"start_response was never called"]
    if name == "lazily-not-started":
        return iter([b"start_response was never called"])
    if name == "bad-length":
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "+5")])
        return [b"12345"]
    if name == "two-lengths":
        lengths = [("Content-Length", "5"), ("Content-Length", "6")]
        start_response("200 OK", [("Content-Type", "text/plain"), *lengths])
        return [b"12345"]
    if name == "raises":
        raise RuntimeError("the app failed")
    start_response("200 OK", [("Content-Type", "text/plain; charset=ascii")])
    return BROKEN[name]()


BROKEN_NAMES = [
    *BROKEN, "not-started", "lazily-not-started", "bad-length", "two-lengths", "raises"
]  # fmt: skip


# Responses that break off: the connection must be closed, and no response may look complete.
FAILING: dict[str, Callable[[], Any]] = {
    "raises-midway": lambda: _raising(),
    "raises-midway-unsized": lambda: _raising(),
    "short-iterator": lambda: iter([b"x" * 500]),
    "short-file": lambda: io.BytesIO(b"x" * 500),
    "short-regular-file": lambda: opened(-500, os.SEEK_END),
}
FAILING_NAMES = [*FAILING]


def failing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    name = environ["PATH_INFO"].rpartition("/")[2]
    length = [] if name.endswith("-unsized") else [("Content-Length", "1000")]
    start_response("200 OK", [("Content-Type", "text/plain"), *length])
    body: Iterable[bytes] = FAILING[name]()
    return body


def _raising() -> Iterator[bytes]:
    yield b"x" * 500
    raise RuntimeError("the app failed midway")


def status(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """Respond with any status and a body, whether the status allows one or not."""
    code = environ["PATH_INFO"].rpartition("/")[2]
    body = b"a body that 204 and 304 must not have"
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    start_response(f"{code} Status", headers)
    bodies = {"file": io.BytesIO(body), "iterator": iter([body]), "empty": iter([])}
    return bodies.get(environ["QUERY_STRING"], [body])


def nodelay(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """Return whether TCP_NODELAY is on for the connection of this request."""
    sock = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
    sock = sock or owned_socket(environ["wsgi.input"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    if sock is None:
        return "out of reach"
    return str(bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))


class Closings:
    """Count the calls of close() on the bodies of /closing, in the thread of their app."""

    opened = 0
    closed = 0


class ClosingBody:
    def __init__(self, kind: str) -> None:
        Closings.opened += 1
        self._kind = kind
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[bytes]:
        yield b"x" * 100
        if self._kind == "raises":
            raise RuntimeError("the app failed midway")
        if self._kind == "endless":
            while True:
                yield b"x" * 10_000
                # The thread of waitress that sends and detects a disconnect hardly runs beside a
                # thread that never waits.
                time.sleep(0.001)

    def close(self) -> None:
        Closings.closed += threading.get_ident() == self._thread


def closing(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    kind = environ["PATH_INFO"].rpartition("/")[2]
    start_response("200 OK", [("Content-Type", "text/plain")])
    if kind == "count":
        return f"{Closings.opened} {Closings.closed}"
    return ClosingBody(kind)


def raw(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    path = environ["PATH_INFO"].lstrip("/")
    first = path.partition("/")[0]
    if path == "nodelay":
        return nodelay(environ, start_response)
    areas = {"broken": broken, "failing": failing, "status": status, "closing": closing}
    if first in areas:
        return areas[first](environ, start_response)
    found = SHAPES.get(path)
    if found is None:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"no such shape"]
    return found.view(environ, start_response)


app = WSGIFast(raw)
coalescing_app = WSGIFast(raw, coalesce=True)
# Most shapes have this type, which is not compressed by default.
_EVERYTHING = Compression(content_types=["application/octet-stream"], min_bytes=1)
compressing_app = WSGIFast(raw, compress=_EVERYTHING)
