"""What clients lose while a server's processes are replaced under them: nothing, or how much.

    python -m loadtests.replaced [--requests 20000] [--times 20] [--seconds 120] [--only WORD]
    python -m loadtests.replaced --requests 1000000 --times 100 --seconds 1200 --only FastWorker

Clients ask on connections that are kept alive, others download; meanwhile the server is reloaded
(HUP), gets and loses a worker (TTIN, TTOU), is replaced by a new one on the same listeners (USR2,
then TERM for the old one: a graceful stop), and recycles its workers (max_requests). All requests
are GETs. A client that follows RFC 9112 section 9.3.1 repeats one, once and on a new connection, if
the connection is closed before any byte of its answer: the server may have closed an idle
connection at that moment. Everything else is lost: a refused connection, a status other than 200,
an answer that is cut off or not the right bytes. Both counts are told. granian knows HUP alone.
Ends with status 1 if FastWorker has lost one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from wsgifast.arguments import count, seconds

from .bench import Address, Server, gunicorn, running_server, table, temporary_folder, write_report
from .command import command_line
from .peers import FAST, granian
from .repeating import Client, Outcome
from .shapes import payload, payload_file

__all__ = ["CONTENDERS", "Contender", "measure"]

SMALL_BYTES = 1024
DOWNLOAD_BYTES = 100 * 1024 * 1024
# So slow that some are under way at each replacement. gunicorn's arbiter does nothing else until
# the workers that it replaces have ended, so that each replacement takes as long as a download.
DOWNLOAD_BYTES_PER_S = 64 * 1024 * 1024
WORKERS = 2
# Beyond so many, a server is not looked at any longer.
_MOST_LOST = 1000
# What a signal asks for is done by then.
_DONE_S = 90.0
# So long after it was started a new worker accepts.
_BOOT_S = 2.0


@dataclass(frozen=True)
class Contender:
    """A server, and what can be done to it while it serves.

    :ivar deeds: signals, each done in turn; USR2 stands for the whole replacement.
    """

    name: str
    server: Server
    deeds: tuple[signal.Signals, ...]


_ALL = (*[signal.SIGHUP] * 3, signal.SIGTTIN, signal.SIGTTOU, signal.SIGHUP, signal.SIGUSR2)
_GUNICORN = (
    f"--workers={WORKERS}", "--keep-alive=60", "--graceful-timeout=30", "--max-requests=20000",
    "--max-requests-jitter=5000", "--pid={folder}/pid", "--log-level=warning",
)  # fmt: skip
APP = "loadtests.app:app"


def _gunicorn(worker_class: str) -> Server:
    server = gunicorn(APP, *_GUNICORN, worker_class=worker_class)
    # What USR2 starts is this command line again: as `python -m gunicorn` it would find the folder
    # of gunicorn's modules on its path, where one is called http.
    script = str(Path(sys.executable).with_name("gunicorn"))
    return dataclasses.replace(server, argv=(script, *server.argv[3:]))


CONTENDERS = (
    Contender("FastWorker", _gunicorn(FAST), _ALL),
    Contender("gthread", _gunicorn("gthread"), _ALL),
    Contender("granian", granian(APP, interface="wsgi", workers=WORKERS), (signal.SIGHUP,)),
)


def measure(
    contender: Contender, *, requests: int, times: int, longest_s: float, clients: int = 16,
    downloads: int = 3,
) -> Outcome:  # fmt: skip
    """Ask so often while processes are replaced so many times, spread over the requests.

    :param requests: at least so many, if they are answered in time; they go on meanwhile.
    :param longest_s: no signal is sent, and no more answers are waited for, after these seconds.
    :param clients: how many ask at once; so many others download.
    """
    outcome = Outcome(contender.name)
    payload_file(DOWNLOAD_BYTES)
    with (
        temporary_folder("replaced") as folder,
        running_server(contender.server, contender.name, folder=folder) as process,
    ):
        deeds = itertools.cycle(contender.deeds)
        pid = process.pid
        begun = time.monotonic()
        deadline = begun + longest_s

        def have_answered(share: float) -> bool:
            """Wait for so much of all requests; False if that is not to be."""
            while outcome.answered < requests * share:
                if time.monotonic() > deadline or outcome.times_lost > _MOST_LOST:
                    return False
                time.sleep(0.02)
            return True

        with _asking(process.address, outcome, clients, downloads):
            for number in range(times):
                if not have_answered((number + 1) / (times + 1)):
                    break
                deed = next(deeds)
                pid = _do(deed, pid, folder / "pid.2")
                outcome.deeds[deed.name] = outcome.deeds.get(deed.name, 0) + 1
            have_answered(1)
        outcome.seconds = time.monotonic() - begun
    return outcome


@contextlib.contextmanager
def _asking(address: Address, outcome: Outcome, clients: int, downloads: int) -> Iterator[None]:
    """Ask in threads, until the end of the block."""
    over = threading.Event()
    lock = threading.Lock()

    def ask() -> None:
        client = Client(address, f"/small/{SMALL_BYTES}", payload(SMALL_BYTES), outcome)
        while not over.is_set():
            if client.ask():
                with lock:
                    outcome.answered += 1
        client.close()

    def download() -> None:
        path = f"/server-wrapper/{DOWNLOAD_BYTES}"
        client = Client(address, path, payload(DOWNLOAD_BYTES), outcome)
        while not over.is_set():
            if client.ask(DOWNLOAD_BYTES_PER_S):
                with lock:
                    outcome.downloads += 1
        client.close()

    kinds = [ask] * clients + [download] * downloads
    threads = [threading.Thread(target=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _do(deed: signal.Signals, pid: int, second_pid_file: Path) -> int:
    """Send a signal to a server, and wait until it has done what the signal asks for.

    :param second_pid_file: where gunicorn's second arbiter writes its pid.
    :returns: the pid that the server has then.
    """
    before = _workers(pid)
    os.kill(pid, deed)
    if deed == signal.SIGUSR2:
        return _upgrade(pid, second_pid_file)
    if deed == signal.SIGHUP:
        old = min(WORKERS, len(before))  # one may be between two of them
        _wait_until(lambda: len(before - _workers(pid)) >= old, "has no new workers")
    else:
        time.sleep(_BOOT_S)  # a worker more or less
    return pid


def _upgrade(pid: int, second_pid_file: Path) -> int:
    """The second arbiter has been asked for: wait for it, and end the first one gracefully."""

    def has_begun() -> bool:
        with contextlib.suppress(OSError, ValueError):
            ages = [time.time() - begun for begun in _workers(int(second_pid_file.read_text()))]
            return len(ages) >= WORKERS and min(ages) > _BOOT_S
        return False

    _wait_until(has_begun, "has no successor")
    new = int(second_pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    # The second one renames it when the first one has ended.
    _wait_until(lambda: not second_pid_file.exists(), "goes on after TERM")
    return new


def _workers(pid: int) -> set[float]:
    """The children of a server, by when they were started."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(child.create_time())
    return found


