"""The amount of random testing: moderate in `make test`, and twenty times as much in the long run.

`make test-long` sets WSGIFAST_TEST_LONG=1.
"""

from __future__ import annotations

import os

LONG = os.environ.get("WSGIFAST_TEST_LONG") == "1"
_TIMES = 20


def effort(count: int) -> int:
    """Return how many random cases to try. `make test` tries `count`."""
    return count * _TIMES if LONG else count
