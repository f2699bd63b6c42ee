"""Processes that a benchmark starts, and that do not outlive it, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

__all__ = ["orderly_end", "start"]

# prctl(2): the signal that the kernel sends to a process when its parent is gone.
_PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """subprocess.Popen, of a process that gets SIGTERM when this one is gone (on Linux).

    Also if this one is killed with no time to clean up. To the kernel the parent is the thread
    that calls this: let it be one that stays until the child has ended.
    """
    parent = os.getpid()

    def bind() -> None:
        assert _libc is not None  # see below
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it was bound to
            os._exit(1)

    if _libc is not None:
        options["preexec_fn"] = bind
    return subprocess.Popen(command, **options)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does: through every `finally` on the way.

    Leaves a handler of the program's own alone; without effect in any but the main thread, which
    is the one that runs handlers.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # timeout(1) sends it twice: clean up in peace
        sys.exit(128 + number)  # as the shell tells of a signal

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# Loaded here, as hardly anything may be done between fork and exec.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
