"""Determine which processes of a server are alive, read their states, and respond to health probes.

A server is *dead* when all its workers have sent no heartbeat for twice the arbiter's timeout. Then
only a restart helps. A worker's main thread sends a heartbeat each second, even if its other
threads are busy. The arbiter replaces a worker without a heartbeat, so one such worker does no
harm.

A server is *ready* when at least one worker accepts connections, is not silent, and had a free
thread in the last seconds. One such worker suffices: a worker whose threads are all busy accepts no
connections, and the ready worker accepts them.

A worker writes its state into its own small file, once a second if the state has changed. The
exporter reads the files of live workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_NAME = re.compile(r"wsgifast-(\d+)-(\d+)")
# A worker with an older heartbeat is silent. Its interpreter is blocked.
_SILENT_S = 10.0
# The paths of the metrics address, in addition to that of the metrics.
PATHS = ("/livez", "/readyz", "/clients")
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
_PREFIX, _SUFFIX = "state_", ".json"
# An unchanged state is written again after this time. It must be much shorter than _SILENT_S.
_BEAT_INTERVAL_S = 2.5
_PART = ".part"  # the suffix of a file that is being written


def name_of_process(pid: int) -> str:
    """Return a name for a process: its pid and its start time, because the system reuses pids.

    :raises OSError: if too many files are open, for example.
    """
    return f"wsgifast-{pid}-{_started(pid) or 0}"


def pid_in(name: str) -> int | None:
    """Return the pid in the name of a process, or None for a name in another format."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def is_alive(name: str) -> bool:
    """Return whether the process with a name runs.

    A zombie does not count. True if this is unknown.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return False
    pid, started = int(found[1]), int(found[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not started:
        return True
    try:
        return _started(pid) == started
    except OSError:
        return True


def processes(directory: str) -> set[str]:
    """Return the live processes that have metrics files in a directory.

    :raises OSError: if the directory cannot be read.
    """
    files = [name.removesuffix(".db") for name in os.listdir(directory) if name.endswith(".db")]
    names = {name.rpartition("_")[2] for name in files}
    return {name for name in names if is_alive(name)}


def _started(pid: int) -> int | None:
    """Return the start time of a process in system ticks, or None for a zombie or without /proc.

    :raises OSError: if too many files are open, for example.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may contain any character.
            fields = file.read(1024).rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def resident_bytes() -> int:
    """Return the resident memory of this process. Without /proc, return its maximum so far."""
    try:
        with open("/proc/self/statm", "rb", 0) as file:
            pages = int(file.read(256).split()[1])  # proc_pid_statm(5)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class SlowClient(NamedTuple):
    """A client that does not receive its response as fast as the app produces it.

    :ivar client: the client's address.
    :ivar path: the path of the request, without the query.
    :ivar queued_bytes: the bytes that wait for the client.
    :ivar waited_s: the time for which bytes have waited.
    :ivar bytes_per_s: the client's average rate in this time.
    """

    client: str
    path: str
    queued_bytes: int
    waited_s: float
    bytes_per_s: float


class State(NamedTuple):
    """The state of a worker, from its file.

    :ivar beat_at: the time of the main thread's last heartbeat.
    :ivar exhausted_since: the time at which the last free thread became busy. None while a thread
        is free.
    :ivar accepts: False if the worker must end, or has the most connections that it may have.
    :ivar unready_after_s: the time for which all threads may be busy before the worker is not
        ready.
    :ivar lost_after_s: the worker is dead if it sends no heartbeat for this time. Its arbiter would
        have replaced it before.
    :ivar slow_clients: the slowest clients.

    Times are those of the monotonic clock, which all processes of a system share.
    """

    pid: int
    beat_at: float
    exhausted_since: float | None
    accepts: bool
    unready_after_s: float
    lost_after_s: float
    slow_clients: list[SlowClient]

    def silent_s(self, now: float) -> float:
        return now - self.beat_at

    def exhausted_s(self, now: float) -> float:
        return 0.0 if self.exhausted_since is None else now - self.exhausted_since


