"""What all load tests send: the same bytes every time, from memory or from files."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from pathlib import Path

# In the checkout, ignored by git.
REPORTS = Path(__file__).resolve().parents[1] / "reports"
# The files of all benchmarks: they are made once.
PAYLOADS = REPORTS / "payloads"
MIB = 1024 * 1024
# The presentation that wsgiref delivered in 16.84 s as a string and in 0.01 s as a list.
REPORT_BYTES = 688_128
# Larger than any socket buffer, smaller than the page cache of any machine.
FILE_BYTES = 10 * MIB
LARGE_FILE_BYTES = 64 * MIB
LIST_BYTES = 5_000_000
# Of a form in which a file is uploaded.
FIELD = "file"


@lru_cache(maxsize=8)
def payload(size: int) -> bytes:
    """Bytes as in a compressed file."""
    return random.Random(size).randbytes(size)


@lru_cache(maxsize=8)
def chunks(size: int, each: int) -> list[bytes]:
    """The payload in chunks of `each` bytes."""
    whole = payload(size)
    return [whole[start : start + each] for start in range(0, size, each)]


def table_lines() -> Iterator[str]:
    """An export: 1,000 lines."""
    for number in range(1000):
        yield f"{number},the price of it,{number * 7}\n"


async def blocks() -> AsyncIterator[bytes]:
    """A stream: 1 MiB in blocks of 1 KiB."""
    for block in chunks(MIB, 1024):
        yield block


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


def files(folder: Path) -> None:
    """What the servers of most tables need: the payload files, and a certificate for TLS."""
    from tests.support.tls import write_certificate  # no part of the apps' memory

    for size in (1024, REPORT_BYTES, LIST_BYTES, FILE_BYTES, LARGE_FILE_BYTES):
        payload_file(size)
    write_certificate(folder / "server.pem")
