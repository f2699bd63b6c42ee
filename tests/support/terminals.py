"""Terminals for commands that show something else on one."""

from __future__ import annotations

import fcntl
import pty
import struct
import termios

import pytest

__all__ = ["open_terminal"]


def open_terminal(*, columns: int) -> tuple[int, int]:
    """Open a terminal of 24 lines; returns the descriptor of its user's side, and a program's."""
    try:
        user, program = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminals here: {error}; mount devpts at /dev/pts")
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return user, program