def liveness(workers: Sequence[State], now: float) -> tuple[bool, str]:
    """Return whether the server is alive, and the reason. True before the first worker starts."""
    if workers and all(worker.silent_s(now) > worker.lost_after_s for worker in workers):
        silent_s = min(worker.silent_s(now) for worker in workers)
        return False, f"no worker has given a sign of life for {silent_s:.0f} s"
    return True, "alive"


def readiness(workers: Sequence[State], now: float) -> tuple[bool, str]:
    """Return whether the server is ready for requests, and the reason."""
    serving = [worker for worker in workers if worker.accepts and worker.silent_s(now) <= _SILENT_S]
    if not serving:
        return False, "no worker accepts connections"
    free = sum(worker.exhausted_s(now) <= worker.unready_after_s for worker in serving)
    if not free:
        shortest_s = min(worker.exhausted_s(now) for worker in serving)
        return False, f"no thread of {len(serving)} workers has been free for {shortest_s:.0f} s"
    return True, f"ready: {free} of {len(serving)} workers"


class StateFile:
    """The file with the state of this process."""

    def __init__(self, directory: str) -> None:
        name = f"{_PREFIX}{name_of_process(os.getpid())}{_SUFFIX}"
        self._path = os.path.join(directory, name)
        self._written: State | None = None

    def update(self, state: State) -> None:
        """Write the state, unless only the heartbeat has changed and the last write is recent.

        :raises OSError: if the file cannot be written.
        """
        written = self._written
        if written is not None and written._replace(beat_at=state.beat_at) == state:
            age_s = state.beat_at - written.beat_at
            if age_s < min(_BEAT_INTERVAL_S, state.lost_after_s / 4):
                return
        part = self._path + _PART  # a rename replaces the file, so no reader gets an incomplete one
        with open(part, "w", encoding="ascii") as file:
            json.dump(state, file)
        os.replace(part, self._path)
        self._written = state


def states(directory: str) -> Iterator[State]:
    """Return the states of the live workers."""
    for name, path in _files(directory):
        if not (path.endswith(_SUFFIX) and is_alive(name)):
            continue
        try:
            with open(path, encoding="ascii") as file:
                state = State(*json.load(file))
            yield state._replace(slow_clients=[SlowClient(*each) for each in state.slow_clients])
        except (OSError, ValueError, TypeError):
            continue  # the worker has just ended, or has another version


def remove_dead(directory: str) -> None:
    """Remove the files of workers that have ended."""
    for name, path in _files(directory):
        if not is_alive(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


class HTTPResponse(NamedTuple):
    """A response of the metrics address."""

    status: str
    content_type: str
    body: bytes


def response(path: str, directory: str) -> HTTPResponse | None:
    """Return the response to a path of PATHS from the states of the workers. None for other paths.

    :param directory: the directory of the workers' files.
    """
    probe = {"/livez": liveness, "/readyz": readiness}.get(path)
    if path in PATHS and not os.path.isdir(directory):  # the exporter ends after its server
        return HTTPResponse("503 Service Unavailable", PLAIN, b"the server has ended\n")
    if probe is not None:
        ok, text = probe([*states(directory)], time.monotonic())
        status = "200 OK" if ok else "503 Service Unavailable"
        return HTTPResponse(status, PLAIN, f"{text}\n".encode())
    if path == "/clients":
        return HTTPResponse("200 OK", JSON, json.dumps(slow_clients(directory)).encode())
    return None


def slow_clients(directory: str) -> list[dict[str, Any]]:
    """Return the slowest clients of all workers, with the pid of the worker.

    :param directory: the directory of the workers' files.
    """
    clients = [
        {"pid": state.pid, **client._asdict()}
        for state in states(directory)
        for client in state.slow_clients
    ]
    return sorted(clients, key=lambda client: client["bytes_per_s"])


def _files(directory: str) -> list[tuple[str, str]]:
    """Return the process name and the path of each state file, also of incomplete files."""
    with os.scandir(directory) as entries:
        return [
            (entry.name.removeprefix(_PREFIX).partition(".")[0], entry.path)
            for entry in entries
            if entry.name.startswith(_PREFIX)
        ]
