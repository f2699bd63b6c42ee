"""Wrapped / raw over raw sockets, beside the floors below them.

    python -m loadtests.figures [--server gunicorn|wsgiref] [--rounds 5]

One client asks on one keep-alive connection, raw and wrapped in turn. Two floors show how much is
left to gain: `app` is the time to run through the app's own body and nothing else, `socket` the
time to send the same bytes over a bare socket to the same client.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

from wsgifast.sockets import set_nodelay

from .command_line import command_line
from .measuring import (
    Measured,
    Ratio,
    RunningServer,
    alternate,
    drive,
    free_port,
    measured,
    running,
    save,
    table,
)
from .serving import APP, HOST, Serving
from .shapes import SHAPES, payload
from .terminal import ProgressLine

__all__ = ["FIGURES", "Figure", "main"]

# One measurement of one side: long enough for CPU time to mean something, short enough that all of
# them take a minute or so. A single raw request may take longer.
RUN_S = 0.5


@dataclass(frozen=True)
class Figure:
    """A contender and its base, both paths of the bundled app.

    :ivar aim: what the ratio of the time is to reach, base / contender.
    """

    shape: str
    base: str
    base_wrapped: bool
    options: dict[str, Any]
    aim: dict[str, float]


def _raw(shape: str, gunicorn: float, wsgiref: float, **options: Any) -> Figure:
    return Figure(shape, shape, False, options, {"gunicorn": gunicorn, "wsgiref": wsgiref})


def _beside_list(shape: str) -> Figure:
    """A rescue has no raw time: it is set beside [bytes] of the same server, 1 / 1.05."""
    return Figure(shape, "undeclared", False, {}, {"gunicorn": 0.95, "wsgiref": 0.95})


FIGURES = (
    _raw("list-of-1", 30, 20),
    _raw("generator-of-1", 6, 3, coalesce=True),
    _beside_list("str"),
    _beside_list("bytes"),
    _raw("file", 30, 30),
    _raw("file-wrapper", 2.5, 2.5),
    _raw("list-of-100", 30, 30),
    _raw("whole", 0.98, 0.98),
    _raw("undeclared", 0.98, 0.98),
    _raw("small", 0.98, 0.98),
    _raw("server-wrapper", 0.98, 0.98),
    _raw("stream", 0.98, 0.98),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write reports/figures-SERVER.json."""
    parser = command_line("loadtests.figures", __doc__)
    parser.add_argument("shapes", nargs="*", help="only these")
    parser.add_argument(
        "--server", choices=("gunicorn", "wsgiref"), default="gunicorn", help="of both sides"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=RUN_S, help="of one measurement")
    given = parser.parse_args(arguments)
    chosen = [f for f in FIGURES if not given.shapes or f.shape in given.shapes]
    progress = ProgressLine()
    lines = []
    records = []
    with contextlib.ExitStack() as stack:
        servers = _servers(stack, Serving(APP, given.server))
        for number, figure in enumerate(chosen):
            tell = partial(_tell, progress, figure, number / len(chosen))
            sides = {
                "base": servers({} if figure.base_wrapped else None),
                "wrapped": servers(figure.options),
            }
            paths = {"base": figure.base, "wrapped": figure.shape}
            for side, server in sides.items():  # payloads and lists are made at the first request
                drive(server.address, f"/{paths[side]}", requests=1, seconds=1.0)
            runs: dict[str, Callable[[], Measured]] = {
                side: partial(_measure, server, paths[side], given.seconds)
                for side, server in sides.items()
            }
            results = alternate(runs, rounds=given.rounds, progress=tell)
            lines.append(_line(figure, given.server, results))
            records.append({"figure": figure, "floors": _floors(figure.shape), "runs": results})
    progress.end()
    columns = [
        "wrapped",
        "base",
        "ms base",
        "ms wrapped",
        "app",
        "socket",
        "CPU base",
        "CPU",
        "aim",
    ]
    print(table([*columns, "base / wrapped"], lines))
    print(save(f"figures-{given.server}", {"server": given.server, "figures": records}))
    return 0


def _tell(progress: ProgressLine, figure: Figure, done: float, step: str) -> None:
    progress(f"{figure.shape}: {step}", done)


def _servers(
    stack: contextlib.ExitStack, serving: Serving
) -> Callable[[dict[str, Any] | None], RunningServer]:
    started: dict[str, RunningServer] = {}

    def get(options: dict[str, Any] | None) -> RunningServer:
        key = repr(options)
        if key not in started:
            address = (HOST, free_port())
            command = serving.command(address, options)
            started[key] = stack.enter_context(running(command, address))
        return started[key]

    return get


def _measure(server: RunningServer, shape: str, seconds: float) -> Measured:
    size = SHAPES[shape].size
    run = partial(drive, server.address, f"/{shape}", seconds=seconds, body_bytes=size)
    result = measured(server, run)
    if result.load.failures or not result.load.requests:
        raise SystemExit(f"/{shape} fails: {dict(result.load.errors)}\n{server.log_tail()}")
    return result


def _line(figure: Figure, server: str, results: dict[str, list[Measured]]) -> list[object]:
    def each_ms(side: str) -> list[float]:
        return [1e3 / result.load.requests_per_s for result in results[side]]

    def cpu_ms(side: str) -> float:
        return median(result.cpu_us_per_request for result in results[side]) / 1e3

    floors = _floors(figure.shape)
    ratio = Ratio.of(each_ms("base"), each_ms("wrapped"))
    coalesced = ", coalesced" if figure.options.get("coalesce") else ""
    return [
        figure.shape + coalesced,
        "itself, raw" if figure.base == figure.shape else "[bytes]",
        median(each_ms("base")),
        median(each_ms("wrapped")),
        floors["app_ms"],
        floors["socket_ms"],
        cpu_ms("base"),
        cpu_ms("wrapped"),
        f"{figure.aim[server]:g}x" + ("" if ratio.median >= figure.aim[server] else " !"),
        ratio,
    ]


def _floors(name: str, repeats: int = 5) -> dict[str, float | None]:
    """Milliseconds: through the app's own body, and of the same bytes over a bare socket.

    Median of the repeats. A body that is at hand has no time of its own.
    """
    shape = SHAPES[name]
    body = shape.make({}, shape.size)
    app_ms = None
    if isinstance(body, Iterator) and not hasattr(body, "read"):
        times = []
        for _ in range(repeats):
            chunks = cast("Iterator[bytes]", shape.make({}, shape.size))
            begun = time.perf_counter()
            for _chunk in chunks:
                pass
            times.append((time.perf_counter() - begun) * 1e3)
        app_ms = median(times)
    close = getattr(body, "close", None)
    if close is not None:
        close()
    return {"app_ms": app_ms, "socket_ms": _socket_ms(payload(shape.size), repeats)}


def _socket_ms(data: bytes, repeats: int) -> float:
    """The time of a plain request and answer, sent by a loop that does nothing else."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                set_nodelay(sock)  # else the body waits 40 ms for the head's acknowledgement
                while sock.recv(4096):
                    sock.sendall(head)
                    sock.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        load = drive(listener.getsockname(), requests=max(20, repeats), seconds=0.3)
        thread.join()
    return load.latency_ms[50]


if __name__ == "__main__":
    raise SystemExit(main())
