"""Replace workers without a gap: an old worker ends after its successor is ready.

Theory of operation
-------------------
If a worker ends because of max_requests, gunicorn's arbiter starts its successor afterwards. At a
reload (SIGHUP), the arbiter starts all new workers and ends all old workers at once. No worker
serves while the new workers import the app. If a new worker cannot import the app, the server ends.

FastWorker turns the running arbiter into a :class:`ReplacingArbiter`. This class keeps gunicorn's
methods, and changes when workers are started and ended. gunicorn passes the arbiter to its hook
when_ready, which :func:`install` wraps. The hook on_starting also gets the arbiter, but gunicorn
calls it before FastWorker could wrap it.

If gunicorn had a setting ``arbiter_class``, this module would not have to assign a class to a
running object. gunicorn would need one changed line for it, in ``BaseApplication.run()``, which
makes the ``Arbiter``. A subclass would still have to replace two parts of gunicorn's arbiter:

- The end of ``reload()``, which starts new workers and ends the old workers.
- The reaction of ``reap_workers()`` to a worker that cannot start.

The arbiter and each worker share two bytes of memory, which the arbiter allocates before the fork.
The first byte is the *stage* of the worker:

- BOOTING: the worker imports the app.
- BROKEN: the app's code has an error. The worker sets this stage and ends.
- READY: the worker serves. The worker sets this stage.
- RETIRING: the worker has reached a limit. It serves until a successor is ready. The worker sets
  this stage.
- RELEASED: a successor serves. The arbiter sets this stage and then sends SIGTERM.

The second byte tells the worker to *drain*, because the whole server will stop. The arbiter sets
this byte and then sends SIGTERM. The worker serves until the next SIGTERM, but its readiness probe
fails.

A worker is *old* if it was started before the last reload, or if it is RETIRING. For each old
worker, the arbiter starts a spare worker, waits until the spare worker is READY, and then ends the
oldest old worker. If a new worker ends while it is BOOTING, and other workers serve, the arbiter
does not halt but starts another worker after a second. After each further failure, it waits twice
as long.

Some workers cannot run at the same time as their predecessor, because they use the same port or
lock. So if the successor of a RETIRING worker fails, or its pre_fork hook fails, the arbiter ends
the old worker and then starts the successor. The arbiter does this once. If the successor fails
again, the old worker was not the reason. If the successor is BROKEN, the old worker continues to
serve. With ``end_old_worker_first``, the arbiter always ends one old worker before it starts the
successor.

A pre_fork hook may assign a number to a worker (worker_numbers.py). If an old worker has the same
number, both would use the same files, and the old worker would delete them when it ends. So the
arbiter ends this old worker first, and forks the successor afterwards.

An old worker that a reload replaces must end within gunicorn's graceful_timeout. A RELEASED worker
has ten times as long for its last responses.
"""

from __future__ import annotations

import contextlib
import mmap
import queue
import random
import signal
import time
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from ..hosts import GUNICORN
from ..metrics.health import resident_bytes
from .options import effective_value
from .worker_numbers import NumberSearch, numbers_of

BOOTING, READY, RETIRING, RELEASED, BROKEN = range(5)
#: The number of graceful timeouts that a RELEASED worker has for its last responses.
RELEASED_TIMEOUTS = 10
# The delay after a new worker failed. It is doubled after each failure, up to the maximum.
_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_HINT = "If new workers cannot start beside old ones, set end_old_worker_first = True"
# A worker's lifetime is shortened by a random share up to this. So workers that started together do
# not end together.
_JITTER = 0.1


