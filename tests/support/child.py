"""A fork of the tests' own process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

__all__ = ["in_a_child"]


def in_a_child(function: Callable[[], object]) -> int:
    """Call a function in a fork of this process; returns the pid, once the child has ended well."""
    with warnings.catch_warnings():
        # Python warns of threads, which tests before have left: the child waits for none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the child has failed"
    return pid
