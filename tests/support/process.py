"""The resources and rights of this process: descriptors, forks, other users, terminals."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pty
import socket
import struct
import termios
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, who may become somebody else"
)
_NOBODY = 65534


def open_descriptors() -> set[tuple[str, str]]:
    """Return each open descriptor with its target.

    Compare sets, not numbers, to find new descriptors. Garbage of another test may close its own
    descriptors at any time.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        found.add((name, path.removesuffix(" (deleted)")))
    return found


def send_buffer_is_limited(sock: Any) -> bool:
    """Return whether a program has set the size, so that the kernel does not (SOCK_SNDBUF_LOCK)."""
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, 72) & 1)  # SO_BUF_LOCK
    except OSError:  # a kernel before 5.14
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 18)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Require that objects that are freed at the end of the block were in no reference cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_a_child(function: Callable[[], object]) -> int:
    """Call a function in a fork of this process. Return the pid after the child's success."""
    with warnings.catch_warnings():
        # Python warns about threads that earlier tests have left: the child waits for none of them.
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


@contextlib.contextmanager
def another_user(reaching: Path) -> Iterator[None]:
    """Change to a user who may search this folder and those above it."""
    for place in (reaching, *reaching.parents):
        if place.stat().st_uid == 0 and place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o011)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def open_terminal(*, columns: int) -> tuple[int, int]:
    """Open a terminal of 24 lines.

    Return the descriptors of the user's side and the program's side.
    """
    try:
        user, program = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminals here: {error}; mount devpts at /dev/pts")
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return user, program
