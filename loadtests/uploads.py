"""Compare servers by uploads, and measure the cost of an upload.

    python -m loadtests upload.                             many small uploads, by Locust
    python -m loadtests upload.parser. --profile release    a file of 1 GiB in a form, by curl

The figure "written" contains the bytes that the server's processes have written, as the kernel
counts them. If a file is written twice, its bytes count twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from wsgifast.commands.bench.loads import Load, family
from wsgifast.commands.bench.processes import Server

from .bench import FAST, Side, row, table
from .clients import children_cpu_s
from .harness.locust import Locust
from .harness.servers import gunicorn, uvicorn
from .harness.tables import BYTES, REQUESTS, Client, Row, Table, Task
from .payloads import FIELD, MIB

# An upload that takes longer has failed.
TIMEOUT_S = 120.0
UPLOAD_BYTES = {False: 128 * MIB, True: 1024 * MIB}


def upload(*, form: bool = False, http2: bool = False) -> Client:
    """Return a client that makes one upload by curl in each run.

    :param form: whether to upload a file in multipart/form-data.
    :param http2: whether to use HTTP/2, by prior knowledge.
    """

    def run(task: Task) -> Load:
        if shutil.which("curl") is None:
            raise RuntimeError("curl is not installed: apt-get install curl (Debian, Ubuntu)")
        size = UPLOAD_BYTES[task.full]
        file = task.folder / "upload.bin"
        file.touch()
        os.truncate(file, size)  # a sparse file, so that no disk is read
        version = "2" if http2 else "1.1"
        command = ["curl", "--silent", "--show-error", "--header", "Expect:"]
        command += ["--http2-prior-knowledge"] if http2 else ["--http1.1"]
        url = f"http://{task.address[0]}:{task.address[1]}{task.path}"
        option = "--form" if form else "--data-binary"
        prefix = f"{FIELD}=@" if form else "@"
        # This warm-up is a small upload, and not a GET, because uvicorn's protocol does not tell
        # the app that a GET over HTTP/2 has no body.
        warm = [*command, option, f"{prefix}{os.devnull}", "--output", os.devnull, url]
        subprocess.run(warm, check=True, timeout=TIMEOUT_S)
        memory, cpu = _peak_memory(task.pid, reset=True), children_cpu_s()
        written = _written(task.pid)
        body = (
            ["--form", f"{FIELD}=@{file}"]
            if form
            else ["--request", "POST", "--upload-file", str(file)]
        )
        reported = ["--write-out", "\n%{http_version} %{http_code} %{time_total}"]
        ran = subprocess.run(
            [*command, *reported, *body, url], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        cpu, growth = children_cpu_s() - cpu, _peak_memory(task.pid) - memory
        response, _, figures = ran.stdout.rpartition("\n")
        used_version, status, seconds = figures.split()
        received, _, messages = response.partition(" ")
        good = (used_version, status, received) == (version, "200", str(size))
        return Load(
            requests=int(good),
            failures=int(not good),
            body_bytes=size if good else 0,
            seconds=float(seconds),
            latency_ms=dict.fromkeys((50, 95, 99), float(seconds) * 1000.0),
            errors={}
            if good
            else {f"HTTP/{used_version} {status} {ran.stderr or response[:80]}": 1},
            client_cpu_s=cpu,
            facts={
                "messages": float(messages) if good else float("nan"),
                "MiB more": growth / MIB,
                "written": (_written(task.pid) - written) / size,
            },
        )

    return run


def _written(pid: int) -> int:
    """Return the bytes that a server and its workers have written by write() and similar calls."""
    return sum(
        int(Path(f"/proc/{process.pid}/io").read_text().partition("wchar:")[2].split()[0])
        for process in family(pid)
    )


def _peak_memory(pid: int, *, reset: bool = False) -> int:
    """Return the maximum memory of a server and its workers since the last reset."""
    peak_bytes = 0
    for process in family(pid):
        if reset:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # proc(5)
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_bytes += int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return peak_bytes


_APPS = "loadtests.upload_app"
_USERS = 8
# Maps the keys of bodies to their titles, sizes, and form fields.
_BODIES = {
    "small": ("10 kB", 10_000, ""),
    "raw": ("1 MiB", MIB, ""),
    "form": ("1 MiB in a form", MIB, FIELD),
}


def _asgi(app: str, *, ours: bool = False) -> Server:
    return uvicorn(f"{_APPS}:{app}", "--factory", ours=ours)


# The limit is larger than FastWorker's default, so that a form of 1 GiB is accepted.
ROOM = {"WSGIFAST_BODY_LIMIT_BYTES": str(8 * 1024 * MIB)}


def _wsgi(app: str, *, ours: bool = False) -> Server:
    return gunicorn(f"{_APPS}:{app}()", worker_class=FAST if ours else "gthread", env=ROOM)


_SIDES: dict[str, dict[str, Side]] = {
    "asgi": {
        "uvicorn": _asgi("starlette"),
        "our protocol + ASGIFast": _asgi("fast_starlette", ours=True),
    },
    "wsgi": {"gthread": _wsgi("flask"), "FastWorker + WSGIFast": _wsgi("fast_flask", ours=True)},
}
# The form parser of each framework, on another server and on ours.
_PARSERS: dict[str, dict[str, Side]] = {
    "starlette": {"uvicorn": _asgi("starlette"), "our protocol": _asgi("starlette", ours=True)},
    "fastapi": {"uvicorn": _asgi("fastapi"), "our protocol": _asgi("fastapi", ours=True)},
    "django": {"gthread": _wsgi("django"), "FastWorker": _wsgi("django", ours=True)},
    "django-asgi": {
        "uvicorn": _asgi("django_asgi"),
        "our protocol": _asgi("django_asgi", ours=True),
    },
    "flask": {"gthread": _wsgi("flask"), "FastWorker": _wsgi("flask", ours=True)},
}


def upload_table(locust: Locust) -> Table:
    """Return the table with all rows. Locust sends the small uploads."""
    rows: list[Row] = []
    for kind, sides in _SIDES.items():
        for body, (title, size, form) in _BODIES.items():
            client = locust.client(_USERS, posts=size, form=form)
            rows.append(row(f"upload.{kind}.{body}", title, sides, "/upload", REQUESTS, client))
    for framework, sides in _PARSERS.items():
        title = f"1 GiB in a form (in a short run 128 MiB): {framework}"
        key = f"upload.parser.{framework}"
        rows.append(row(key, title, sides, "/upload", BYTES, upload(form=True)))
    return table("upload", "Uploads", rows)
