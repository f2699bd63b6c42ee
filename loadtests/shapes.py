"""Every shape of body that apps return, good and bad, each at a size of one's choice.

What an app does to make its body is not the subject here: payloads and lists are made once and
kept, so a request costs what the server and the middleware make of it. Generators and open files
are new for each request, as they have to be.
"""

from __future__ import annotations

import gc
import io
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from wsgiref.util import FileWrapper

from .bench import REPORTS

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = [
    "FILE_BYTES",
    "LARGE_FOLDER_VARIABLE",
    "PAYLOADS",
    "REPORT_BYTES",
    "SHAPES",
    "Shape",
    "payload_file",
    "payload_files",
]

# The files of all benchmarks: they are made once, and kept.
PAYLOADS = REPORTS / "payloads"

# The presentation that wsgiref delivered in 16.84 s as a string and in 0.01 s as a list.
REPORT_BYTES = 688_128
# Larger than any socket buffer, smaller than the page cache of any machine.
FILE_BYTES = 10 * 1024 * 1024
MIB = 1024 * 1024
# A JSON answer, a small page: the body is cheap, so what counts is the way to it.
SMALL_BYTES = 512
# What a stream that is made to be one sends at a time.
STREAM_BLOCK_BYTES = 64 * 1024
# A server-sent event: one line, ten times a second.
TICK_BYTES = 32
TICK_S = 0.1
# An app that waits for its database, and one that computes.
SLEEP_S, COMPUTE_S = 0.010, 0.003
# Names a file on a slow disk to the servers, which are processes of their own.
SLOW_FILE_VARIABLE = "WSGIFAST_SLOW_FILE"
# And the folder of the large files of a run.
LARGE_FOLDER_VARIABLE = "WSGIFAST_LARGE_FOLDER"

# environ, size in bytes -> what the app returns.
Make = Callable[["WSGIEnvironment", int], object]


@dataclass(frozen=True)
class Shape:
    """One kind of body.

    :ivar name: its URL is /NAME, or /NAME/BYTES at another size.
    :ivar text: what the app returns, for tables.
    :ivar size: bytes of the body by default.
    :ivar make: makes it.
    :ivar declared: whether the app sends Content-Length itself, as a careful one does.
    """

    name: str
    text: str
    size: int
    make: Make
    declared: bool = False

    @property
    def path(self) -> str:
        return f"/{self.name}"


@lru_cache(maxsize=8)
def payload(size: int) -> bytes:
    """Bytes as in a compressed file, the same ones every time."""
    return random.Random(size).randbytes(size)


