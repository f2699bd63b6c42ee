"""Replaces workers without a gap: none ends before a successor has loaded the app and is ready.

Theory of operation
-------------------
gunicorn's arbiter starts the successor of a worker that ends by itself (max_requests) after its
end. At a reload (SIGHUP) it ends all old workers as soon as it has started the new ones. While
those import the app, no worker serves. If a new one cannot import it, the server ends.

FastWorker makes the running arbiter a :class:`ReplacingArbiter`, which keeps gunicorn's methods and
changes when workers are started and ended. The arbiter is found by gunicorn's hook when_ready
(:func:`install`). on_starting gets it too, but is called before FastWorker can set a hook.

No class would have to be assigned to a running arbiter if gunicorn had a setting ``arbiter_class``.
That is one line in ``BaseApplication.run()``, which makes an ``Arbiter``. A subclass would have to
replace two more parts. One is the end of ``reload()``, which starts new workers and ends the old
ones. The other is how ``reap_workers()`` reacts to a worker that cannot start.

Each worker shares a byte with it, its *stage*, in memory made before the fork:

- BOOTING: it imports the app.
- BROKEN: the app's code has an error, and cannot be imported. Set by the worker, which ends.
- READY: it serves. Set by the worker.
- RETIRING: it has reached a limit, serves, and asks for a successor. Set by the worker.
- RELEASED: a successor serves. Set by the arbiter, just before it sends SIGTERM.

Another byte says that the worker *drains*, since the whole server is about to stop. The arbiter
sets it just before it sends SIGTERM. The worker fails its readiness, and serves on until the next
SIGTERM.

*Old* workers are those that a reload has found, and those that retire. While there is one, the
arbiter starts a spare worker, waits until it is READY, and ends the oldest of the old ones. Then
it does so again. If a worker ends while it is BOOTING and others serve, the arbiter does not halt.
It tries again after a second, and after twice as long each time.

Some workers cannot run beside their predecessor, since each has a number, a lock or a port of its
own. If a successor of a RETIRING worker fails, or the pre_fork hook does, the arbiter ends the old
worker and then starts the successor. It does so once, because another failure has another reason.
If the successor is BROKEN, the old worker continues to serve. With ``end_old_worker_first`` all
workers are replaced in this order, one after the other, and each has the graceful_timeout to end.

A pre_fork hook may give a successor the number of an old worker (worker_numbers.py). Its files are
named by that number, and the old worker's exit would delete them. So the arbiter keeps the
successor as it is, ends this old worker, and forks the successor then.

A worker that was old at a reload has gunicorn's graceful_timeout to end. One that is RELEASED may
take ten times as long for its last responses.
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
from .options import outside_value
from .worker_numbers import NumberSearch, numbers_of

BOOTING, READY, RETIRING, RELEASED, BROKEN = range(5)
#: A released worker's last responses may take this many graceful timeouts.
PATIENCE = 10
# Until the next try after a new worker has failed. Doubled each time.
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_HINT = "If new workers cannot start beside old ones, set end_old_worker_first = True"
# Each worker's lifetime is up to this part shorter: those that started together do not end
# together.
_JITTER = 0.1


class Life:
    """The stage of one worker, and its limits.

    Made in the arbiter, before the fork.

    :param max_rss_bytes: of resident memory, shared pages included. `math.inf` for no limit.
    :param max_lifetime_s: seconds. `math.inf` for no limit.
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
        """Why the worker has to be replaced now: the limit, and the text for the log.

        :param requests: how many it has had.
        :param max_requests: gunicorn's, with its jitter, or a hook's.
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


# The arbiter of this process, or of the process that has forked it.
_running: Any = None
_is_missing_logged = False


def running_arbiter() -> Any:
    """Return gunicorn's arbiter, or None if it has not been found."""
    return _running


def install(cfg: Any) -> None:
    """Have the arbiter replace workers without a gap, as soon as gunicorn calls when_ready.

    The hook that the user has set is called afterwards.

    :param cfg: gunicorn's configuration, before it calls when_ready.
    """
    users_hook = cfg.when_ready

    def when_ready(arbiter: Any) -> None:
        _install(arbiter)
        users_hook(arbiter)

    cfg.set("when_ready", when_ready)


def _install(arbiter: Any) -> None:
    global _running
    _running = arbiter
    if isinstance(arbiter, Arbiter) and not isinstance(arbiter, ReplacingArbiter):
        kind = type(arbiter)  # perhaps a subclass of gunicorn's
        arbiter.__class__ = type(kind.__name__, (ReplacingArbiter, kind), {})
        arbiter._outdated = set()
        arbiter._ending = set()
        arbiter._search = NumberSearch()


