"""Make the bodies of all load tests, in memory and in files. They always have the same bytes."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from pathlib import Path

# This folder is in the checkout. git ignores it.
REPORTS = Path(__file__).resolve().parents[1] / "reports"
# The files of all benchmarks, which are made once.
PAYLOADS = REPORTS / "payloads"
MIB = 1024 * 1024
# A user reported a response of this size. wsgiref sent it in 16.84 s as a string, and in 0.01 s as
# a list.
REPORT_BYTES = 688_128
# This size is larger than any socket buffer, and smaller than the page cache of any machine.
FILE_BYTES = 10 * MIB
LARGE_FILE_BYTES = 64 * MIB
LIST_BYTES = 5_000_000
# The field of an upload form.
FIELD = "file"


@lru_cache(maxsize=8)
def payload(size: int) -> bytes:
    """Return random bytes, which do not compress."""
    return random.Random(size).randbytes(size)


@lru_cache(maxsize=8)
def chunks(size: int, chunk_bytes: int) -> list[bytes]:
    """Return the payload in chunks of `chunk_bytes` bytes."""
    data = payload(size)
    return [data[start : start + chunk_bytes] for start in range(0, size, chunk_bytes)]


def table_lines() -> Iterator[str]:
    """Yield an export of 1,000 lines."""
    for number in range(1000):
        yield f"{number},the price of it,{number * 7}\n"


async def blocks() -> AsyncIterator[bytes]:
    """Yield a stream of 1 MiB in blocks of 1 KiB."""
    for block in chunks(MIB, 1024):
        yield block


@lru_cache(maxsize=8)
def payload_file(size: int) -> Path:
    """Return a file with the payload."""
    path = PAYLOADS / f"{size}.bin"
    if not path.exists():
        PAYLOADS.mkdir(parents=True, exist_ok=True)
        # Several servers may start at once. The rename ensures that no server finds an incomplete
        # file.
        handle, name = tempfile.mkstemp(dir=PAYLOADS)
        with open(handle, "wb") as file:
            file.write(payload(size))
        os.chmod(name, 0o644)
        os.replace(name, path)
    return path


def files(folder: Path) -> None:
    """Make the files that most tables need: the payload files, and a certificate for TLS."""
    from tests.support.tls import write_certificate  # imported here, to save memory in the apps

    for size in (1024, REPORT_BYTES, LIST_BYTES, FILE_BYTES, LARGE_FILE_BYTES):
        payload_file(size)
    write_certificate(folder / "server.pem")
