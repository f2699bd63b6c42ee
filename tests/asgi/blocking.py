"""A detector of calls that block an event loop's thread.

The functions of `os`, `time`, `socket` and `open` that can wait are wrapped. They wait for a disk
or a peer, or they sleep. A call is a violation if both of these are true:

- An event loop of asyncio, uvloop or trio is running in its thread.
- Code of asgifast or wsgifast makes the call. Calls of apps and servers do not count.

The detector reports a violation and makes the call. So no exception handler of the code can hide a
violation.

In this process, the fixture `blocking_calls` watches every test. In a server that a test starts,
tests.asgi.app watches (see tests.asgi.servers).

Not detected:

- The methods of file objects, which are written in C.
- A page that the kernel has dropped from the middle of the range that sendfile sends. The first
  and the last page are checked.

os.fstat and os.lseek are allowed. They query an inode that the kernel has in memory.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import asgifast

import wsgifast

__all__ = ["ALLOWED", "RWF_NOWAIT", "AllowedCalls", "watch"]

RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class AllowedCalls(NamedTuple):
    """Calls that are allowed although they may block."""

    # The first two items are the function and its module. That function makes the call directly, or
    # through asgifast and wsgifast.
    function: str
    calls: tuple[str, ...]
    reason: str


ALLOWED = (
    AllowedCalls(
        "wsgifast.files.site.__init__",
        ("os.access", "os.stat", "os.lstat", "os.open", "open"),
        "once, when the app is built",
    ),
    AllowedCalls(
        "wsgifast.files.rules.__post_init__",
        ("os.stat", "open"),
        "once, when the app is built: Python's table of types, whose module reads files first",
    ),
    AllowedCalls(
        "asgifast.messages.open_for_pathsend",
        ("os.open",),
        "the app has just looked at the file: its inode is in memory",
    ),
    AllowedCalls(
        "asgifast.responses._open",
        ("os.open",),
        "made here only if the same path was opened within the last minute, else in a thread",
    ),
    AllowedCalls(
        "wsgifast.files.site.answer_from_cache",
        ("os.open", "os.stat"),
        "the file was served before: its inode is in memory (its pages need not be)",
    ),
    AllowedCalls(
        "asgifast.dispatch.never_accesses_body",
        ("os.stat", "open"),
        "once for each dispatch function: its source",
    ),
    AllowedCalls(
        "asgifast.whole_responses._digest",
        ("os.stat", "open", "io.open"),
        "once, when the server starts: uvicorn imports its protocol on the loop",
    ),
    AllowedCalls(
        "wsgifast.sockets.sending.has_reported_size",
        ("os.pread",),
        "made for a file without blocks only: there is nothing on the disk to wait for",
    ),
)

# The number of stack frames in a report: the calls inside asgifast, and their callers.
_STACK_FRAMES = 14

# Functions that may block with any arguments.
_WAITING: tuple[tuple[Any, str, str], ...] = (
    *(
        (os, name, f"os.{name}")
        for name in ("open", "stat", "lstat", "access", "readlink", "listdir", "scandir", "fsync")
    ),
    *((os, name, f"os.{name}") for name in ("read", "readv", "pread")),
    (builtins, "open", "open"),
    (io, "open", "io.open"),
    (time, "sleep", "time.sleep"),
)
# Methods that block if the socket is in blocking mode.
_SOCKET_METHODS = ("accept", "connect", "recv", "recv_into", "send", "sendall", "sendmsg")

_STDLIB = os.path.dirname(os.__file__) + os.sep
_HALVES = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (asgifast, wsgifast))


@contextlib.contextmanager
def watch(report: Callable[[str], object], *, blamed: tuple[str, ...] = _HALVES) -> Iterator[None]:
    """Detect blocking calls in this process, as a context manager.

    :param report: called with each violation, as the name of the function and the stack.
    :param blamed: the code that is checked, as files or as folders that end with a slash.
    """
    with contextlib.ExitStack() as patches:

        def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            function = make(getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, function))

        def violation(what: str) -> None:
            report(
                f"{what} on an event loop\n{''.join(traceback.format_stack()[-_STACK_FRAMES:-2])}"
            )

        def guarded(name: str) -> Callable[[Any], Any]:
            def make(real: Any) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    if _is_forbidden(name, blamed):
                        violation(f"{name}{args!r}")
                    return real(*args, **kwargs)

                return call

            return make

        def guarded_method(name: str) -> Callable[[Any], Any]:
            def make(real: Any) -> Any:
                def call(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
                    if _is_forbidden(f"socket.{name}", blamed) and os.get_blocking(self.fileno()):
                        violation(f"{name}() of a blocking socket")
                    return real(self, *args, **kwargs)

                return call

            return make

        def guarded_preadv(real: Any) -> Any:
            def call(fd: int, buffers: Any, offset: int, flags: int = 0) -> Any:
                if not flags & RWF_NOWAIT and _is_forbidden("os.preadv", blamed):
                    violation(f"os.preadv({fd}, ..., {offset}, {flags})")
                return real(fd, buffers, offset, flags)

            return call

        def guarded_sendfile(real: Any) -> Any:
            def call(out: int, fd: int, offset: int, count: int) -> Any:
                if not _is_forbidden("os.sendfile", blamed):
                    return real(out, fd, offset, count)
                if os.get_blocking(out):
                    violation("os.sendfile to a blocking socket")
                cold = [place for place in (offset, offset + count - 1) if _is_cold(fd, place)]
                sent = real(out, fd, offset, count)
                if any(place < offset + sent for place in cold):
                    violation(
                        f"os.sendfile of {sent} bytes from {offset} on, not in memory: {cold},"
                    )
                return sent

            return call

        for owner, name, full_name in _WAITING:
            replace(owner, name, guarded(full_name))
        for name in _SOCKET_METHODS:
            replace(socket.socket, name, guarded_method(name))
        if hasattr(os, "preadv"):
            replace(os, "preadv", guarded_preadv)
        if hasattr(os, "sendfile"):
            replace(os, "sendfile", guarded_sendfile)
        yield


def _is_forbidden(name: str, blamed: tuple[str, ...]) -> bool:
    """Return whether the caller's caller must not make the call `name` now."""
    if not _on_event_loop():
        return False
    frame: FrameType | None = sys._getframe(2)
    # Pathlib, os.path and similar modules call for other code
    while frame is not None and _is_stdlib(frame):
        frame = frame.f_back
    if frame is None or not _is_blamed(frame, blamed):
        return False
    while frame is not None and (_is_blamed(frame, blamed) or _is_stdlib(frame)):
        function = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if any(function == allowed.function and name in allowed.calls for allowed in ALLOWED):
            return False
        frame = frame.f_back
    return True


def _on_event_loop() -> bool:
    trio = sys.modules.get("trio")
    lowlevel = getattr(trio, "lowlevel", None)  # None also while trio is being imported
    if lowlevel is not None and lowlevel.in_trio_run():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_blamed(frame: FrameType, blamed: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(blamed)


def _is_stdlib(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith("<frozen") or (name.startswith(_STDLIB) and "site-packages" not in name)


def _is_cold(fd: int, place: int) -> bool:
    """Return whether reading a byte of a file may wait for the disk.

    Return True if the kernel cannot say.
    """
    if not RWF_NOWAIT:
        return True
    try:
        os.preadv(fd, [bytearray(1)], place, RWF_NOWAIT)
    except OSError:
        return True
    return False
