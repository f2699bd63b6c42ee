"""Threads for what may wait for a disk, so that the thread that serves all clients never does.

Theory of operation
-------------------
A job is one read, or one sendfile, of a file that is not known to be in memory. Each device has a
queue of its own and at most a few threads in it at a time: a disk that is slow, or a network file
system that hangs, keeps its own files waiting and leaves other devices their threads. Among devices
with work the threads take turns. They are started when they are needed, and end when they are not.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["DiskThreads"]

# Reads of one device at a time: a disk that seeks gains by choosing among some, and a network file
# system by having some under way.
_PER_DEVICE = 4
# All devices together; reached only where several of them hang.
_MOST = 32
# A thread without work for so long ends.
_IDLE_S = 5.0

Job = Callable[[], object]


class DiskThreads:
    """Runs jobs that may wait for a disk.

    :param on_error: called in the job's thread for an exception of a job, which is a defect.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._came = threading.Condition()
        self._devices: dict[int, _Device] = {}  # the one in front is next
        self._threads = 0
        self._idle = 0

    def submit(self, device: int, job: Job) -> None:
        """Have a job done, behind those of the same device.

        :param device: os.stat_result.st_dev of the file.
        :raises OSError: if there is no thread, and none can be started.
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
                    raise OSError(errno.ENOMEM, f"no thread for the disk: {error}") from error

    def _ready(self) -> int:
        """How many jobs could begin now, if there were threads."""
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
            del job
            with self._came:
                device.running -= 1

    def _take(self) -> tuple[_Device, Job] | None:
        """Wait for a job that may begin; None if there was none for long."""
        with self._came:
            while True:
                for number, device in self._devices.items():
                    if device.jobs and device.running < _PER_DEVICE:
                        # To the end: the others come first now.
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
    """The jobs of one device that wait, and how many run."""

    __slots__ = ("jobs", "running")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.running = 0
