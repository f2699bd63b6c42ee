"""Count lost requests while a server's processes are replaced.

    python -m loadtests replaced.
    python -m loadtests replaced.FastWorker --strict --profile release     a million requests

Some clients send requests on keep-alive connections, others download. Meanwhile the server is
reloaded (HUP), gets and loses a worker (TTIN, TTOU), and recycles its workers (max_requests). An
upgrade also replaces the whole server by a new server on the same listeners (USR2, then TERM for
the old one). All requests are GETs. If a persistent connection is closed before any byte of the
response, the server may have closed the idle connection before the request arrived. So the client
repeats the request once, on a new connection (RFC 9112 section 9.3.1). All other errors count as
lost requests: a refused connection, a status other than 200, a truncated or incorrect response.
granian supports only HUP.

    python -m loadtests replaced.import.

These rows reload an app whose import computes for 8 s in every process (HUP). Under FastWorker and
gthread, there are also rows with one worker, which is replaced when it reaches max_requests. The
important figure is the longest response.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import (
    Address,
    Server,
    running_server,
    temporary_folder,
    wait_until,
)

from .bench import APP, FAST, row, table
from .clients import BadResponse, Connection, NoResponse
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Row, Task, Unit
from .payloads import payload, payload_file
from .servers import granian

SMALL_BYTES = 1024
DOWNLOAD_BYTES = 100 * 1024 * 1024
# The downloads are slow, so that some of them are in progress at each replacement. Since gunicorn's
# arbiter waits until the replaced workers have ended, each replacement takes as long as a download.
DOWNLOAD_BYTES_PER_S = 64 * 1024 * 1024
WORKERS = 2
# Maps whether a run is long (`full`) to the number of requests, the number of signals, and the
# maximum time in seconds.
AMOUNTS = {False: (20_000, 20, 120.0), True: (1_000_000, 100, 1200.0)}
# The test of a server ends after this many lost requests.
_MAX_LOST = 1000
# The maximum time until a server has replaced its processes after a signal.
_REPLACED_S = 90.0
# A worker counts as ready this time after its start.
_BOOT_S = 2.0
IMPORT_S = 8.0
# The maximum time for two processes that import the app one after another.
_RELOADED_S = 2 * IMPORT_S + 8.0
# The number of clients of an app with a slow import, and their pause after each response.
_IMPORT_CLIENTS, _IMPORT_PAUSE_S = 4, 0.01


@dataclass
class Outcome:
    """The results of all requests to one server."""

    # The number of small responses ("answered"), of downloads, and of requests that were sent twice
    # ("repeated").
    done: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0


class RepeatingClient:
    """A client that requests the same body again and again, and compares its bytes."""

    def __init__(
        self, address: Address, path: str, body: bytes, outcome: Outcome, bytes_per_s: float = 0.0
    ) -> None:
        self._body = body
        self._outcome = outcome
        self._bytes_per_s = bytes_per_s
        self._connection = Connection(
            address, path, expected=len(body), receive_bytes=256 * 1024, look=self._look
        )
        self.close = self._connection.close

    def _look(self, piece: memoryview, offset: int) -> None:
        if not offset:
            self._begun = time.monotonic()
        if piece != memoryview(self._body)[offset : offset + len(piece)]:
            raise BadResponse("other bytes")
        if self._bytes_per_s:
            due_at = self._begun + (offset + len(piece)) / self._bytes_per_s
            time.sleep(max(0.0, due_at - time.monotonic()))

    def ask(self) -> bool:
        """Send a request, and repeat it if this is allowed.

        Return whether the response is complete.
        """
        begun = time.monotonic()
        try:
            return self._send_request()
        finally:
            longest_s = time.monotonic() - begun
            self._outcome.longest_s = max(self._outcome.longest_s, longest_s)

    def _send_request(self) -> bool:
        try:
            was_used = self._connection.is_open
            try:
                self._connection.ask()
            except NoResponse:
                if not was_used:
                    raise
                self._connection.ask()
                self._outcome.done["repeated"] += 1
        except (BadResponse, OSError) as error:
            is_timeout = isinstance(error, TimeoutError)
            self._outcome.lost["no byte in time" if is_timeout else str(error)] += 1
            return False
        return True


def measure(
    server: Server, signals: Sequence[signal.Signals], *, requests: int, times: int,
    longest_s: float, clients: int = 16, downloads: int = 3,
) -> Outcome:  # fmt: skip
    """Send requests while processes are replaced several times, at regular intervals.

    :param signals: the signals to send one after another. USR2 stands for all signals of an
        upgrade.
    :param requests: the minimum number of requests. Fewer if `longest_s` has passed.
    :param times: the number of signals.
    :param longest_s: the longest time for signals and responses.
    :param clients: the number of clients for small responses.
    :param downloads: the number of clients that download.
    """
    outcome = Outcome()
    payload_file(DOWNLOAD_BYTES)
    with temporary_folder("replaced") as folder, running_server(server, folder=folder) as process:
        pid = process.pid
        deadline = time.monotonic() + longest_s

        def have_answered(share: float) -> bool:
            """Wait until this share of all requests has responses.

            Return False if this takes too long.
            """
            while outcome.done["answered"] < requests * share:
                if time.monotonic() > deadline or outcome.lost.total() > _MAX_LOST:
                    return False
                time.sleep(0.02)
            return True

        with _clients(process.address, outcome, clients, downloads):
            for number, signal_number in enumerate(
                itertools.islice(itertools.cycle(signals), times), 1
            ):
                if not have_answered(number / (times + 1)):
                    break
                pid = _send_signal(signal_number, pid, folder / "pid.2")
                outcome.signals[signal_number.name] += 1
            have_answered(1)
    return outcome


@contextlib.contextmanager
def _clients(
    address: Address, outcome: Outcome, clients: int, downloads: int = 0, *, pause_s: float = 0.0
) -> Iterator[None]:
    """Send requests in threads, until the end of the block.

    :param pause_s: the pause after each response.
    """
    stopped = threading.Event()
    lock = threading.Lock()

    def repeat_requests(count_name: str, path: str, size: int, bytes_per_s: float) -> None:
        client = RepeatingClient(address, f"{path}/{size}", payload(size), outcome, bytes_per_s)
        while not stopped.is_set():
            if client.ask():
                with lock:
                    outcome.done[count_name] += 1
            time.sleep(pause_s)
        client.close()

    small = ("answered", "/small", SMALL_BYTES, 0.0)
    large = ("downloads", "/server-wrapper", DOWNLOAD_BYTES, DOWNLOAD_BYTES_PER_S)
    kinds = [small] * clients + [large] * downloads
    threads = [threading.Thread(target=repeat_requests, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _send_signal(signal_number: signal.Signals, pid: int, second_pid_file: Path) -> int:
    """Send a signal to a server, and wait until the server has carried it out.

    :param second_pid_file: the file with the pid of gunicorn's second arbiter.
    :returns: the pid of the server afterwards.
    """
    before = _workers(pid)
    os.kill(pid, signal_number)
    if signal_number == signal.SIGUSR2:
        return _upgrade(pid, second_pid_file)
    if signal_number == signal.SIGHUP:
        # One worker may have ended, and may not be replaced yet.
        old_workers = min(WORKERS, len(before))
        _wait_until(lambda: len(before - _workers(pid)) >= old_workers, "has no new workers")
    else:
        time.sleep(_BOOT_S)  # TTIN or TTOU
    return pid


def _upgrade(pid: int, second_pid_file: Path) -> int:
    """Wait for the second arbiter, and end the first one gracefully. Return the new pid."""

    def has_begun() -> bool:
        with contextlib.suppress(OSError, ValueError):
            ages = [time.time() - begun for begun in _workers(int(second_pid_file.read_text()))]
            return len(ages) >= WORKERS and min(ages) > _BOOT_S
        return False

    _wait_until(has_begun, "has no successor")
    new = int(second_pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    # The second arbiter renames its file when the first arbiter has ended.
    _wait_until(lambda: not second_pid_file.exists(), "goes on after TERM")
    return new


def _workers(pid: int) -> set[float]:
    """Return the start times of a server's children."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(child.create_time())
    return found


