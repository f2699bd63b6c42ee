"""What the load tests stand on: :mod:`wsgifast.benchmark`, and two clients cheaper than Locust."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from wsgifast.arguments import write_file
from wsgifast.benchmark.load import Client, Load, Measured, Task, family, resident_bytes
from wsgifast.benchmark.locust_client import Locust
from wsgifast.benchmark.processes import (
    HOST,
    Address,
    free_port,
    started,
    temporary_folder,
    tls_context,
)
from wsgifast.benchmark.report import as_json, problems
from wsgifast.benchmark.runner import run, running_server
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
    "BYTES", "FAST_WORKER", "HOST", "REPORTS", "REQUESTS", "Address", "Case", "Client",
    "Contender", "Load", "Locust", "Measured", "Profile", "Row", "Server", "Table", "Task",
    "Unit", "case_rows", "certificate", "family", "free_port", "gunicorn", "percentile",
    "problems", "raw", "resident_bytes", "run", "running_server", "served", "sides", "started",
    "table", "temporary_folder", "tls_context", "write_report", "wrk",
]  # fmt: skip

# In the checkout, ignored by git.
REPORTS = Path(__file__).resolve().parents[1] / "reports"


def write_report(name: str, figures: Mapping[str, object]) -> None:
    """Write what is no table, as reports/NAME.json."""
    REPORTS.mkdir(exist_ok=True)
    write_file(REPORTS / f"{name}.json", as_json(figures))


# A kind of request: its name in keys, its title, path, unit and client.
Case: TypeAlias = tuple[str, str, str, Unit, Client]


def case_rows(
    key: str, title: str, sides: Mapping[str, Server], cases: Iterable[Case]
) -> list[Row]:
    """A row for each kind of request, asked of the same servers."""
    return [
        Row(
            f"{key}.{case}",
            f"{title}: {what}",
            tuple(Contender(name, server, path) for name, server in sides.items()),
            client,
            unit,
        )
        for case, what, path, unit, client in cases
    ]


@cache
def certificate(folder: Path) -> None:
    """Write server.pem, of localhost, for the servers that speak TLS."""
    import trustme

    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
