"""How much random testing there is: a moderate amount in `make test`, twenty times in the long run.

`make test-long` sets WSGIFAST_TEST_LONG=1.
"""

from __future__ import annotations

import os

LONG = os.environ.get("WSGIFAST_TEST_LONG") == "1"
_TIMES = 20


def effort(count: int) -> int:
    """Return how many random cases to try, where `make test` is to try `count`."""
    return count * _TIMES if LONG else count
