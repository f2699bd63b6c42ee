"""Every figure of the documentation, measured again.

    python -m loadtests all                          quickly: that each row runs, and rough ratios
    python -m loadtests all --profile release        for publication: make benchmarks
    python -m loadtests worker.tls asgi --profile release

A KEY names rows: it is told beside each row, and is its key in reports/*.json.
"""

from __future__ import annotations

import sys
from importlib import import_module

from .bench import Table
from .command import main
from .demo import LOCUST

# From bodies to servers.
MODULES = (
    "demo", "frameworks", "calls", "static_files", "django_files", "memory", "worker", "metrics",
    "slow", "slow_attack", "asgi", "asgi_middleware", "nodelay", "field_reports.__main__",
)  # fmt: skip


def tables() -> list[Table]:
    """All tables."""
    return [t for name in MODULES for t in import_module(f"loadtests.{name}").TABLES]


if __name__ == "__main__":
    keys = [argument for argument in sys.argv[1:] if argument != "all"]
    title = "The load tests"
    with LOCUST:
        raise SystemExit(
            main("loadtests", __doc__, tables(), keys, page_name="all", page_title=title)
        )