def log_missing_arbiter(log: Any) -> None:
    """Log once that the arbiter has not been found, and the consequence."""
    global _is_missing_logged
    if _is_missing_logged:
        return
    _is_missing_logged = True
    log.error(
        "gunicorn's arbiter is missing: gunicorn has not passed it to the hook when_ready. So no "
        "worker waits for its successor, and requests wait during a reload. Restart gunicorn if a "
        "reload has brought FastWorker. Otherwise install gunicorn %s",
        GUNICORN.newest,
    )


class ReplacingArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter. See the module's theory of operation."""

    # Process ids: of workers older than the last reload, and of those that end.
    _outdated: set[int]
    _ending: set[int]
    worker_class: Any  # gunicorn's
    _reads_configuration = False
    _stopping = False
    _retry_at = 0.0
    _retry_s = 0.0
    _failed_age = 0
    # A successor has failed beside an old worker, which therefore ends first. That is tried once,
    # until a new worker is ready.
    _is_alone = False
    _has_tried_alone = False
    # The process id of an old worker that ends before its successor starts.
    _awaited = 0
    # A worker that is not forked yet: an old worker has one of its numbers.
    _made: Any = None
    _search: NumberSearch

    def reload(self) -> None:
        """Read the configuration again. :meth:`manage_workers` replaces the workers."""
        self._reads_configuration = True
        try:
            super().reload()
        except _ConfigurationRead:
            pass
        finally:
            self._reads_configuration = False
        self._outdated = set(self.WORKERS)
        self._retry_at = self._retry_s = 0.0
        self._is_alone = self._has_tried_alone = False
        if self._made is not None:  # by the old configuration
            self._made.tmp.close()
            self._made = None
        self.log.info("Each worker serves until its successor is ready")
        self.manage_workers()

    def spawn_worker(self) -> Any:
        if self._reads_configuration:
            # From here on gunicorn's reload() starts all workers, ends all old ones, and waits for
            # them without looking at signals.
            raise _ConfigurationRead
        serving = self._serving()
        try:
            return self._spawn_without_twin()
        except _NumberTaken as error:
            old = error.worker
            self.log.info(
                "The old worker (pid:%s) ends first: its successor has its number", old.pid
            )
            self._awaited = old.pid
            self._end(old, patiently=False)
            return None
        except Exception:  # of the pre_fork hook, or there is no process to be had
            if not serving:
                raise
            self.log.exception("A new worker could not be started")
            old = any(w.pid in self._outdated or _stage(w) == RETIRING for w in serving)
            self._note_failure(self.worker_age, may_be_alone=old)
            return None

    def _spawn_without_twin(self) -> Any:
        """Start a worker, or keep it in :attr:`_made`.

        :raises _NumberTaken: if an old worker has a number of this one.
        """
        hook, worker_class = self.cfg.pre_fork, self.worker_class
        made, self._made = self._made, None

        def pre_fork(server: Any, worker: Any) -> None:
            if made is None:
                self._search.call(hook, server, worker)
            else:
                worker.given.restore()  # that of another worker meanwhile
            twin = self._twin(worker.given.numbers)
            if twin is not None:
                self._made = worker
                raise _NumberTaken(twin)

        if made is not None:
            self.worker_class = lambda *args: made
        self.cfg.set("pre_fork", pre_fork)
        try:
            return super().spawn_worker()
        finally:
            self.cfg.set("pre_fork", hook)
            self.worker_class = worker_class

    def _twin(self, numbers: dict[str, object]) -> Any:
        """Return an old worker that has one of a new worker's numbers, or None."""
        workers = list(self.WORKERS.values())
        for name, number in numbers.items():
            theirs = [(numbers_of(worker).get(name), worker) for worker in workers]
            if len({repr(each) for each, _ in theirs}) < len(theirs):
                continue  # not a number: several workers have it
            for each, worker in theirs:
                is_old = worker.pid in self._outdated | self._ending or _stage(worker) == RETIRING
                if is_old and each == number and type(each) is type(number):
                    return worker
        return None

    def spawn_workers(self) -> None:
        if self._may_spawn():
            super().spawn_workers()

    def manage_workers(self) -> None:
        while self._manage_one():
            pass

    def _manage_one(self) -> bool:
        """Start or end one worker, if that is due. Return whether there may be more to do."""
        workers = sorted(self.WORKERS.values(), key=lambda worker: worker.age)
        self._ending &= self.WORKERS.keys()
        self._outdated &= self.WORKERS.keys()
        active = [worker for worker in workers if worker.pid not in self._ending]
        old = [w for w in active if w.pid in self._outdated or _stage(w) == RETIRING]
        if not old and not self._ending:
            super().manage_workers()
            return False
        booting = any(_boots(worker) for worker in active)
        spare = len(active) - self.num_workers
        if self._awaited in self._ending:
            return False
        if self._ends_first() and old and spare == 0 and not booting:
            self._has_tried_alone |= self._is_alone
            self._is_alone = False
            self._awaited = old[0].pid
            self._end(old[0], patiently=False)
            return True
        if spare > 0 and not booting:
            self._end((old or active)[0])
            return True
        if (spare < 0 or (spare == 0 and old and not booting)) and self._may_spawn():
            self.spawn_worker()
            return True
        return False

    def _ends_first(self) -> bool:
        """Whether an old worker ends before its successor is started."""
        return self._is_alone or getattr(self.worker_class, "end_old_worker_first", False)

    def _end(self, worker: Any, *, patiently: bool = True) -> None:
        self._ending.add(worker.pid)
        if patiently and worker.pid not in self._outdated:
            worker.life.stage = RELEASED
        self.kill_worker(worker.pid, signal.SIGTERM)
        if worker.pid in self._outdated and not self._outdated - self._ending:
            self.log.info("All workers are replaced")

    def _may_spawn(self) -> bool:
        """Return whether the delay after a failure is over."""
        if any(worker.age > self._failed_age for worker in self._serving()):
            self._retry_at = self._retry_s = 0.0  # another one has been ready since
            self._is_alone = self._has_tried_alone = False
        return time.monotonic() >= self._retry_at or not self._serving()

    def _serving(self) -> list[Any]:
        return [
            worker
            for worker in list(self.WORKERS.values())
            if worker.pid not in self._ending and not _boots(worker)
        ]

    def reap_workers(self) -> None:
        booting = [worker for worker in self.WORKERS.values() if _boots(worker)]
        while True:
            before = dict(self.WORKERS)
            try:
                super().reap_workers()
                break
            except HaltServer:  # a worker could not import the app, or a hook has failed
                if not self._stopping and not self._serving():
                    raise
                # gunicorn leaves this out, because it would halt. The last that it has reaped:
                worker = [before[pid] for pid in before if pid not in self.WORKERS][-1]
                worker.tmp.close()
                self.cfg.child_exit(self, worker)
        failed = [worker for worker in booting if worker.pid not in self.WORKERS]
        if failed and not self._stopping and self._serving():
            retires = any(_stage(worker) == RETIRING for worker in self._serving())
            is_broken = any(_stage(worker) == BROKEN for worker in failed)
            self.log.error("A new worker has ended before it was ready")
            self._note_failure(
                max(worker.age for worker in failed), may_be_alone=retires and not is_broken
            )
            if not (is_broken or self._ends_first()):
                self.log.error(_HINT)

    def _note_failure(self, age: int, *, may_be_alone: bool) -> None:
        """Wait before the next try, or have the next one without its predecessor.

        :param age: of the worker that has failed.
        """
        self._failed_age = age
        if may_be_alone and not (self._has_tried_alone or self._ends_first()):
            self._is_alone = True
            self._retry_at = 0.0
            self.log.error("The old worker ends before the next try. %s", _HINT)
            return
        self._retry_s = min(max(_FIRST_RETRY_S, 2 * self._retry_s), _LAST_RETRY_S)
        self._retry_at = time.monotonic() + self._retry_s
        self.log.error(
            "%d older workers go on serving; the next one is started in %.0f s",
            len(self._serving()),
            self._retry_s,
        )

    def stop(self, graceful: bool = True) -> None:
        self._stopping = True
        if graceful and not (self.master_pid or self.reexec_pid):  # else another one serves
            graceful = self._drain(outside_value(self.worker_class, "drain_delay_s"))
        super().stop(graceful)

    def _drain(self, delay_s: float) -> bool:
        """Let the workers serve while their readiness fails. Return False if a signal ends it.

        The listeners stay open meanwhile, also those of Unix sockets.
        """
        if not delay_s or not self.WORKERS:
            return True
        self.log.info("The stop begins in %g s: readiness fails from now on", delay_s)
        for worker in list(self.WORKERS.values()):
            if getattr(worker, "life", None) is not None:
                worker.life.drain()
                self.kill_worker(worker.pid, signal.SIGTERM)
        end_at = time.monotonic() + delay_s
        while self.WORKERS and (left_s := end_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if self.SIG_QUEUE.get(timeout=min(left_s, 0.1)) in (signal.SIGINT, signal.SIGQUIT):
                    return False
            self.reap_workers()
        return True


class _ConfigurationRead(Exception):
    """gunicorn's reload() has read the configuration."""


class _NumberTaken(Exception):
    """A new worker has the number of an old one.

    :ivar worker: the old one.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__()
        self.worker = worker


def _stage(worker: Any) -> int:
    life = getattr(worker, "life", None)
    return READY if life is None else life.stage  # a worker of another class has no stage


def _boots(worker: Any) -> bool:
    return _stage(worker) in (BOOTING, BROKEN)
