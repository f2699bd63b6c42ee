"""Compare gthread and FastWorker with released applications and slow clients.

In each row, eight slow clients download a file of some megabytes at 4 KiB/s. The server has four
threads. Meanwhile another client requests a small response again and again, and its times are
measured. The applications run in the environments of loadtests.applications, in build/applications.
"""

from __future__ import annotations

from pathlib import Path

from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import FAST_WORKER

from .applications.catalogue import APPLICATIONS, MODULE
from .applications.environment import Environment
from .bench import Side, table
from .harness.tables import Row
from .slow import beside

_APPLICATIONS = {application.name: application for application in APPLICATIONS}
_FOLDER = Path(__file__).resolve().parents[1] / "build" / "applications"
_USED = ("beets", "dash")


def _environment(name: str) -> Environment:
    return Environment(_APPLICATIONS[name], _FOLDER)


def _prepare(folder: Path) -> None:
    for name in _USED:
        environment = _environment(name)
        environment.install()
        environment.prepare()
        environment.reset()


def _gunicorn(name: str, worker_class: str) -> Server:
    options = ("--bind={host}:{port}", "--threads=4", f"--worker-class={worker_class}")
    return _environment(name).server("gunicorn", *options, f"{MODULE}:app")


def _slow(name: str, downloads: str, measured_path: str) -> Row:
    sides: dict[str, Side] = {
        "gthread": _gunicorn(name, "gthread"),
        "FastWorker": _gunicorn(name, FAST_WORKER),
    }
    crowd = ("slow readers", 8)
    return beside(f"released.{name}", f"{name}: eight slow downloads", downloads, crowd,
                  sides=sides, measured_path=measured_path)  # fmt: skip


TABLE = table(
    "released",
    "Released applications",
    [
        _slow("beets", "/item/1/file", "/item/1"),
        _slow("dash", "/_dash-component-suites/plotly/package_data/plotly.min.js", "/_dash-layout"),
    ],
    prepare=_prepare,
)
