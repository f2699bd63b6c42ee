"""Provide an app with all kinds of bodies, right and wrong, each at its own URL.

/NAME returns a body of the default size. /NAME/BYTES returns a body of another size. / lists the
kinds. Payloads and lists are made only once, so that the load tests do not measure this work.
Generators and open files must be new for each request.
"""

from __future__ import annotations

import gc
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast
from wsgiref.util import FileWrapper

from wsgifast import WSGIFast

from .payloads import FILE_BYTES, MIB, REPORT_BYTES, chunks, payload, payload_file

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# The size is a part of the URL. The app refuses larger sizes.
MAX_BYTES = 256 * MIB
# The block size of an efficient stream.
BLOCK_BYTES = 64 * 1024
# A server-sent event: one line, ten times a second.
TICK_BYTES, TICK_S = 32, 0.1
# The times of an app that waits for its database (SLEEP_S and WORK_S), and of an app that computes.
SLEEP_S, COMPUTE_S, WORK_S = 0.010, 0.003, 0.05


class Shape(NamedTuple):
    """One kind of body: its name in tables, its default size, and the function that makes it.

    :ivar declared: whether the app sets Content-Length.
    """

    text: str
    size: int
    make: Callable[[WSGIEnvironment, int], object]
    declared: bool = False


@lru_cache(maxsize=8)
def _text(size: int) -> str:
    """Return ASCII text in lines of 80 characters."""
    line = "".join(map(chr, range(33, 112))) + "\n"
    return (line * (size // len(line) + 1))[:size]


def _after(act: Callable[[WSGIEnvironment], object]) -> Callable[[WSGIEnvironment, int], object]:
    def make(environ: WSGIEnvironment, size: int) -> list[bytes]:
        act(environ)
        return [payload(size)]

    return make


def _compute(environ: WSGIEnvironment) -> None:
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        pass


def _blocks(environ: WSGIEnvironment, size: int) -> list[bytes]:
    gc.collect()
    return [b"%d" % sys.getallocatedblocks()]


def _lines(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    for line in _text(size).splitlines(keepends=True):
        yield line.encode()


def _ticks(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    for number in range(size // TICK_BYTES):
        if number:
            time.sleep(TICK_S)
        yield (b"data: %d" % number).ljust(TICK_BYTES - 2) + b"\n\n"


def _generator(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    yield from chunks(size, 1)


def _file(environ: WSGIEnvironment, size: int) -> BinaryIO:
    return open(payload_file(size), "rb")


def _file_in_wrapper(environ: WSGIEnvironment, size: int) -> object:
    return environ.get("wsgi.file_wrapper", FileWrapper)(_file(environ, size), BLOCK_BYTES)


SHAPES = {
    # Bodies that PEP 3333 forbids, because they are not iterables of bytes. Each server fails in a
    # different way.
    "str": Shape("a str", REPORT_BYTES, lambda e, n: _text(n)),
    "bytes": Shape("a bytes", REPORT_BYTES, lambda e, n: payload(n)),
    "bytearray": Shape("a bytearray", REPORT_BYTES, lambda e, n: bytearray(payload(n))),
    "memoryview": Shape("a memoryview", REPORT_BYTES, lambda e, n: memoryview(payload(n))),
    "str-list": Shape("a list with one str", REPORT_BYTES, lambda e, n: [_text(n)]),
    "memoryview-list": Shape(
        "a list with one memoryview", REPORT_BYTES, lambda e, n: [memoryview(payload(n))]),
    # These bodies are allowed, but slow.
    "list-of-1": Shape("a list of 1-byte chunks", REPORT_BYTES, lambda e, n: chunks(n, 1)),
    "generator-of-1": Shape("a generator of 1-byte chunks", REPORT_BYTES, _generator),
    "list-of-100": Shape("a list of 100-byte chunks", MIB, lambda e, n: chunks(n, 100)),
    "rows": Shape("a generator of 80-byte lines", MIB, _lines),
    "file": Shape("an open file (by lines)", FILE_BYTES, _file),
    "bytesio": Shape("a BytesIO (by lines)", FILE_BYTES, lambda e, n: io.BytesIO(payload(n))),
    "file-wrapper": Shape(
        "wsgiref's FileWrapper (8 KiB)", FILE_BYTES, lambda e, n: FileWrapper(_file(e, n))
    ),
    # These bodies are efficient. WSGIFast must not make them slower.
    "whole": Shape("a list with one block", REPORT_BYTES, lambda e, n: [payload(n)], declared=True),
    "undeclared": Shape("one block, no length", REPORT_BYTES, lambda e, n: [payload(n)]),
    "small": Shape("a list with one small block", 512, lambda e, n: [payload(n)], declared=True),
    "server-wrapper": Shape(
        "the server's file wrapper", FILE_BYTES, _file_in_wrapper, declared=True
    ),
    "stream": Shape(
        "a generator of 64 KiB blocks", FILE_BYTES, lambda e, n: iter(chunks(n, BLOCK_BYTES))
    ),
    # Each of these bodies is for a single benchmark.
    "ticks": Shape("a slow stream of events", 10 * TICK_BYTES, _ticks),
    "crumbs": Shape("20 chunks of 50 bytes", 1000, lambda e, n: iter(chunks(n, 50))),
    "sleep": Shape("after 10 ms", 1024, _after(lambda e: time.sleep(SLEEP_S)), declared=True),
    "work": Shape("after 50 ms", 1024, _after(lambda e: time.sleep(WORK_S)), declared=True),
    "compute": Shape("after 3 ms of computing", 1024, _after(_compute), declared=True),
    "upload": Shape(
        "after reading the request's body", 0, _after(lambda e: e["wsgi.input"].read()),
        declared=True,
    ),
    "blocks": Shape("the number of blocks of memory that Python's objects have", 0, _blocks),
}  # fmt: skip


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Return the body that the path names, in its shape, right or wrong."""
    name, _, digits = environ.get("PATH_INFO", "").lstrip("/").partition("/")
    shape = SHAPES.get(name)
    is_valid_size = not digits or (
        digits.isascii() and digits.isdigit() and int(digits) <= MAX_BYTES
    )
    if shape is None or not is_valid_size:
        status = "404 Not Found" if name else "200 OK"
        listing = "".join(f"/{n:<16} {s.size:>10} bytes  {s.text}\n" for n, s in SHAPES.items())
        start_response(status, [("Content-Type", "text/plain")])
        return [listing.encode()]
    size = int(digits) if digits else shape.size
    kind = "text/plain" if name in ("str", "str-list", "rows") else "application/octet-stream"
    headers = [("Content-Type", "text/event-stream" if name == "ticks" else kind)]
    if shape.declared:
        headers.append(("Content-Length", str(size)))
    start_response("200 OK", headers)
    # Some bodies are intentionally not iterables of bytes.
    return cast("Iterable[bytes]", shape.make(environ, size))


wrapped = WSGIFast(app)
