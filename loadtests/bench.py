"""What the load tests stand on: :mod:`wsgifast.benchmark`, and two clients cheaper than Locust."""

from pathlib import Path

from wsgifast.benchmark.load import Client, Load, Measured, Task, cpu_seconds
from wsgifast.benchmark.locust_client import Locust
from wsgifast.benchmark.processes import (
    HOST,
    Address,
    RunningServer,
    ServerFailed,
    free_port,
    running,
    started,
    temporary_folder,
)
from wsgifast.benchmark.report import problems, results_text
from wsgifast.benchmark.results import Ratio, Result
from wsgifast.benchmark.runner import alternate, run
from wsgifast.benchmark.serving import FAST_WORKER, gunicorn, served, sides
from wsgifast.benchmark.tables import (
    BYTES,
    REQUESTS,
    Contender,
    Profile,
    Row,
    Server,
    Table,
    Unit,
)
from wsgifast.terminal import table

from .rawclient import drive, percentile, raw
from .wrk import has_wrk, wrk

__all__ = [
    "BYTES",
    "FAST_WORKER",
    "HOST",
    "REPORTS",
    "REQUESTS",
    "Address",
    "Client",
    "Contender",
    "Load",
    "Locust",
    "Measured",
    "Profile",
    "Ratio",
    "Result",
    "Row",
    "RunningServer",
    "Server",
    "ServerFailed",
    "Table",
    "Task",
    "Unit",
    "alternate",
    "cpu_seconds",
    "drive",
    "free_port",
    "gunicorn",
    "has_wrk",
    "percentile",
    "problems",
    "raw",
    "results_text",
    "run",
    "running",
    "served",
    "sides",
    "started",
    "table",
    "temporary_folder",
    "wrk",
]  # fmt: skip

# In the checkout, ignored by git.
REPORTS = Path(__file__).resolve().parents[1] / "reports"
