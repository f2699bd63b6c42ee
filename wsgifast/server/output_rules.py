"""What the output queues of a server share: memory, threads for the disk, and the tick.

Theory of operation of the disk threads
---------------------------------------
A job is one read, or one sendfile, of a file that may not be in the page cache; or one write to a
temporary file, of a response that waits for its client or of a request's body. Each device has a
queue and a few threads of its own. So a slow disk, or a network file system that hangs, delays only
its own files. The threads are started when needed and end when idle. Temporary files have theirs,
whatever device they are on.

So has the access log, but only one thread, which keeps the lines in their order. It writes the
lines of responses that were still being sent when their app returned. None of these threads runs an
app or a hook, so a `threading.local` has no value of another request there.
"""

from __future__ import annotations

import errno
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ..files.temporary import Budget
from ..sockets.client_limits import ClientWait

if TYPE_CHECKING:
    from .output import OutputQueue
    from .server import Server

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

    def hold_back(self, queue: OutputQueue) -> None:
        """Have a queue flushed at the next tick."""
        self.queues.add(queue)
        self._request_tick()

    def tick(self) -> bool:
        """Send what is held back; returns whether there was anything. Never blocks."""
        queues = self.queues
        if not queues:
            return False
        later = []
        for queue in list(queues):  # not those that writers add meanwhile: this has an end
            queues.discard(queue)
            if not queue.flush_at_tick():
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
        """Have the log's thread write a line; write it at once if that cannot be started."""

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
    def owes_lines(self) -> bool:
        """Whether a line has not been written yet."""
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
