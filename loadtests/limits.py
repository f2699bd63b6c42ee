"""Compares a report of instructions with the limit of each row.

    python -m loadtests instructions.
    python -m loadtests.limits reports/quick/instructions.json
    python -m loadtests.limits reports/quick/instructions.json --write    save the report's counts

The counts depend on the versions of Python and of the packages, so limits may be exceeded a little.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

LIMITS = Path(__file__).with_name("limits.json")
# New versions of frameworks and of CPython change a count by a few percent.
ROOM = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a row needs more instructions than its limit, or has no limit."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true", help="use the report's counts as limits")
    given = parser.parse_args(arguments)
    counts = {
        f"{key}: {name}": figures["instructions"]
        for key, row in json.loads(given.report.read_text())["rows"].items()
        for name, figures in row["contenders"].items()
        if figures["instructions"] is not None
    }
    if given.write:
        LIMITS.write_text(json.dumps({k: round(v) for k, v in counts.items()}, indent=1) + "\n")
        return 0
    limits = json.loads(LIMITS.read_text())
    over = {what: n for what, n in counts.items() if n > limits.get(what, 0.0) * (1 + ROOM)}
    for what, count in counts.items():
        limit = f"{limits[what]:>10,.0f}" if what in limits else "no measure"
        mark = "  MORE" if what in over else ""
        sys.stdout.write(f"{count:>10,.0f} of {limit}  {what}{mark}\n")
    missing = limits.keys() - counts.keys()
    for what in sorted(missing):
        sys.stdout.write(f"not counted: {what}\n")
    return int(bool(over or missing))


if __name__ == "__main__":
    sys.exit(main())
