"""What the output queues of a server share: memory, threads for the disk, and the tick.

Theory of operation of the disk threads
---------------------------------------
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..files.temporary import Budget
from ..sockets.client_limits import ClientWait

if TYPE_CHECKING:
    from .output import OutputQueue
    from .server import Server

# Concurrent reads of one device: enough for a disk to order its seeks, and for a network file
# system to hide its latency.
_PER_DEVICE = 4
# All devices together; reached only if several of them hang.
_MOST = 32
# A thread that is idle for this long ends.
_IDLE_S = 5.0

Job = Callable[[], object]


class OutputRules:
    """How responses are sent.

    :ivar queues: those that hold blocks back, until the monitor's next tick at most.
    :ivar share_work: called during a long turn that releases the GIL: other threads go on with the
        rest of the work.
    :ivar ahead_bytes: what may wait for one client before the writer waits, or uses a file.
    :ivar memory: counts the output in memory.
    :ivar disk: the threads for files that are not in the page cache.
    """

    def __init__(self, server: Server) -> None:
        self.options = options = server.options
        self.ahead_bytes = options.output_ahead_bytes
        self.counters = server.counters
        self.share_work = server.pool.share_work
        self.queues: set[OutputQueue] = set()
        self._request_tick = server.pool.monitor.request_tick
        log = server.log
        on_disk = Budget(options.responses_on_disk_bytes)
        self.memory = OutputMemory(options.output_memory_bytes, on_disk, log.warning)
        self.disk = DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error))

    def new_wait(self) -> ClientWait:
        """A client is waited for, for the first time in its response."""
        return ClientWait(self.options.send_timeout_s, self.options.send_least_bytes_per_s)

    # Queues that hold blocks back

    def hold_back(self, queue: OutputQueue) -> bool:
        """Have a queue flushed at the next tick; False if there will be none."""
        if not self._request_tick():
            return False
        self.queues.add(queue)
        if not self._request_tick():
            queue.flush()  # the monitor has stopped meanwhile
        return True

    def tick(self) -> bool:
        """Send what is held back; returns whether there was anything. Never blocks."""
        queues = self.queues
        if not queues:
            return False
        later = []
        for queue in list(queues):  # not those that writers add meanwhile: this has an end
            queues.discard(queue)
            if not queue.flush(wait=False):
                later.append(queue)
        queues.update(later)
        return True


class OutputMemory(Budget):
    """Counts the output in memory that waits for clients; beyond it, temporary files are used.

    :param disk: counts the bytes of these.
    :param warn: a logging function.
    """

    def __init__(self, limit_bytes: int, disk: Budget, warn: Callable[..., object]) -> None:
        super().__init__(limit_bytes)
        self.disk = disk
        self._warn = warn
        self._warned = set[str]()

    @property
    def most_of_one(self) -> int:
        """What one response may have in memory while a disk is slow."""
        return self._limit_bytes // 8

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def take(self, size: int) -> bool:
        if super().take(size):
            return True
        self.warn_once(
            "Slow clients leave more than %d bytes waiting in memory: from now on what "
            "exceeds it goes to temporary files in %s",
            self._limit_bytes,
            tempfile.gettempdir(),
        )
        return False

    def warn_once(self, text: str, *args: object) -> None:
        """Log a text for the first time only: the log may be on the same disk."""
        with self._lock:
            warned = text in self._warned
            self._warned.add(text)
        if not warned:
            self._warn(text, *args)


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
                    thread = threading.Thread(target=self._serve, name="wsgifast-disk", daemon=True)
                    thread.start()
                    self._threads += 1
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


@dataclass(slots=True, eq=False)
class _Device:
    """The queued jobs of one device, and how many run."""

    jobs: deque[Job] = field(default_factory=deque)
    running: int = 0
