"""StaticFiles beside WhiteNoise: python -m loadtests.static_files [--seconds N] [--rounds N]

In one process without a server (calls a second), and behind the same gunicorn gthread worker
(requests a second, CPU of the server, GB a second), with nginx as the limit where it is installed.
Every measurement is taken in turn (A B A B ...). Figures go to reports/static-files.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

from whitenoise import WhiteNoise

from wsgifast import StaticFiles

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
    gunicorn_command,
    has_wrk,
    measured,
    running,
    save,
    table,
    temporary_folder,
)

SMALL_BYTES = 1024
LARGE_BYTES = 10 * 1024 * 1024
RANGE_BYTES = 1024 * 1024
MANY_FILES = 100_000
FEW_FILES = 10
ROOT_VARIABLE = "STATIC_FILES_ROOT"
# Calls of one in-process measurement: some 20 ms each, as long as the machine leaves us alone.
_CALLS = 4000


def whitenoise_app() -> Any:
    return WhiteNoise(_no_app, root=os.environ[ROOT_VARIABLE], prefix="/")


def static_app() -> StaticFiles:
    return StaticFiles(directory=os.environ[ROOT_VARIABLE])


def main() -> None:
    parser = command_line("loadtests.static_files", __doc__)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--files", type=int, default=MANY_FILES, help="in the large tree")
    parser.add_argument("--only", choices=["calls", "server", "tree"], help="one part of it")
    options = parser.parse_args()
    figures: dict[str, object] = {}
    with temporary_folder("static") as folder:
        root = Path(folder, "site")
        (root / "assets").mkdir(parents=True)
        (root / "assets" / "small.bin").write_bytes(os.urandom(SMALL_BYTES))
        (root / "assets" / "large.bin").write_bytes(os.urandom(LARGE_BYTES))
        time.sleep(0.1)  # files that new are not kept in memory
        if options.only in (None, "calls"):
            figures["calls"] = compare_calls(root, options.rounds)
        if options.only in (None, "server"):
            figures["server"] = compare_servers(root, options.seconds, options.rounds)
        if options.only in (None, "tree"):
            figures["tree"] = compare_trees(Path(folder), options)
    name = "static-files" if options.only is None else f"static-files-{options.only}"
    print(f"\n{save(name, figures)}")


# In process


def compare_calls(root: Path, rounds: int) -> dict[str, Ratio]:
    """Calls a second of the app alone, the body read and closed as a server does."""
    apps: dict[str, Any] = {
        "WhiteNoise": WhiteNoise(_no_app, root=str(root), prefix="/"),
        "autorefresh": WhiteNoise(_no_app, root=str(root), prefix="/", autorefresh=True),
        "StaticFiles": StaticFiles(directory=root),
        "recheck_s=1": StaticFiles(directory=root, recheck_s=1),
    }
    rows = []
    ratios: dict[str, Ratio] = {}
    for kind, headers in (
        ("200", {}),
        ("200, Accept-Encoding", {"HTTP_ACCEPT_ENCODING": "gzip, deflate, br, zstd"}),
        ("304", {"HTTP_IF_NONE_MATCH": "etag"}),
        ("206", {"HTTP_RANGE": "bytes=100-199"}),
    ):
        runs = alternate(
            {name: partial(_calls_per_s, app, headers) for name, app in apps.items()},
            rounds=max(rounds, 5),
        )
        row: list[object] = [kind]
        for name in apps:
            row.append(sorted(runs[name])[len(runs[name]) // 2])
        for name in ("StaticFiles", "recheck_s=1"):
            ratio = ratios[f"{kind}: {name}"] = Ratio.of(runs[name], runs["WhiteNoise"])
            row.append(ratio)
        ratio = ratios[f"{kind}: autorefresh"] = Ratio.of(runs["StaticFiles"], runs["autorefresh"])
        rows.append([*row, ratio])
    print(f"\nCalls a second without a server, {SMALL_BYTES} bytes")
    columns = ["", *apps, "StaticFiles / WhiteNoise", "recheck_s=1 / WhiteNoise"]
    print(table([*columns, "StaticFiles / autorefresh"], rows))
    return ratios


def _calls_per_s(app: Any, headers: Mapping[str, str]) -> float:
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/assets/small.bin",
        "QUERY_STRING": "",
        "wsgi.file_wrapper": FileWrapper,
        **headers,
    }
    if "HTTP_IF_NONE_MATCH" in environ:
        environ["HTTP_IF_NONE_MATCH"] = _etag(app, environ)
    start = time.perf_counter()
    for _ in range(_CALLS):
        body = app(environ.copy(), _start_response)
        for _block in body:
            pass
        close = getattr(body, "close", None)
        if close is not None:
            close()
    return _CALLS / (time.perf_counter() - start)


def _etag(app: Any, environ: Mapping[str, Any]) -> str:
    found: dict[str, str] = {}
    plain = {k: v for k, v in environ.items() if k != "HTTP_IF_NONE_MATCH"}
    body = app(plain, lambda status, headers, exc_info=None: found.update(headers))
    if hasattr(body, "close"):
        body.close()
    return found["ETag"]


def _start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
    return None


def _no_app(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Length", "0")])
    return []


# Behind a server


def compare_servers(root: Path, seconds: int, rounds: int) -> dict[str, object]:
    loads: dict[str, Callable[[tuple[str, int]], Callable[[], Load]]] = {
        "1 KiB": lambda address: _small_load(address, seconds),
        "10 MiB whole": lambda address: partial(
            drive, address, "/assets/large.bin", seconds=seconds, body_bytes=LARGE_BYTES
        ),
        "1 MiB ranges of it": lambda address: partial(
            drive,
            address,
            "/assets/large.bin",
            seconds=seconds,
            headers=(f"Range: bytes=2097152-{2097152 + RANGE_BYTES - 1}",),
            body_bytes=RANGE_BYTES,
        ),
    }
    rows: list[list[object]] = []
    figures: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            "WhiteNoise": stack.enter_context(_gunicorn("whitenoise_app", root)),
            "StaticFiles": stack.enter_context(_gunicorn("static_app", root)),
        }
        if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
            servers["nginx"] = stack.enter_context(_nginx(root))
        for kind, load in loads.items():
            runs = alternate(
                {
                    name: partial(measured, server, load(server.address))
                    for name, server in servers.items()
                },
                rounds=rounds,
            )
            ratios = _ratios(runs)
            figures[kind] = {"ratios": ratios, "runs": runs}
            for name, measurements in runs.items():
                middle = sorted(measurements, key=lambda m: m.load.requests_per_s)[rounds // 2]
                failures = sum(m.load.failures for m in measurements)
                rows.append(
                    [
                        f"{kind}: {name}",
                        middle.load.requests_per_s,
                        middle.load.megabytes_per_s / 1e3,
                        middle.cpu_us_per_request,
                        failures,
                    ]
                )
            rows.append(
                [
                    f"{kind}: StaticFiles / WhiteNoise",
                    ratios["requests/s"],
                    ratios["GB/s"],
                    ratios["CPU per request"],
                    "",
                ]
            )
    print("\nBehind one gunicorn gthread worker with 4 threads")
    print(table(["", "requests/s", "GB/s", "CPU us/request", "failures"], rows))
    return figures


def _small_load(
    address: tuple[str, int], seconds: int, path: str = "/assets/small.bin"
) -> Callable[[], Load]:
    if has_wrk():
        return partial(drive_with_wrk, address, path, seconds=seconds, body_bytes=SMALL_BYTES)
    return partial(drive, address, path, seconds=seconds, connections=8, body_bytes=SMALL_BYTES)


def _ratios(runs: Mapping[str, list[Measured]]) -> dict[str, Ratio]:
    ours, theirs = runs["StaticFiles"], runs["WhiteNoise"]
    return {
        "requests/s": Ratio.of(
            [m.load.requests_per_s for m in ours], [m.load.requests_per_s for m in theirs]
        ),
        "GB/s": Ratio.of(
            [m.load.megabytes_per_s for m in ours], [m.load.megabytes_per_s for m in theirs]
        ),
        "CPU per request": Ratio.of(
            [m.cpu_us_per_request for m in ours], [m.cpu_us_per_request for m in theirs]
        ),
    }


@contextlib.contextmanager
def _gunicorn(factory: str, root: Path) -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    command = gunicorn_command(f"loadtests.static_files:{factory}()", address)
    with running(command, address, name=factory, env={ROOT_VARIABLE: str(root)}) as server:
        yield server


@contextlib.contextmanager
def _nginx(root: Path) -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    with temporary_folder("nginx") as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(
            f"""
            daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
            user {pwd.getpwuid(os.geteuid()).pw_name};
            events {{ worker_connections 256; }}
            http {{
              access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
              client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
              fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
              scgi_temp_path {folder}/scgi;
              server {{ listen {address[0]}:{address[1]}; root {root}; }}
            }}
            """
        )
        path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        command = [str(path), "-c", str(config), "-e", f"{folder}/error.log"]
        with running(command, address, name="nginx") as server:
            yield server


# A large tree


def compare_trees(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Start-up time and memory, and requests a second for one file, by the size of the tree."""
    trees = {"few": FEW_FILES, "many": options.files}
    rows: list[list[object]] = []
    figures: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], Measured]] = {}
        for name, count in trees.items():
            root = folder / name
            _make_tree(root, count)
            seconds, memory_mb = _start_up(root)
            figures[f"start-up, {count} files"] = {"seconds": seconds, "MB": memory_mb}
            rows.append([f"{count:,} files", seconds, memory_mb, None])
            server = stack.enter_context(_gunicorn("static_app", root))
            # wrk asks for one path; that it lies among many is what matters.
            load = _small_load(server.address, options.seconds, "/0/0.txt")
            contenders[name] = partial(measured, server, load)
        time.sleep(0.1)
        runs = alternate(contenders, rounds=options.rounds)
    for row, name in zip(rows, trees, strict=True):
        rates = sorted(m.load.requests_per_s for m in runs[name])
        row[3] = rates[len(rates) // 2]
    ratio = Ratio.of(
        [m.load.requests_per_s for m in runs["many"]], [m.load.requests_per_s for m in runs["few"]]
    )
    figures["many / few"] = ratio
    rows.append(["many / few", None, None, ratio])
    print("\nBy the size of the tree")
    print(table(["", "start-up s", "memory MB", "requests/s"], rows))
    return figures


def _make_tree(root: Path, count: int) -> None:
    content = b"x" * SMALL_BYTES
    for number in range(count):
        path = root / str(number // 1000) / f"{number % 1000}.txt"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content)


def _start_up(root: Path) -> tuple[float, float]:
    """Seconds to make the app, and MB of memory of the process that did."""
    ran = subprocess.run(
        [sys.executable, "-c", _START_UP, str(root)], capture_output=True, text=True, check=True
    )
    seconds, memory_mb = ran.stdout.split()
    return float(seconds), float(memory_mb)


# In a process of its own, which imports nothing else.
_START_UP = """
import resource, sys, time
from wsgifast import StaticFiles
start = time.perf_counter()
StaticFiles(directory=sys.argv[1])
seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


if __name__ == "__main__":
    main()
