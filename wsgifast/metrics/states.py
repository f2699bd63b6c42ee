"""The state of each worker, in a small file of its own, and what probes are answered by it.

A worker writes its file once a second. The exporter reads the files of the workers that live.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from .health import SlowClient, State, Verdict, liveness, readiness
from .processes import is_alive, name_of_process

# What the metrics address answers by them.
PATHS = ("/livez", "/readyz", "/clients")

_PREFIX, _SUFFIX = "state_", ".json"
# A sign of life is written this often; health.py takes a worker without one for 10 s as silent.
_BEAT_EVERY_S = 2.5
_PART = ".part"  # of one that is being written


class StateFile:
    """This process's file."""

    def __init__(self, directory: str) -> None:
        name = f"{_PREFIX}{name_of_process(os.getpid())}{_SUFFIX}"
        self._path = os.path.join(directory, name)
        self._written: State | None = None

    def update(self, state: State) -> None:
        """Replace the file, unless only the sign of life is new, and the one in it recent.

        :raises OSError: if it cannot be written.
        """
        written = self._written
        if written is not None and written._replace(beat_at=state.beat_at) == state:
            age_s = state.beat_at - written.beat_at
            if age_s < min(_BEAT_EVERY_S, state.lost_after_s / 4):
                return
        self.write(state)
        self._written = state

    def write(self, state: State) -> None:
        """Replace it; nobody ever reads the half of one.

        :raises OSError: if that cannot be.
        """
        part = self._path + _PART
        with open(part, "w", encoding="ascii") as file:
            json.dump(state, file)
        os.replace(part, self._path)


def states(directory: str) -> Iterator[State]:
    """Those of the workers that live."""
    for name, path in _files(directory, _SUFFIX):
        if not is_alive(name):
            continue
        try:
            with open(path, encoding="ascii") as file:
                state = State(*json.load(file))
            yield state._replace(slow_clients=[SlowClient(*each) for each in state.slow_clients])
        except (OSError, ValueError, TypeError):
            continue  # it has ended just now, or is of another version


def remove_dead(directory: str) -> None:
    """Remove the files of workers that have ended."""
    for suffix in (_SUFFIX, _SUFFIX + _PART):
        for name, path in _files(directory, suffix):
            if not is_alive(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


class Answer(NamedTuple):
    """A response."""

    status: str
    content_type: str
    body: bytes


def answer(path: str, directory: str) -> Answer | None:
    """The answer to a path by the states of the workers; None for a path that is not one of PATHS.

    :param directory: where their files are.
    """
    now = time.monotonic()
    if path == "/livez":
        return _answer_of(liveness([*states(directory)], now))
    if path == "/readyz":
        return _answer_of(readiness([*states(directory)], now))
    if path == "/clients":
        clients = [
            {"pid": state.pid, **client._asdict()}
            for state in states(directory)
            for client in state.slow_clients
        ]
        clients.sort(key=lambda client: client["bytes_per_s"])
        return Answer("200 OK", "application/json", json.dumps(clients).encode())
    return None


def _answer_of(verdict: Verdict) -> Answer:
    status = "200 OK" if verdict.ok else "503 Service Unavailable"
    return Answer(status, "text/plain; charset=utf-8", f"{verdict.text}\n".encode())


def _files(directory: str, suffix: str) -> list[tuple[str, str]]:
    """Each with its process."""
    with os.scandir(directory) as entries:
        return [
            (entry.name[len(_PREFIX) : -len(suffix)], entry.path)
            for entry in entries
            if entry.name.startswith(_PREFIX) and entry.name.endswith(suffix)
        ]
