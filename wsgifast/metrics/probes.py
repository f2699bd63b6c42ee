"""What the metrics address answers beside the metrics: probes, and who is slow at the moment."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from .health import Verdict, liveness, readiness
from .states import states

__all__ = ["PATHS", "Answer", "answer"]

PATHS = ("/livez", "/readyz", "/clients")


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
        return _of(liveness([state.at(now) for state in states(directory)]))
    if path == "/readyz":
        return _of(readiness([state.at(now) for state in states(directory)]))
    if path == "/clients":
        clients = [
            {"pid": state.pid, **client._asdict()}
            for state in states(directory)
            for client in state.slow_clients
        ]
        clients.sort(key=lambda client: client["bytes_per_s"])
        return Answer("200 OK", "application/json", json.dumps(clients).encode())
    return None


def _of(verdict: Verdict) -> Answer:
    status = "200 OK" if verdict.ok else "503 Service Unavailable"
    return Answer(status, "text/plain; charset=utf-8", f"{verdict.text}\n".encode())