def _wait_until(condition: Callable[[], bool], fault: str) -> None:
    deadline = time.monotonic() + _DONE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server {fault} after {_DONE_S:.0f} s")
        time.sleep(0.05)


def main(arguments: list[str] | None = None) -> int:
    parser = command_line("loadtests.replaced", __doc__)
    parser.add_argument("--requests", type=count, default=20_000, help="of each server (20,000)")
    parser.add_argument("--times", type=count, default=20, help="signals (20)")
    parser.add_argument("--seconds", type=seconds, default=120.0, help="the longest (120)")
    parser.add_argument("--only", default="", help="servers whose names contain this")
    given = parser.parse_args(arguments)
    outcomes = [
        measure(each, requests=given.requests, times=given.times, longest_s=given.seconds)
        for each in CONTENDERS
        if given.only in each.name
    ]
    rows = [
        [
            o.name, f"{o.answered:,}", o.downloads, o.times_lost, o.times_lost + o.repeated,
            " ".join(f"{name} {n}" for name, n in o.deeds.items()), f"{o.seconds:.0f}",
        ]
        for o in outcomes
    ]  # fmt: skip
    head = ["", "answered", "downloads", "lost", "lost if never repeated", "signals", "s"]
    print(table(head, rows))
    for outcome in outcomes:
        for reason, times in outcome.lost.items():
            print(f"{outcome.name}: {times}x {reason}")
    write_report("replaced", {"outcomes": outcomes})
    return int(any(o.lost and o.name == "FastWorker" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