@lru_cache(maxsize=8)
def text(size: int) -> str:
    """ASCII text in lines of 80 characters."""
    line = "".join(map(chr, range(33, 112))) + "\n"
    return (line * (size // len(line) + 1))[:size]


@lru_cache(maxsize=8)
def chunks(size: int, each: int) -> list[bytes]:
    """The payload in chunks of `each` bytes."""
    whole = payload(size)
    return [whole[start : start + each] for start in range(0, size, each)]


def table_lines() -> Iterator[str]:
    """An export: 1,000 lines."""
    for number in range(1000):
        yield f"{number},the price of it,{number * 7}\n"


@lru_cache(maxsize=8)
def payload_file(size: int) -> Path:
    """A file on disk with the payload in it."""
    path = PAYLOADS / f"{size}.bin"
    if not path.exists():
        PAYLOADS.mkdir(parents=True, exist_ok=True)
        # Several servers start at once: none may see half a file.
        handle, name = tempfile.mkstemp(dir=PAYLOADS)
        with open(handle, "wb") as file:
            file.write(payload(size))
        os.chmod(name, 0o644)
        os.replace(name, path)
    return path


def payload_files(*sizes: int) -> Callable[[Path], None]:
    """What a table of servers prepares: payload files of these sizes."""

    def prepare(folder: Path) -> None:
        for size in sizes:
            payload_file(size)

    return prepare


def _sleep(environ: WSGIEnvironment, size: int) -> list[bytes]:
    time.sleep(SLEEP_S)
    return [payload(size)]


def _compute(environ: WSGIEnvironment, size: int) -> list[bytes]:
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        pass
    return [payload(size)]


def _upload(environ: WSGIEnvironment, size: int) -> list[bytes]:
    environ["wsgi.input"].read()
    return [payload(size)]


def _blocks(environ: WSGIEnvironment, size: int) -> list[bytes]:
    gc.collect()
    return [b"%d" % sys.getallocatedblocks()]


def _slow_disk(environ: WSGIEnvironment, size: int) -> object:
    file = open(os.environ[SLOW_FILE_VARIABLE], "rb")
    return environ.get("wsgi.file_wrapper", FileWrapper)(file)


def _generator(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    yield from chunks(size, 1)


def _rows(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    for line in text(size).splitlines(keepends=True):
        yield line.encode()


def _ticks(environ: WSGIEnvironment, size: int) -> Iterator[bytes]:
    for number in range(size // TICK_BYTES):
        if number:
            time.sleep(TICK_S)
        yield (b"data: %d" % number).ljust(TICK_BYTES - 2) + b"\n\n"


def _file(environ: WSGIEnvironment, size: int) -> BinaryIO:
    return open(payload_file(size), "rb")


def _file_wrapper(environ: WSGIEnvironment, size: int) -> object:
    return FileWrapper(_file(environ, size))


def _server_wrapper(environ: WSGIEnvironment, size: int) -> object:
    wrapper = environ.get("wsgi.file_wrapper", FileWrapper)
    return wrapper(_file(environ, size), STREAM_BLOCK_BYTES)


SHAPES = {
    shape.name: shape
    for shape in (
        # Not iterables of bytes, or not only: PEP 3333 forbids them, and servers fail each in its
        # own way.
        Shape("str", "a str", REPORT_BYTES, lambda environ, size: text(size)),
        Shape("bytes", "a bytes", REPORT_BYTES, lambda environ, size: payload(size)),
        Shape("bytearray", "a bytearray", REPORT_BYTES, lambda e, size: bytearray(payload(size))),
        Shape(
            "memoryview", "a memoryview", REPORT_BYTES, lambda e, size: memoryview(payload(size))
        ),
        Shape("str-list", "a list holding one str", REPORT_BYTES, lambda e, size: [text(size)]),
        Shape(
            "memoryview-list", "[memoryview]", REPORT_BYTES, lambda e, n: [memoryview(payload(n))]
        ),
        # Legal, and slow.
        Shape("list-of-1", "a list of 1-byte chunks", REPORT_BYTES, lambda e, n: chunks(n, 1)),
        Shape("generator-of-1", "a generator of 1-byte chunks", REPORT_BYTES, _generator),
        Shape("list-of-100", "a list of 100-byte chunks", MIB, lambda e, n: chunks(n, 100)),
        Shape("rows", "a generator of 80-byte lines", MIB, _rows),
        Shape("file", "an open file (by lines)", FILE_BYTES, _file),
        Shape("bytesio", "a BytesIO (by lines)", FILE_BYTES, lambda e, n: io.BytesIO(payload(n))),
        Shape("file-wrapper", "wsgiref's FileWrapper (8 KiB)", FILE_BYTES, _file_wrapper),
        # As they should be: these may not get slower.
        Shape("whole", "[bytes]", REPORT_BYTES, lambda environ, n: [payload(n)], declared=True),
        Shape("undeclared", "[bytes], no length", REPORT_BYTES, lambda environ, n: [payload(n)]),
        Shape(
            "small", "[bytes], small", SMALL_BYTES, lambda environ, n: [payload(n)], declared=True
        ),
        Shape("server-wrapper", "the server's file wrapper", FILE_BYTES, _server_wrapper, True),
        Shape(
            "stream",
            "a generator of 64 KiB blocks",
            FILE_BYTES,
            lambda environ, size: iter(chunks(size, STREAM_BLOCK_BYTES)),
        ),
        Shape("ticks", "a slow stream of events", 10 * TICK_BYTES, _ticks),
        # For single benchmarks.
        Shape("crumbs", "20 chunks of 50 bytes", 1000, lambda environ, n: iter(chunks(n, 50))),
        Shape("sleep", "after 10 ms", 1024, _sleep, declared=True),
        Shape("compute", "after 3 ms of computing", 1024, _compute, declared=True),
        Shape("upload", "after reading the request's body", 0, _upload, declared=True),
        Shape("blocks", "the number of blocks of memory that Python's objects have", 0, _blocks),
        Shape("slow-disk", "a file on a slow disk", 0, _slow_disk),
    )
}
