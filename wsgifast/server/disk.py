"""Temporary files, and threads that may wait for a disk, so that no other thread has to.

Theory of operation
-------------------
A job is one read, or one sendfile, of a file that may not be in the page cache; or one write to a
temporary file, of a response that waits for its client or of a request's body. Each device has a
queue of its own, and only a few threads work on it at a time. So a slow disk, or a network file
system that hangs, delays only its own files. The threads serve the devices in turn; they are
started when needed and end when idle.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import BinaryIO, cast

from ..errors import BodyTooLarge, RequestError
from ..sockets.sending import FileSegment

# Concurrent reads of one device: enough for a disk to order its seeks, and for a network file
# system to hide its latency.
_PER_DEVICE = 4
# All devices together; reached only if several of them hang.
_MOST = 32
# A thread that is idle for this long ends.
_IDLE_S = 5.0

# Free space that is left on the file system of the temporary files.
_LEFT_FREE_BYTES = 64 * 1024 * 1024
# A full disk, or as much of it as this user, or a file, may take.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Job = Callable[[], object]


class DiskThreads:
    """Runs jobs that may wait for a disk.

    :param on_error: called in the job's thread if a job raises, which is a bug.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._came = threading.Condition()
        self._devices: dict[int, _Device] = {}  # the next one first
        self._threads = 0
        self._idle = 0
        self._temporary: int | None = None  # the device of temporary files, once it was asked for

    def submit(self, device: int, job: Job) -> None:
        """Queue a job.

        :param device: st_dev of the file.
        :raises OSError: if there is no thread and none can be started.
        """
        with self._came:
            known = self._devices.setdefault(device, _Device())
            known.jobs.append(job)
            if self._ready() <= self._idle:
                self._came.notify()
                return
            try:
                if self._threads < _MOST:
                    self._start_thread()
            except RuntimeError as error:
                if not self._threads:
                    known.jobs.pop()
                    text = f"no thread for the disk: {error}"
                    raise OSError(errno.ENOMEM, text) from error

    def submit_temporary(self, job: Job) -> None:
        """As :meth:`submit`, for temporary files."""
        device = self._temporary
        if device is None:
            device = self._temporary = os.stat(tempfile.gettempdir()).st_dev
        self.submit(device, job)

    def _ready(self) -> int:
        """How many jobs could start now, given enough threads."""
        return sum(
            min(len(device.jobs), _PER_DEVICE - device.running) for device in self._devices.values()
        )

    def _start_thread(self) -> None:
        threading.Thread(target=self._serve, name="wsgifast-disk", daemon=True).start()
        self._threads += 1

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            device, job = taken
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - the thread goes on
                self._on_error(error)
            del job, taken  # it may wait for long now, and keeps nothing of a response
            with self._came:
                device.running -= 1

    def _take(self) -> tuple[_Device, Job] | None:
        """Wait for a job that may start; None after being idle for long."""
        with self._came:
            while True:
                for number, device in self._devices.items():
                    if device.jobs and device.running < _PER_DEVICE:
                        # To the end: the other devices are next.
                        self._devices[number] = self._devices.pop(number)
                        device.running += 1
                        return device, device.jobs.popleft()
                self._idle += 1
                came = self._came.wait(_IDLE_S)
                self._idle -= 1
                if not came and not self._ready():
                    self._threads -= 1
                    return None


class _Device:
    """The queued jobs of one device, and how many run."""

    __slots__ = ("jobs", "running")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.running = 0


class Budget:
    """Counts the bytes of all that is of one kind, such as temporary files; thread-safe.

    :param limit_bytes: the most in total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; False, and nothing reserved, if they exceed the limit."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def count(self, size: int) -> None:
        """Count `size` more bytes, whatever the limit, or fewer if it is negative."""
        with self._lock:
            self.used_bytes += size


class SpillFile:
    """Output in an unnamed temporary file.

    :param disk: counts its bytes.
    :ivar fd: its descriptor, for reading and writing; the creator closes it.
    :ivar written: bytes written.
    :raises OSError: if it cannot be created.
    """

    __slots__ = ("_disk", "fd", "written")

    def __init__(self, disk: Budget) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self.fd = os.dup(file.fileno())
        self.written = 0
        self._disk = disk

    def append(self, buffers: Iterable[memoryview]) -> FileSegment:
        """Append buffers; returns the run that they take up.

        :raises OSError: if the disk or its budget is full; nothing was appended.
        """
        data = memoryview(b"".join(buffers))
        size = len(data)
        at = os.fstatvfs(self.fd)
        if at.f_bavail * at.f_frsize < size + _LEFT_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"less than {_LEFT_FREE_BYTES} bytes would be left free")
        if not self._disk.take(size):
            raise OSError(errno.EDQUOT, "responses_on_disk_bytes are used up")
        begin, done = self.written, 0
        try:
            while done < size:
                done += os.pwrite(self.fd, data[done:], begin + done)
        except OSError:
            self._disk.count(-size)
            raise
        self.written += size
        return FileSegment(self.fd, begin, size)

    def give_back(self) -> None:
        """Return its bytes to the budget; it is about to be closed."""
        self._disk.count(-self.written)


class Spool:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`.

    :param limit: the most bytes.
    :param disk: where the file's bytes are counted.
    """

    __slots__ = ("_disk", "_file", "_in_memory", "_limit", "_memory", "size")

    def __init__(self, in_memory: int, limit: int, disk: Budget) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._file: _TemporaryFile | None = None

    def may_need_disk(self, size: int) -> bool:
        """Whether the next `size` bytes, or fewer, may have to be written to a file."""
        return self.size + size > self._in_memory

    def write(self, data: bytes) -> None:
        """Append bytes.

        :raises BodyTooLarge: over the limit.
        :raises RequestError: if the disk, or its budget, is used up.
        :raises OSError: if the temporary file cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise BodyTooLarge(self._limit)
        if self._file is None:
            if self.size <= self._in_memory:
                self._memory += data
                return
            self._file = _TemporaryFile(self._disk)
            if self._memory:
                self._file.write_all(self._memory)
                self._memory = bytearray()
        self._file.write_all(data)

    def open(self) -> BinaryIO:
        """Return everything as a file, which the caller closes in place of this object."""
        if self._file is None:
            return io.BytesIO(self._memory)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        """Drop everything."""
        if self._file is not None:
            self._file.close()


class _TemporaryFile(io.BufferedReader):
    """An unnamed temporary file: writes go straight to it, reads are buffered."""

    def __init__(self, disk: Budget) -> None:
        self._disk = disk
        self._size = 0
        super().__init__(cast(io.RawIOBase, tempfile.TemporaryFile(buffering=0)))

    def write_all(self, data: bytes | bytearray) -> None:
        if not self._disk.take(len(data)):
            raise RequestError(503, "There is no room for the request body at the moment")
        self._size += len(data)
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                try:
                    written += cast(io.RawIOBase, self.raw).write(view[written:]) or 0
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    text = f"There is no room for the request body: {error.strerror}"
                    raise RequestError(503, text) from error

    def close(self) -> None:
        if not self.closed:
            self._disk.count(-self._size)
        super().close()
