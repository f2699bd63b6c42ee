"""The measuring ground of every benchmark here: real servers, a bounded client, ratios.

Absolute figures differ from machine to machine and from minute to minute; so contenders run in
turn (A B A B ...), and what is reported is the median of each and the ratio within each round,
with its spread. A whole benchmark reads:

    address = ("127.0.0.1", free_port())
    with running(gunicorn_command("module:app", address), address) as server:
        raw = partial(measured, server, partial(drive, address, "/raw", requests=200))
        fast = partial(measured, server, partial(drive, address, "/fast", requests=200))
        runs = alternate({"raw": raw, "wrapped": fast}, rounds=5)
    gain = Ratio.of([s.load.requests_per_s for s in runs["wrapped"]],
                    [s.load.requests_per_s for s in runs["raw"]])
    print(table(["", "requests/s", "wrapped / raw"], [["/", ..., gain]]))
    save("my-benchmark", {"gain": gain, "runs": runs})
"""

from .alternating import Ratio, alternate
from .commands import gunicorn_command, waitress_command
from .cpu import Measured, cpu_seconds, measured
from .folders import temporary_folder
from .load import Load
from .rawclient import drive
from .results import machine, save
from .servers import RunningServer, ServerFailed, free_port, running
from .tables import table
from .wrk import drive_with_wrk, has_wrk

__all__ = [
    "Load",
    "Measured",
    "Ratio",
    "RunningServer",
    "ServerFailed",
    "alternate",
    "cpu_seconds",
    "drive",
    "drive_with_wrk",
    "free_port",
    "gunicorn_command",
    "has_wrk",
    "machine",
    "measured",
    "running",
    "save",
    "table",
    "temporary_folder",
    "waitress_command",
]
