"""What the load tests stand on: :mod:`wsgifast.benchmark`, and two clients cheaper than Locust."""

from pathlib import Path

from wsgifast.benchmark.load import Client, Load, Measured, Task
from wsgifast.benchmark.locust_client import Locust
from wsgifast.benchmark.processes import (
    HOST,
    Address,
    free_port,
    running,
    started,
    temporary_folder,
)
from wsgifast.benchmark.report import problems
from wsgifast.benchmark.runner import run
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

from .rawclient import percentile, raw
from .wrk import wrk

__all__ = [
    "BYTES", "FAST_WORKER", "HOST", "REPORTS", "REQUESTS", "Address", "Client", "Contender",
    "Load", "Locust", "Measured", "Profile", "Row", "Server", "Table", "Task", "Unit",
    "free_port", "gunicorn", "percentile", "problems", "raw", "run", "running", "served", "sides",
    "started", "table", "temporary_folder", "wrk",
]  # fmt: skip

# In the checkout, ignored by git.
REPORTS = Path(__file__).resolve().parents[1] / "reports"
