"""Field report 1: wsgiref and large payloads.

The report's 688,128 bytes as a string, as a list holding it and as a file: on the standard
library's wsgiref as it is, with WSGIFast around the app, and on wsgifast's own wsgiref server.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

from loadtests.measuring import Measured, Ratio, alternate, drive, free_port, measured, running
from wsgifast import WSGIFast

from .result import Bars, Figures, Profile, ReportResult, Summary

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = ["OLD", "TITLE", "app", "run"]

TITLE = "wsgiref and large payloads"
PAYLOAD_BYTES = 688_128
OLD = Figures(
    f"Then: Python 2, one response of {PAYLOAD_BYTES:,} bytes from wsgiref",
    ["the app returns", "s"],
    [["the string", 16.84], ["a list holding the string", 0.01], ["the open file", 0.07]],
)
# On Python 3 wsgiref refuses a string. What it did with one then, a write for each character, it
# does today with a list of single bytes.
STRING, BYTES, LIST, FILE, WRAPPER = (
    "the string", "single bytes", "a list holding it", "the open file", "the file in FileWrapper"
)  # fmt: skip
_PATHS = {STRING: "/str", BYTES: "/bytes", LIST: "/list", FILE: "/file", WRAPPER: "/wrapper"}
_FAILS_RAW = {STRING}
STOCK, WRAPPED, OURS = "wsgiref", "wsgiref, WSGIFast", "wsgifast's wsgiref, WSGIFast"
# A slow one takes up to seconds for each request, a quick one a fraction of a millisecond.
REQUESTS: dict[Profile, dict[bool, int]] = {
    "quick": {True: 1, False: 20},
    "full": {True: 3, False: 200},
}
ROUNDS: dict[Profile, int] = {"quick": 3, "full": 5}

_payload = b"x" * PAYLOAD_BYTES


@cache
def _payload_file() -> int:
    """The descriptor of a file with the payload; it has no name, and goes with the process."""
    with tempfile.TemporaryFile() as file:
        # Lines of the length that text has: an open file is iterated by lines.
        file.write((b"x" * 79 + b"\n") * (PAYLOAD_BYTES // 80) + b"x" * (PAYLOAD_BYTES % 80))
        file.flush()
        return os.dup(file.fileno())


def raw(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """The payload in each shape."""
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    path = environ["PATH_INFO"]
    if path == _PATHS[STRING]:
        return _payload.decode()
    if path == _PATHS[BYTES]:
        return [b"x"] * PAYLOAD_BYTES
    if path == _PATHS[LIST]:
        return [_payload]
    file = open(f"/proc/self/fd/{_payload_file()}", "rb")
    return FileWrapper(file) if path == _PATHS[WRAPPER] else file


app = WSGIFast(raw)


def run(profile: Profile) -> ReportResult:
    """Each shape on each server, in turn."""
    runs: dict[str, dict[str, list[Measured]]] = {shape: {} for shape in _PATHS}
    for server, name, target in (
        (STOCK, "wsgiref", "raw"),
        (WRAPPED, "wsgiref", "app"),
        (OURS, "fast-wsgiref", "app"),
    ):
        address = ("127.0.0.1", free_port())
        module = f"{__name__}:{target}"
        command = ["python", "-m", "tests.support.serve", name, str(address[1]), module]
        root = Path(__file__).resolve().parents[2]
        with running(command, address, name=server, cwd=root) as running_server:
            contenders: dict[str, Callable[[], Measured]] = {
                shape: partial(
                    measured,
                    running_server,
                    partial(drive, address, path, requests=_requests(profile, server, shape)),
                )
                for shape, path in _PATHS.items()
                if server != STOCK or shape not in _FAILS_RAW
            }
            for shape, results in alternate(contenders, rounds=ROUNDS[profile]).items():
                runs[shape][server] = results
    return ReportResult(
        [_today(runs)],
        [
            Bars(
                "One response",
                "ms",
                {
                    f"{shape}, {server}": _ms(of)
                    for shape, servers in runs.items()
                    for server, of in servers.items()
                },
            )
        ],
        Summary(
            "a string 16.8 s, a list 0.01 s, a file 0.07 s",
            f"single bytes {_ms(runs[BYTES][STOCK]):,.0f} ms (a string fails), "
            f"a list {_ms(runs[LIST][STOCK]):.2f} ms, a file {_ms(runs[FILE][STOCK]):.1f} ms",
            f"single bytes {_ms(runs[BYTES][OURS]):.0f} ms, a string "
            f"{_ms(runs[STRING][OURS]):.2f} ms, a list {_ms(runs[LIST][OURS]):.2f} ms, "
            f"a file {_ms(runs[FILE][OURS]):.2f} ms",
            "the server: what it costs to accept a connection, parse and answer at all. A list of "
            "single bytes still has to be walked through.",
        ),
        "Python 3's wsgiref refuses the string that took 17 s (an error, and no "
        "body). The write for each chunk is still there, and a list of single bytes is the string "
        "of then. A list holding the whole is as good as it was, an open file is still iterated "
        "by lines; WSGIFast brings all of them to the time of the list.",
        {"runs": runs},
    )


def _requests(profile: Profile, server: str, shape: str) -> int:
    return REQUESTS[profile][shape == BYTES or (server == STOCK and shape == FILE)]


def _today(runs: dict[str, dict[str, list[Measured]]]) -> Figures:
    rows: list[list[object]] = []
    for shape, servers in runs.items():
        row: list[object] = [shape]
        for server in (STOCK, WRAPPED, OURS):
            row.append(_ms(servers[server]) if server in servers else "error")
        stock = servers.get(STOCK)
        gain = None
        if stock is not None:
            gain = Ratio.of(*([1 / _seconds(m) for m in of] for of in (servers[WRAPPED], stock)))
        rows.append([*row, gain])
    columns = ["the app returns", STOCK + ", ms", WRAPPED + ", ms", OURS + ", ms", "WSGIFast gain"]
    return Figures(f"Today: {PAYLOAD_BYTES:,} bytes, one request, median", columns, rows)


def _seconds(of: Measured) -> float:
    return 1 / of.load.requests_per_s


def _ms(of: list[Measured]) -> float:
    return median(map(_seconds, of)) * 1e3
