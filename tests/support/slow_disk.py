"""A slow disk: a file system of one file, with a limited rate of reads.

    python -m tests.support.slow_disk FOLDER SIZE BYTES_PER_S

It speaks FUSE 7.31 with the kernel, and needs only Linux and root. To servers the file is like one
on a real disk: reads that are not in the page cache wait. stat() and open() return at once, and
each open() begins with an empty cache. The file's bytes are zeros. It is unmounted when the process
that mounted it ends, even if that process is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_NAME = "file"
# linux/fuse.h
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _DESTROY, _BATCH_FORGET = 26, 27, 28, 29, 38, 42
_VERSION = (7, 31)
_ASYNC_READ = 1 << 0
_READ_AHEAD_BYTES = 128 * 1024
_ROOT_NODE, _FILE_NODE = 1, 2
_VALID_S = 3600
_REQUEST_BYTES = 256 * 1024
# sys/mount.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MNT_DETACH = 1, 2, 4, 2


def has_slow_disk() -> bool:
    """Return whether this process may mount one: on Linux, as root, with /dev/fuse."""
    return sys.platform == "linux" and os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK)


@contextlib.contextmanager
def slow_disk(folder: Path, *, size: int, bytes_per_s: int) -> Iterator[Path]:
    """Mount a slow disk on an empty folder. Yield the path of its file.

    :param size: of the file, in bytes.
    :param bytes_per_s: the rate of the disk for all its readers together.
    :raises RuntimeError: if it cannot be mounted. See :func:`has_slow_disk`.
    """
    command = [sys.executable, "-m", __name__, str(folder), str(size), str(bytes_per_s)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{folder} could not be mounted: that needs root and /dev/fuse")
        try:
            yield folder / FILE_NAME
        finally:
            process.stdin.close()  # it unmounts and ends


class _Disk:
    """Answer the kernel's requests one after the other, and read in a separate thread."""

    def __init__(self, fd: int, size: int, bytes_per_s: int) -> None:
        self._fd = fd
        self._size = size
        self._bytes_per_s = bytes_per_s
        self._reads: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._read_slowly, daemon=True).start()

    def serve_one(self) -> bool:
        """Respond to one request. Return False if the file system has been unmounted."""
        try:
            request = os.read(self._fd, _REQUEST_BYTES)
        except OSError as error:
            return error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN)
        _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
        body = request[40:]
        if opcode == _INIT:
            self._answer(unique, _initial(body))
        elif opcode == _LOOKUP:
            if body.rstrip(b"\0").decode() == FILE_NAME:
                entry = struct.pack("=QQQQII", _FILE_NODE, 0, _VALID_S, _VALID_S, 0, 0)
                self._answer(unique, entry + self._attributes(_FILE_NODE))
            else:
                self._refuse(unique, errno.ENOENT)
        elif opcode == _GETATTR:
            self._answer(unique, struct.pack("=QII", _VALID_S, 0, 0) + self._attributes(node))
        elif opcode in (_OPEN, _OPENDIR):
            self._answer(unique, struct.pack("=QII", 0, 0, 0))
        elif opcode == _READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            self._reads.put((unique, max(0, min(size, self._size - offset))))
        elif opcode in (_READDIR, _RELEASE, _RELEASEDIR, _FLUSH):
            self._answer(unique, b"")
        elif opcode not in (_FORGET, _BATCH_FORGET, _DESTROY):  # these expect no response
            self._refuse(unique, errno.ENOSYS)
        return bool(opcode != _DESTROY)

    def _read_slowly(self) -> None:
        free = 0.0  # when the disk has finished the earlier reads
        while True:
            unique, size = self._reads.get()
            free = max(free, time.monotonic()) + size / self._bytes_per_s
            time.sleep(max(0.0, free - time.monotonic()))
            self._answer(unique, bytes(size))

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o100444, self._size) if node == _FILE_NODE else (0o40555, 0)
        times = (1_000_000_000,) * 3
        return struct.pack(
            "=6Q10I", node, size, size // 512, *times, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
        )

    def _answer(self, unique: int, body: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader has given up
            os.write(self._fd, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)

    def _refuse(self, unique: int, number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, struct.pack("=IiQ", 16, -number, unique))


def _initial(body: bytes) -> bytes:
    """Return the response to INIT: our version, and as much read-ahead as a disk has."""
    _, _, _, flags = struct.unpack_from("=4I", body)
    flags &= _ASYNC_READ
    return struct.pack(
        "=4IHHIIHHI7I", *_VERSION, _READ_AHEAD_BYTES, flags, 12, 9, 4096, 1, 32, 0, 0, *[0] * 7
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="empty; the disk is mounted there")
    parser.add_argument("size", type=int, help="of its file, in bytes")
    parser.add_argument("bytes_per_s", type=int, help="what it gives")
    given = parser.parse_args(arguments)
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.fsencode(given.folder)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fd
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if libc.mount(b"wsgifast-slow-disk", folder, b"fuse", flags, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), given.folder)
    try:
        disk = _Disk(fd, given.size, given.bytes_per_s)
        disk.serve_one()  # INIT
        print("mounted", flush=True)
        while True:
            ready, _, _ = select.select([fd, sys.stdin], [], [])
            if sys.stdin in ready or not disk.serve_one():
                break
    finally:
        libc.umount2(folder, _MNT_DETACH)


if __name__ == "__main__":
    main()