def _wait_until(condition: Callable[[], bool], fault: str) -> None:
    if not wait_until(condition, _REPLACED_S):
        raise RuntimeError(f"the server {fault} after {_REPLACED_S:.0f} s")


def _replacing(server: Server, signals: Sequence[signal.Signals]) -> Client:
    def run(task: Task) -> Load:
        requests, times, longest_s = AMOUNTS[task.full]
        begun = time.monotonic()
        outcome = measure(server, signals, requests=requests, times=times, longest_s=longest_s)
        seconds, lost = time.monotonic() - begun, outcome.lost
        counts = {name: outcome.done[name] for name in ("downloads", "repeated")}
        facts = {**counts, "lost": lost.total(), **outcome.signals}
        return Load(
            outcome.done["answered"], lost.total(), 0, seconds, errors=dict(lost), facts=facts
        )

    return run


def _importing(server: Server, signal_number: int | None = None) -> Client:
    """Return a client of an app with a slow import.

    After a second, the client sends a signal to the server.
    """

    def run(task: Task) -> Load:
        outcome = Outcome()
        with (
            temporary_folder("replaced") as folder,
            running_server(server, folder=folder) as process,
        ):
            first = RepeatingClient(process.address, "/", payload(SMALL_BYTES), Outcome())
            wait_until(first.ask, _REPLACED_S)  # the app has been imported
            first.close()
            before = _workers(process.pid)
            with _clients(process.address, outcome, _IMPORT_CLIENTS, pause_s=_IMPORT_PAUSE_S):
                time.sleep(1)
                if signal_number is not None:
                    os.kill(process.pid, signal_number)
                time.sleep(_RELOADED_S - 1)
            replaced_processes = len(before - _workers(process.pid))
        facts = {
            "lost": outcome.lost.total(),
            "longest answer, s": round(outcome.longest_s, 2),
            "processes replaced": replaced_processes,
        }
        answered, errors = outcome.done["answered"], dict(outcome.lost)
        return Load(answered, 0, 0, _RELOADED_S, errors=errors, facts=facts)

    return run


