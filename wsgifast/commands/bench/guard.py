"""Ends what a benchmark has started, should the benchmark be killed with no time to clean up.

    python -m wsgifast.commands.bench.guard

Its input is a line for each process group: "+1234" that it has begun, "-1234" that it has ended.
The end of the input is the end of the benchmark; what is left then is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
