"""The runner: serves an app raw and wrapped, and has Locust load each path on both in turn."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .comparison import Comparison, Row, Sample, Seen, Side
from .locust_process import LocustProcess, Run
from .measuring import RunningServer, alternate, cpu_seconds, free_port, running
from .serving import HOST, Serving

__all__ = ["Progress", "compare"]

# The first look at a path: raw bodies may take seconds.
LOOK_TIMEOUT_S = 60.0

# What runs now, and the share of all that is done, 0 to 1.
Progress = Callable[[str, float], None]


def compare(
    serving: Serving,
    rows: Sequence[Row],
    *,
    seconds: float,
    rounds: int,
    row_seconds: float,
    port: int | None = None,
    progress: Progress = lambda what, done: None,
) -> list[Comparison]:
    """Serve the app raw and wrapped, and load each row's path on both in turn.

    :param seconds: of one run.
    :param rounds: runs of each side.
    :param row_seconds: no further round of a row is begun after this time; at least one is done.
    :param port: the first port of the servers; by default free ones.
    :raises ServerFailed: if a server does not start, or ends by itself; with its log.
    """
    with contextlib.ExitStack() as stack:
        progress("starting Locust", 0)
        locust = stack.enter_context(LocustProcess())
        servers = _Servers(port, stack, lambda what: progress(what, 0))
        results = []
        for number, row in enumerate(rows):
            served = row.serving or serving
            sides = {"raw": servers.get(served, None), "wrapped": servers.get(served, row.options)}
            seen = {name: look(server, row.path) for name, server in sides.items()}
            for name, server in sides.items():
                # gunicorn listens before it imports the app, and ends if it cannot.
                server.check(within=0.0 if seen[name].answer.startswith("HTTP/") else 3.0)
            runs = {
                name: partial(_sample, locust, server, row, seconds)
                for name, server in sides.items()
            }
            done = number / len(rows)
            tell = partial(_tell, progress, row, done, rounds * len(rows))
            samples = alternate(runs, rounds=rounds, seconds=row_seconds, progress=tell)
            raw, wrapped = (Side(seen[name], samples[name]) for name in sides)
            results.append(Comparison(row, raw, wrapped))
        progress("done", 1)
    return results


def _tell(progress: Progress, row: Row, done: float, all_rounds: int, step: str) -> None:
    finished = int(step.partition("/")[0]) - 1 + (0.5 if step.endswith("wrapped") else 0.0)
    progress(f"{row.label}: {step}", done + finished / all_rounds)


class _Servers:
    """The raw app, and the wrapped one with each set of options; started when first needed."""

    def __init__(
        self,
        port: int | None,
        stack: contextlib.ExitStack,
        tell: Callable[[str], None],
    ) -> None:
        self._port = port
        self._stack = stack
        self._tell = tell
        self._running: dict[str, RunningServer] = {}

    def get(self, serving: Serving, options: Mapping[str, Any] | None) -> RunningServer:
        key = repr((serving, options))
        if key not in self._running:
            name = f"the {'raw' if options is None else 'wrapped'} app on {serving.server}"
            self._tell(f"starting {name}")
            port = free_port() if self._port is None else self._port + len(self._running)
            command = serving.command((HOST, port), None if options is None else dict(options))
            self._running[key] = self._stack.enter_context(
                running(command, (HOST, port), name=name)
            )
        return self._running[key]


def _sample(locust: LocustProcess, server: RunningServer, row: Row, seconds: float) -> Sample:
    before = cpu_seconds(server.pid)
    run = Run(server.url + row.path, users=row.users, seconds=seconds, expected=row.expected)
    load, client_cpu_s = locust.load(run)
    server.check()
    return Sample(load, cpu_seconds(server.pid) - before, client_cpu_s)


def look(server: RunningServer, path: str) -> Seen:
    """Ask once, in HTTP/1.0: the end of the connection is the end of the body, without framing."""
    received = bytearray()
    problem = ""
    try:
        with socket.create_connection(server.address, LOOK_TIMEOUT_S) as sock:
            host = f"{server.address[0]}:{server.address[1]}"
            sock.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            while block := sock.recv(1 << 20):
                received += block
    except OSError as error:
        problem = str(error) or type(error).__name__
    head, separator, body = bytes(received).partition(b"\r\n\r\n")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    if any(field.lower() == "transfer-encoding: chunked" for field in fields):
        body = _dechunked(body)  # uvicorn chunks for HTTP/1.0 too
    lengths = [f.partition(":")[2] for f in fields if f.lower().startswith("content-length:")]
    if not separator:
        problem = problem or "connection closed without an answer"
    elif lengths and int(lengths[0]) != len(body):
        problem = problem or f"{status_line}, then the end after {len(body)} of{lengths[0]} bytes"
    status = status_line.split(" ")[1] if " " in status_line else "none"
    ok = not problem and status < "400"
    return Seen(problem or status_line, len(body), hashlib.sha256(body).hexdigest(), ok)


def _dechunked(body: bytes) -> bytes:
    """Take the chunks' sizes out; what is no chunk any more is left out."""
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0] or b"0", 16)
        chunks.append(body[:length])
        body = body[length + 2 :]
    return b"".join(chunks)