def _import_rows(name: str, server: Server, *, recycles: Server | None = None) -> list[Row]:
    variants = {"HUP": _importing(_slow(server), _HUP)}
    if recycles is not None:
        variants["max_requests"] = _importing(_slow(recycles))
    return [
        _row(f"import.{name}.{variant}", f"{name}, {variant}", name, variants[variant])
        for variant in variants
    ]


def _slow(server: Server) -> Server:
    return replace(server, env=(*server.env, ("IMPORT_S", str(IMPORT_S))))


def _row(key: str, title: str, name: str, client: Client) -> Row:
    return row(f"replaced.{key}", title, {name: client}, unit=_RESPONDED, rounds=1)


def _replaced_row(name: str, server: Server, *signals: signal.Signals) -> Row:
    return _row(name, name, name, _replacing(server, signals))


def _gunicorn(worker_class: str) -> Server:
    options = (
        f"--workers={WORKERS}", "--keep-alive=60", "--graceful-timeout=30", "--max-requests=20000",
        "--max-requests-jitter=5000", "--pid={folder}/pid", "--log-level=warning",
    )  # fmt: skip
    server = gunicorn(APP, *options, worker_class=worker_class)
    # USR2 starts this command line again. With `python -m gunicorn`, the folder of gunicorn's
    # modules would then be on sys.path, and gunicorn's module http would replace that of Python.
    script = str(Path(sys.executable).with_name("gunicorn"))
    return replace(server, argv=(script, *server.argv[3:]))


_RESPONDED = Unit("requests", lambda m: m.requests)
_HUP = signal.SIGHUP
_ALL = (_HUP, _HUP, _HUP, signal.SIGTTIN, signal.SIGTTOU, _HUP, signal.SIGUSR2)
FAST_SERVER = _gunicorn(FAST)
# By default uvicorn's reload fails if the import takes more than 5 s.
_PATIENT = ("--workers=2", "--timeout-worker-healthcheck=60")
_SLOW_APP, _SLOW_ASGI_APP = "loadtests.slow_import:app", "loadtests.slow_import:asgi_app"


def _slow_gunicorn(worker_class: str, *options: str) -> Server:
    options = ("--graceful-timeout=30", "--timeout=120", "--log-level=warning", *options)
    return gunicorn(_SLOW_APP, *options, worker_class=worker_class)


def _recycling(worker_class: str) -> Server:
    # With this limit, the worker is replaced once in the time of a row.
    return _slow_gunicorn(worker_class, "--workers=1", "--max-requests=400")


TABLE = table("replaced", "What is lost while processes are replaced", [
    _replaced_row("FastWorker", FAST_SERVER, *_ALL),
    _replaced_row("gthread", _gunicorn("gthread"), *_ALL),
    _replaced_row("granian", granian(APP, interface="wsgi", workers=WORKERS), _HUP),
    *_import_rows("FastWorker", _slow_gunicorn(FAST, "--workers=2"), recycles=_recycling(FAST)),
    *_import_rows(
        "gthread", _slow_gunicorn("gthread", "--workers=2"), recycles=_recycling("gthread")
    ),
    *_import_rows("granian", granian(_SLOW_APP, interface="wsgi", workers=2)),
    *_import_rows("uvicorn", uvicorn(_SLOW_ASGI_APP, *_PATIENT)),
])  # fmt: skip
