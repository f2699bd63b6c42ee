"""Threads for work that may wait for a disk, and for the lines of a log that may be slow.

Theory of operation
-------------------
A job is one read, or one sendfile, of a file that may not be in the page cache. Or it is one write
to a temporary file, of a response that waits for its client or of a request's body. Each device has
a queue and a few threads of its own. So a slow disk, or a network file system that hangs, delays
only its own files. The threads are started when needed and end when idle. Temporary files have
theirs, on any device.

So has the access log, but only one thread, which keeps the lines in their order. It writes the
lines of responses that were still being sent when their app returned. None of these threads runs an
app or a hook, so a `threading.local` has no value of another request there.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

# Threads of one device: enough for a disk to order its seeks, and for a network file system to hide
# its latency.
_PER_DEVICE = 4
# In place of a device's number.
_TEMPORARY_FILES = -1
# If so many lines wait for a log that takes none, further ones make their threads wait, too.
_MOST_LINES = 1000
# A thread that is idle for this long ends.
_IDLE_S = 5.0

Job = Callable[[], object]


class DiskThreads:
    """Runs jobs that may wait for a disk.

    :param on_error: called in the job's thread if a job raises, which is a bug.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._lock = threading.Lock()
        self._devices: dict[int, _Device] = {}
        self._log = _Device(most_threads=1)
        self._room_for_lines = threading.BoundedSemaphore(_MOST_LINES)

    def submit(self, device: int, job: Job) -> None:
        """Queue a job.

        :param device: st_dev of the file.
        :raises OSError: if the device has no thread and none can be started.
        """
        with self._lock:
            known = self._devices.setdefault(device, _Device())
        self._submit(known, job, "wsgifast-disk")

    def submit_temporary(self, job: Job) -> None:
        """As :meth:`submit`, for temporary files."""
        self.submit(_TEMPORARY_FILES, job)

    def write_line(self, write: Job) -> None:
        """Have the log's thread write a line. Write it here if that thread cannot be started."""

        def job() -> None:
            try:
                write()
            finally:
                self._room_for_lines.release()

        self._room_for_lines.acquire()
        try:
            self._submit(self._log, job, "wsgifast-log")
        except OSError:
            job()

    @property
    def has_pending_lines(self) -> bool:
        """Return whether a line has not been written yet."""
        return self._log.unfinished > 0

    def _submit(self, known: _Device, job: Job, name: str) -> None:
        with self._lock:
            if known.unfinished >= known.threads < known.most_threads:
                thread = threading.Thread(target=self._serve, args=(known,), name=name, daemon=True)
                try:
                    thread.start()
                    known.threads += 1
                except RuntimeError as error:
                    if not known.threads:
                        text = f"no thread for the disk: {error}"
                        raise OSError(errno.ENOMEM, text) from error
            known.unfinished += 1
            known.jobs.put(job)

    def _serve(self, device: _Device) -> None:
        while True:
            try:
                job = device.jobs.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if device.jobs.empty():
                        device.threads -= 1
                        return
                continue
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - the thread goes on
                self._on_error(error)
            del job  # it may wait for long now, and keeps nothing of a response
            with self._lock:
                device.unfinished -= 1


@dataclass(slots=True, eq=False)
class _Device:
    """The jobs of one device.

    :ivar unfinished: how many are queued or run.
    """

    jobs: SimpleQueue[Job] = field(default_factory=SimpleQueue)
    unfinished: int = 0
    threads: int = 0
    most_threads: int = _PER_DEVICE
