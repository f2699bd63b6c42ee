"""Results on disk: JSON under reports/, with the machine they were measured on."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

__all__ = ["REPORTS", "machine", "save"]

# In the checkout, ignored by git; elsewhere (installed editable) it is still the checkout's.
REPORTS = Path(__file__).resolve().parents[2] / "reports"
# What a figure may depend on.
_PACKAGES = (
    "wsgifast", "gunicorn", "gunicorn_h1c", "werkzeug", "waitress", "whitenoise", "flask",
    "uvicorn", "uvloop", "httptools", "starlette", "granian", "hypercorn", "aiosmtpd", "locust",
)  # fmt: skip


def machine() -> dict[str, str | int]:
    """What the figures depend on: cores, kernel, Python, package versions."""
    facts: dict[str, str | int] = {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return facts


def save(name: str, figures: Mapping[str, object]) -> Path:
    """Write figures, with the time and the machine, to reports/NAME.json.

    :param figures: anything that JSON takes, and dataclasses (:class:`Ratio`, :class:`Load`, ...).
    :returns: the file.
    """
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{name}.json"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    content = {"measured": when, "machine": machine(), **figures}
    path.write_text(json.dumps(content, indent=2, default=_plain) + "\n")
    return path


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} does not go into JSON")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
