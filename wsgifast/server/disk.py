"""Threads for work that may wait for a disk, and a thread for slow access logs.

Theory of operation
-------------------
A job may wait for a disk. It is one of these:

- One read or one sendfile of a file that may not be in the page cache.
- One write to a temporary file, which contains a response for a slow client or a request's body.

Each device has its own queue and a few threads. So a slow disk, or a network file system that does
not respond, delays only its own files. Temporary files on all devices share one queue. Threads are
started when they are needed, and end after some idle time.

The access log has one thread, so that the lines keep their order. It writes the lines of responses
that were still being sent when their app returned. None of these threads runs an app or a hook. So
a `threading.local` in these threads never contains a value of another request.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

# The maximum number of threads for each device. A disk can order several requests, and a network
# file system can handle several requests at once.
_PER_DEVICE = 4
# The keys of the queues for temporary files and for the access log, in place of a device's number.
_TEMPORARY_FILES = -1
_LOG = -2
# If this many lines wait for a slow log, threads with further lines wait too.
_MAX_LINES = 1000
# A thread ends after it has been idle for this time.
_IDLE_S = 5.0

Job = Callable[[], object]


class DiskThreads:
    """Runs jobs that may wait for a disk.

    :param on_error: called in the disk thread if a job raises an exception, which is a bug.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._lock = threading.Lock()
        self._devices = {_LOG: _Device("wsgifast-log", max_threads=1)}
        self._room_for_lines = threading.BoundedSemaphore(_MAX_LINES)

    def submit(self, device: int, job: Job) -> None:
        """Queue a job.

        :param device: st_dev of the file, or one of the keys above.
        :raises OSError: if the device has no thread and no thread can be started.
        """
        with self._lock:
            known = self._devices.setdefault(device, _Device("wsgifast-disk", _PER_DEVICE))
            if known.unfinished >= known.threads < known.max_threads:
                thread = threading.Thread(
                    target=self._serve, args=(known,), name=known.name, daemon=True
                )
                try:
                    thread.start()
                    known.threads += 1
                except RuntimeError as error:
                    if not known.threads:
                        text = f"no thread can be started for the disk: {error}"
                        raise OSError(errno.ENOMEM, text) from error
            known.unfinished += 1
            known.jobs.put(job)

    def submit_temporary(self, job: Job) -> None:
        """Queue a job that reads or writes a temporary file, like :meth:`submit`."""
        self.submit(_TEMPORARY_FILES, job)

    def write_line(self, write: Job) -> None:
        """Let the log's thread write a line. If the thread cannot be started, write it now."""

        def job() -> None:
            try:
                write()
            finally:
                self._room_for_lines.release()

        self._room_for_lines.acquire()
        try:
            self.submit(_LOG, job)
        except OSError:
            job()

    @property
    def has_pending_lines(self) -> bool:
        """Return whether a line has not been written yet."""
        return self._devices[_LOG].unfinished > 0

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
            except BaseException as error:  # noqa: BLE001 - the thread must not end
                self._on_error(error)
            del job  # the thread may wait for long now, and must not keep a response
            with self._lock:
                device.unfinished -= 1


@dataclass(slots=True, eq=False)
class _Device:
    """The jobs and threads of one device.

    :param name: the name of its threads.
    :ivar unfinished: the number of jobs that are queued or running.
    """

    name: str
    max_threads: int
    jobs: SimpleQueue[Job] = field(default_factory=SimpleQueue)
    unfinished: int = 0
    threads: int = 0
