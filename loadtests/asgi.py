"""The ASGI half against what is there: uvicorn as it is, and granian.

    python -m loadtests.asgi [--others] [--rounds 5] [--seconds 1.0] [--only WORD]

One worker each, access logs off, kept-alive connections; every contender once a round, in turn.
With --others: what ASGIFast alone does on hypercorn and on gunicorn's own asgi worker.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .command_line import command_line
from .measuring import (
    Load,
    Measured,
    Ratio,
    RunningServer,
    alternate,
    drive,
    drive_with_wrk,
    free_port,
    measured,
    running,
    save,
    table,
    temporary_folder,
)

_UVICORN = "-m uvicorn --no-access-log --log-level warning --port {port} {more} {app}"
_OURS = "--http asgifast.uvicorn:HttpToolsProtocol"
_GRANIAN = "-m granian --interface asgi --no-ws --log-level warning --port {port} {app}"
APP, FAST = "loadtests.asgi_app:app", "loadtests.asgi_app:fast"
LIMIT, BARE = "loadtests.asgi_app:limit", "loadtests.asgi_app:bare"
# name -> arguments; uvicorn chooses uvloop and httptools where it is told nothing.
SERVERS = {
    "uvicorn": _UVICORN.replace("{more}", "").replace("{app}", APP),
    "uvicorn, our protocol": _UVICORN.replace("{more}", _OURS).replace("{app}", APP),
    "uvicorn + ASGIFast": _UVICORN.replace("{more}", "").replace("{app}", FAST),
    "our protocol + ASGIFast": _UVICORN.replace("{more}", _OURS).replace("{app}", FAST),
    "uvicorn + a bare middleware": _UVICORN.replace("{more}", "").replace("{app}", LIMIT),
    "our protocol, bare app": _UVICORN.replace("{more}", _OURS).replace("{app}", BARE),
    "uvicorn asyncio": _UVICORN.replace("{more}", "--loop asyncio").replace("{app}", APP),
    "our protocol asyncio": _UVICORN.replace("{more}", f"--loop asyncio {_OURS}").replace(
        "{app}", APP
    ),
    "asyncio + ASGIFast": _UVICORN.replace("{more}", "--loop asyncio").replace("{app}", FAST),
    "granian": _GRANIAN.replace("{app}", APP),
}
# Servers that stay as they are.
_HYPERCORN = (
    "-m hypercorn --worker-class {loop} --log-level error --bind 127.0.0.1:{{port}} {{app}}"
)
OTHERS = {
    "hypercorn, asyncio": _HYPERCORN.format(loop="asyncio"),
    "hypercorn, uvloop": _HYPERCORN.format(loop="uvloop"),
    "hypercorn, trio": _HYPERCORN.format(loop="trio"),
    "gunicorn asgi": "-m gunicorn --worker-class asgi --no-control-socket --log-level error "
    "--bind 127.0.0.1:{port} {app}",
}
for _name, _command in OTHERS.items():
    SERVERS[_name] = _command.replace("{app}", APP)
    SERVERS[f"{_name} + ASGIFast"] = _command.replace("{app}", FAST)
MIB = 1024 * 1024


class Row(NamedTuple):
    """One comparison: the first contender is the base."""

    title: str
    # "MB/s" with one connection, or "requests/s" with wrk's eight.
    unit: str
    contenders: list[tuple[str, str]]
    headers: tuple[str, ...] = ()
    body_bytes: int | None = None


_PLAIN, _OUR, _BOTH = "uvicorn", "uvicorn, our protocol", "our protocol + ASGIFast"
_RANGE = (f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)
ROWS = [
    Row(
        "FileResponse 10 MiB",
        "MB/s",
        [
            (_PLAIN, "/file/large"),
            (_OUR, "/file/large"),
            ("uvicorn + ASGIFast", "/file/large"),
            ("granian", "/file/large"),
        ],
    ),
    Row(
        "FileResponse 10 MiB by 1 MiB ranges",
        "MB/s",
        [
            (_PLAIN, "/file/large"),
            (_OUR, "/our-file/large"),
            ("uvicorn + ASGIFast", "/our-file/large"),
            ("granian", "/file/large"),
        ],
        _RANGE,
    ),
    Row(
        "FileResponse 1 KiB",
        "requests/s",
        [
            (_PLAIN, "/file/small"),
            (_OUR, "/file/small"),
            (_OUR, "/our-file/small"),
            ("granian", "/file/small"),
        ],
    ),
    Row(
        "StaticFiles 1 KiB",
        "requests/s",
        [
            (_PLAIN, "/static/small"),
            (_OUR, "/static/small"),
            (_PLAIN, "/our-static/small"),
            (_OUR, "/our-static/small"),
        ],
    ),
    Row(
        "100,000 messages of 100 bytes",
        "MB/s",
        [(_PLAIN, "/crumbs/"), (_OUR, "/crumbs/"), ("uvicorn + ASGIFast", "/crumbs/")],
    ),
    Row(
        "the same on asyncio's own loop",
        "MB/s",
        [
            ("uvicorn asyncio", "/crumbs/"),
            ("our protocol asyncio", "/crumbs/"),
            ("asyncio + ASGIFast", "/crumbs/"),
        ],
    ),
    Row(
        "Response 1 KiB",
        "requests/s",
        [
            (_PLAIN, "/plain"),
            (_OUR, "/plain"),
            ("uvicorn + ASGIFast", "/plain"),
            ("uvicorn + a bare middleware", "/plain"),
            (_BOTH, "/plain"),
        ],
    ),
]
OTHER_ROWS = [
    Row(f"{name}: {what}", unit, [(name, path), (f"{name} + ASGIFast", path)])
    for name in OTHERS
    for what, unit, path in (
        ("FileResponse 10 MiB", "MB/s", "/file/large"),
        ("100,000 messages of 100 bytes", "MB/s", "/crumbs/"),
        ("Response 1 KiB", "requests/s", "/plain"),
    )
]


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("loadtests.asgi", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--only", default="", help="rows with this in their title")
    parser.add_argument("--others", action="store_true", help="the rows of the other servers")
    options = parser.parse_args(arguments)
    rows = [row for row in (OTHER_ROWS if options.others else ROWS) if options.only in row.title]
    with (
        temporary_folder("load") as folder,
        contextlib.ExitStack() as stack,
    ):
        Path(folder, "large").write_bytes(os.urandom(10 * MIB))
        Path(folder, "small").write_bytes(os.urandom(1024))
        servers: dict[str, RunningServer] = {}
        for name in dict.fromkeys(name for row in rows for name, _ in row.contenders):
            port = free_port()
            command = ["python", *SERVERS[name].format(port=port).split()]
            environment = {"ASGI_LOAD_FILES": folder}
            servers[name] = stack.enter_context(
                running(command, ("127.0.0.1", port), name=name, env=environment)
            )
        report = {
            row.title: _measure(row, servers, options.rounds, options.seconds) for row in rows
        }
    print(f"saved {save('asgi-others' if options.others else 'asgi', report)}")


def _measure(
    row: Row, servers: dict[str, RunningServer], rounds: int, seconds: float
) -> dict[str, object]:
    runs: dict[str, Callable[[], Measured]] = {}
    for name, path in row.contenders:
        server = servers[name]
        client: Callable[[], Load]
        if row.unit == "MB/s":
            client = partial(drive, server.address, path, seconds=seconds, headers=row.headers)
        else:
            client = partial(drive_with_wrk, server.address, path, seconds=max(1, round(seconds)))
        client()  # warm
        runs[f"{name} {path}"] = partial(measured, server, client)
    results = alternate(runs, rounds=rounds, progress=_progress(row.title))
    base = next(iter(results.values()))
    lines = []
    figures: dict[str, object] = {}
    for contender, samples in results.items():
        speeds = [_speed(sample, row.unit) for sample in samples]
        gain = Ratio.of(speeds, [_speed(sample, row.unit) for sample in base])
        cpu = [_cpu(sample, row.unit) for sample in samples]
        saving = Ratio.of(cpu, [_cpu(sample, row.unit) for sample in base])
        failures = sum(sample.load.failures for sample in samples)
        lines.append(
            [contender, statistics.median(speeds), gain, statistics.median(cpu), saving, failures]
        )
        figures[contender] = {"gain": gain, "cpu": saving, "runs": samples}
    cost = "CPU s/GB" if row.unit == "MB/s" else "CPU us/request"
    print(f"\n{row.title}")
    print(table(["", row.unit, "ratio", cost, "ratio", "failures"], lines), flush=True)
    return figures


def _speed(sample: Measured, unit: str) -> float:
    load = sample.load
    return load.megabytes_per_s if unit == "MB/s" else load.requests_per_s


def _cpu(sample: Measured, unit: str) -> float:
    value = sample.cpu_s_per_gb if unit == "MB/s" else sample.cpu_us_per_request
    return value or 0.0


def _progress(title: str) -> Callable[[str], None]:
    def show(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{title}: {what}\033[K", end="", file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    main()