class Lifecycle:
    """The stage of one worker, and its limits. The arbiter makes it before the fork.

    :param max_rss_bytes: the limit of resident memory, which includes shared pages, or `math.inf`.
    :param max_lifetime_s: the limit of the lifetime in seconds, or `math.inf`.
    """

    def __init__(self, max_rss_bytes: float, max_lifetime_s: float) -> None:
        self._shared = mmap.mmap(-1, 2)
        self._max_rss_bytes = max_rss_bytes
        self._end = time.monotonic() + max_lifetime_s * (1 - _JITTER * random.random())
        self.has_arbiter = isinstance(running_arbiter(), ReplacingArbiter)

    @property
    def stage(self) -> int:
        return self._shared[0]

    @stage.setter
    def stage(self, stage: int) -> None:
        self._shared[0] = stage

    @property
    def drains(self) -> bool:
        return bool(self._shared[1])

    def drain(self) -> None:
        self._shared[1] = 1

    def limit_reached(self, requests: int, max_requests: int) -> tuple[str, str] | None:
        """Return the limit that the worker has reached, and a text for the log.

        None if it has reached no limit.

        :param requests: the number of requests so far.
        :param max_requests: gunicorn's limit with its jitter, or a value that a hook has set.
        """
        if requests >= max_requests:
            return "max_requests", f"{requests} requests, max_requests={max_requests}"
        if (rss := resident_bytes()) > self._max_rss_bytes:
            return (
                "max_rss_bytes",
                f"{rss:,} bytes of memory, max_rss_bytes={self._max_rss_bytes:,}",
            )
        if time.monotonic() > self._end:
            return "max_lifetime_s", "max_lifetime_s is over"
        return None


# The arbiter of this process. A forked worker has a copy.
_arbiter: Any = None
_is_missing_logged = False


def running_arbiter() -> Any:
    """Return gunicorn's arbiter, or None before gunicorn has called when_ready."""
    return _arbiter


def install(cfg: Any) -> None:
    """Wrap gunicorn's hook when_ready, so that it turns the arbiter into a ReplacingArbiter.

    :param cfg: gunicorn's configuration. gunicorn must not have called when_ready before.
    """
    users_hook = cfg.when_ready

    def when_ready(arbiter: Any) -> None:
        _install(arbiter)
        users_hook(arbiter)

    cfg.set("when_ready", when_ready)


def _install(arbiter: Any) -> None:
    global _arbiter
    _arbiter = arbiter
    if isinstance(arbiter, Arbiter) and not isinstance(arbiter, ReplacingArbiter):
        kind = type(arbiter)  # it may be a subclass of Arbiter
        arbiter.__class__ = type(kind.__name__, (ReplacingArbiter, kind), {})
        arbiter._outdated_pids = set()
        arbiter._ending_pids = set()
        arbiter._search = NumberSearch()


def log_missing_arbiter(log: Any) -> None:
    """Log once that the arbiter was not found, with the consequences."""
    global _is_missing_logged
    if _is_missing_logged:
        return
    _is_missing_logged = True
    log.error(
        "gunicorn's arbiter is missing: gunicorn has not passed it to the hook when_ready. So no "
        "worker waits for its successor, and requests wait during a reload. If a reload has "
        "introduced FastWorker, restart gunicorn. Otherwise install gunicorn %s",
        GUNICORN.newest,
    )


class ReplacingArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter, which starts and ends workers in another order.

    See the theory of operation.
    """

    # The process ids of workers older than the last reload, and of workers that are ending.
    _outdated_pids: set[int]
    _ending_pids: set[int]
    worker_class: Any  # declared here because gunicorn ships no types
    _reads_configuration = False
    _stopping = False
    _retry_at = 0.0
    _retry_s = 0.0
    _failed_age = 0
    # Whether the next start must end an old worker first, because a successor has failed while the
    # old worker served. The arbiter tries this once, and again only after a new worker was ready.
    _end_old_first = False
    _has_ended_old_first = False
    # The process id of an old worker that must end before its successor starts.
    _awaited_pid = 0
    # A new worker that waits for the end of an old worker with the same number.
    _unforked: Any = None
    _search: NumberSearch

    def reload(self) -> None:
        """Read the configuration again, and start to replace all workers."""
        self._reads_configuration = True
        try:
            super().reload()
        except _ConfigurationRead:
            pass
        finally:
            self._reads_configuration = False
        self._outdated_pids = set(self.WORKERS)
        self._retry_at = self._retry_s = 0.0
        self._end_old_first = self._has_ended_old_first = False
        if self._unforked is not None:  # the old configuration made it
            self._unforked.tmp.close()
            self._unforked = None
        self.log.info("Each worker serves until its successor is ready")
        self.manage_workers()

    def spawn_worker(self) -> Any:
        if self._reads_configuration:
            # gunicorn's reload() has read the configuration. Its remaining code would start all new
            # workers and end all old workers, without handling signals meanwhile.
            raise _ConfigurationRead
        serving = self._serving()
        try:
            return self._spawn_with_free_number()
        except _NumberInUse as error:
            old = error.worker
            self.log.info(
                "The old worker (pid:%s) ends first, because its successor has the same number",
                old.pid,
            )
            self._awaited_pid = old.pid
            self._end(old, releases=False)
            return None
        except Exception:  # the pre_fork hook failed, or the system refused a new process
            if not serving:
                raise
            self.log.exception("A new worker could not be started")
            old = any(w.pid in self._outdated_pids or _stage(w) == RETIRING for w in serving)
            self._note_failure(self.worker_age, may_end_old_first=old)
            return None

    def _spawn_with_free_number(self) -> Any:
        """Start a worker, or store it in :attr:`_unforked`.

        :raises _NumberInUse: if an old worker has a number of the new worker.
        """
        hook, worker_class = self.cfg.pre_fork, self.worker_class
        unforked, self._unforked = self._unforked, None

        def pre_fork(server: Any, worker: Any) -> None:
            if unforked is None:
                self._search.call(hook, server, worker)
            else:
                # The hook may have set another worker's number since the first attempt.
                worker.hook_numbers.restore()
            old_worker = self._old_worker_with_number(worker.hook_numbers.numbers)
            if old_worker is not None:
                self._unforked = worker
                raise _NumberInUse(old_worker)

        if unforked is not None:
            self.worker_class = lambda *args: unforked
        self.cfg.set("pre_fork", pre_fork)
        try:
            return super().spawn_worker()
        finally:
            self.cfg.set("pre_fork", hook)
            self.worker_class = worker_class

    def _old_worker_with_number(self, numbers: dict[str, object]) -> Any:
        """Return an old worker that has a number of the new worker, or None."""
        workers = list(self.WORKERS.values())
        for name, number in numbers.items():
            other_numbers = [(numbers_of(worker).get(name), worker) for worker in workers]
            if len({repr(other_number) for other_number, _ in other_numbers}) < len(other_numbers):
                continue  # several workers share the value, so it is not a number of one worker
            for other_number, worker in other_numbers:
                is_leaving = worker.pid in self._outdated_pids | self._ending_pids
                is_old = is_leaving or _stage(worker) == RETIRING
                if is_old and other_number == number and type(other_number) is type(number):
                    return worker
        return None

    def spawn_workers(self) -> None:
        if self._may_spawn():
            super().spawn_workers()

    def manage_workers(self) -> None:
        while self._manage_one():
            pass

    def _manage_one(self) -> bool:
        """Start or end one worker if necessary. Return whether there may be more to do."""
        workers = sorted(self.WORKERS.values(), key=lambda worker: worker.age)
        self._ending_pids &= self.WORKERS.keys()
        self._outdated_pids &= self.WORKERS.keys()
        active = [worker for worker in workers if worker.pid not in self._ending_pids]
        old = [w for w in active if w.pid in self._outdated_pids or _stage(w) == RETIRING]
        if not old and not self._ending_pids:
            super().manage_workers()
            return False
        booting = any(_is_booting(worker) for worker in active)
        spare = len(active) - self.num_workers
        if self._awaited_pid in self._ending_pids:
            return False
        if self._must_end_old_first() and old and spare == 0 and not booting:
            self._has_ended_old_first |= self._end_old_first
            self._end_old_first = False
            self._awaited_pid = old[0].pid
            self._end(old[0], releases=False)
            return True
        if spare > 0 and not booting:
            self._end((old or active)[0])
            return True
        if (spare < 0 or (spare == 0 and old and not booting)) and self._may_spawn():
            self.spawn_worker()
            return True
        return False

    def _must_end_old_first(self) -> bool:
        """Return whether an old worker must end before its successor starts."""
        return self._end_old_first or getattr(self.worker_class, "end_old_worker_first", False)

    def _end(self, worker: Any, *, releases: bool = True) -> None:
        self._ending_pids.add(worker.pid)
        if releases and worker.pid not in self._outdated_pids:
            worker.lifecycle.stage = RELEASED
        self.kill_worker(worker.pid, signal.SIGTERM)
        if worker.pid in self._outdated_pids and not self._outdated_pids - self._ending_pids:
            self.log.info("All workers are replaced")

    def _may_spawn(self) -> bool:
        """Return whether a worker may be started now. A delay follows each failure."""
        if any(worker.age > self._failed_age for worker in self._serving()):
            # A worker became ready after the failure.
            self._retry_at = self._retry_s = 0.0
            self._end_old_first = self._has_ended_old_first = False
        return time.monotonic() >= self._retry_at or not self._serving()

    def _serving(self) -> list[Any]:
        return [
            worker
            for worker in list(self.WORKERS.values())
            if worker.pid not in self._ending_pids and not _is_booting(worker)
        ]

    def reap_workers(self) -> None:
        booting = [worker for worker in self.WORKERS.values() if _is_booting(worker)]
        while True:
            before = dict(self.WORKERS)
            try:
                super().reap_workers()
                break
            except HaltServer:  # a worker could not import the app, or a hook failed
                if not self._stopping and not self._serving():
                    raise
                # The rest of gunicorn's work for the worker, which was skipped by the exception.
                # The worker is the last one that gunicorn has reaped.
                worker = [before[pid] for pid in before if pid not in self.WORKERS][-1]
                worker.tmp.close()
                self.cfg.child_exit(self, worker)
        failed = [worker for worker in booting if worker.pid not in self.WORKERS]
        if failed and not self._stopping and self._serving():
            retires = any(_stage(worker) == RETIRING for worker in self._serving())
            is_broken = any(_stage(worker) == BROKEN for worker in failed)
            self.log.error("A new worker has ended before it was ready")
            self._note_failure(
                max(worker.age for worker in failed), may_end_old_first=retires and not is_broken
            )
            if not (is_broken or self._must_end_old_first()):
                self.log.error(_HINT)

    def _note_failure(self, age: int, *, may_end_old_first: bool) -> None:
        """Set the delay before the next attempt, or make that attempt end the old worker first.

        :param age: gunicorn's age of the failed worker.
        """
        self._failed_age = age
        if may_end_old_first and not (self._has_ended_old_first or self._must_end_old_first()):
            self._end_old_first = True
            self._retry_at = 0.0
            self.log.error("The old worker ends before the next attempt. %s", _HINT)
            return
        self._retry_s = min(max(_MIN_RETRY_S, 2 * self._retry_s), _MAX_RETRY_S)
        self._retry_at = time.monotonic() + self._retry_s
        self.log.error(
            "%d older workers continue to serve. The next attempt starts in %.0f s",
            len(self._serving()),
            self._retry_s,
        )

    def stop(self, graceful: bool = True) -> None:
        self._stopping = True
        # During an upgrade (SIGUSR2), another arbiter serves with the same sockets.
        if graceful and not (self.master_pid or self.reexec_pid):
            graceful = self._drain(effective_value(self.worker_class, "drain_delay_s"))
        super().stop(graceful)

    def _drain(self, delay_s: float) -> bool:
        """Make the readiness probes of the workers fail, while the workers continue to serve.

        The listeners stay open for this time, including those of Unix sockets.

        :returns: False if SIGINT or SIGQUIT arrived.
        """
        if not delay_s or not self.WORKERS:
            return True
        self.log.info("The stop begins in %g s. Until then, readiness probes fail", delay_s)
        for worker in list(self.WORKERS.values()):
            if getattr(worker, "lifecycle", None) is not None:
                worker.lifecycle.drain()
                self.kill_worker(worker.pid, signal.SIGTERM)
        end_at = time.monotonic() + delay_s
        while self.WORKERS and (left_s := end_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if self.SIG_QUEUE.get(timeout=min(left_s, 0.1)) in (signal.SIGINT, signal.SIGQUIT):
                    return False
            self.reap_workers()
        return True


class _ConfigurationRead(Exception):
    """Raised to end gunicorn's reload() after it has read the configuration."""


class _NumberInUse(Exception):
    """Raised if a new worker has the same number as an old worker.

    :ivar worker: the old worker.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__()
        self.worker = worker


def _stage(worker: Any) -> int:
    lifecycle = getattr(worker, "lifecycle", None)
    return READY if lifecycle is None else lifecycle.stage  # workers of other classes have no stage


def _is_booting(worker: Any) -> bool:
    return _stage(worker) in (BOOTING, BROKEN)
