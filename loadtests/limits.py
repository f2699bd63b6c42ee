"""Compare a report of instructions with the limit of each row.

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
TOLERANCE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a row needs more instructions than its limit, or has no limit."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true", help="use the report's counts as limits")
    options = parser.parse_args(arguments)
    counts = {
        f"{key}: {name}": figures["instructions"]
        for key, row in json.loads(options.report.read_text())["rows"].items()
        for name, figures in row["contenders"].items()
        if figures["instructions"] is not None
    }
    if options.write:
        LIMITS.write_text(json.dumps({k: round(v) for k, v in counts.items()}, indent=1) + "\n")
        return 0
    limits = json.loads(LIMITS.read_text())
    over = {name: n for name, n in counts.items() if n > limits.get(name, 0.0) * (1 + TOLERANCE)}
    for name, count in counts.items():
        limit = f"{limits[name]:>10,.0f}" if name in limits else "no measure"
        mark = "  MORE" if name in over else ""
        sys.stdout.write(f"{count:>10,.0f} of {limit}  {name}{mark}\n")
    missing = limits.keys() - counts.keys()
    for name in sorted(missing):
        sys.stdout.write(f"not counted: {name}\n")
    return int(bool(over or missing))


if __name__ == "__main__":
    sys.exit(main())
