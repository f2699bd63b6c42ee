"""Threads that may wait for a disk, so that no other thread has to.

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
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable

# Concurrent reads of one device: enough for a disk to order its seeks, and for a network file
# system to hide its latency.
_PER_DEVICE = 4
# All devices together; reached only if several of them hang.
_MOST = 32
# A thread that is idle for this long ends.
_IDLE_S = 5.0

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
