"""Benchmarks by ratios: real servers, bounded clients, contenders in turn.

This is what a user runs on an app of their own (`python -m loadtests.bench module:app /path`), and
the ground that every load test here stands on. It knows nothing of the project's own scenarios, and
needs nothing of the rest of `loadtests` or of `tests`.

Absolute figures differ from machine to machine and from minute to minute; so contenders run in turn
(A B A B ...), and what is reported is the median of each and the ratio of neighbours, with its
spread. A whole benchmark is a table:

    rows = [
        Row(
            "my.small",
            "1 KiB",
            (
                Contender("gthread", gunicorn("module:app"), "/small"),
                Contender("sync", gunicorn("module:app", worker_class="sync"), "/small"),
            ),
            wrk(8),
        )
    ]
    results = run(Table("my", "My workers", rows), PROFILES["quick"])
    print(results_text(results))
"""

from .alternating import Ratio, alternate
from .command_line import command_line
from .load import Client, Load, Measured, Task, cpu_seconds, measured, percentile
from .locust_process import locust
from .processes import (
    HOST,
    Address,
    RunningServer,
    ServerFailed,
    free_port,
    running,
    start,
    temporary_folder,
)
from .rawclient import drive, raw
from .report import results_text
from .results import REPORTS, machine, save
from .runner import (
    BYTES,
    PROFILES,
    REQUESTS,
    Contender,
    Profile,
    Result,
    Row,
    Server,
    Table,
    Unit,
    run,
)
from .serving import Serving, gunicorn
from .terminal import table
from .wrk import has_wrk, wrk

__all__ = [
    "BYTES", "HOST", "PROFILES", "REPORTS", "REQUESTS", "Address", "Client", "Contender", "Load",
    "Measured", "Profile", "Ratio", "Result", "Row", "RunningServer", "Server", "ServerFailed",
    "Serving", "Table", "Task", "Unit", "alternate", "command_line", "cpu_seconds", "drive",
    "free_port", "gunicorn", "has_wrk", "locust", "machine", "measured", "percentile", "raw",
    "results_text", "run", "running", "save", "start", "table", "temporary_folder", "wrk",
]  # fmt: skip
