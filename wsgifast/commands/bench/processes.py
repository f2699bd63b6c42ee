"""The processes of a benchmark: real servers, which do not outlive it however it ends.

Each is a process group of its own and is ended by its own id, with everything it has started. If
the benchmark is killed and has no time to clean up, another process ends them, the guard.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ...errors import WSGIFastError
from ..loading.servers import START

HOST = "127.0.0.1"
Address = tuple[str, int]
# Importing a large app takes seconds on a busy machine. A server that does not listen after
# this time hangs.
START_S = 30.0
# gunicorn's workers finish their requests first. After this time they are killed.
STOP_S = 10.0
# Below those that systems give to clients (Linux from 32768 on, IANA's from 49152 on).
UNASSIGNED_PORTS = range(10_000, 32_000)
# How much of a log an error message repeats: the end is where the reason stands.
LOG_TAIL_LINES = 25


# The guard. Its input is a line for each process group: "+1234" that it has begun, "-1234" that it
# has ended. At the end of the input, which is that of the benchmark, it kills the others.
_GUARD = """
import contextlib, os, signal, sys
groups = set()
for line in sys.stdin.buffer:
    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
"""


class ServerFailed(WSGIFastError, RuntimeError):
    """A server did not start, or ended. The message contains the end of its log."""


@dataclass(frozen=True)
class Server:
    """A kind of server. Equal ones are started once in a run.

    :ivar argv: its command, in which "{host}" and "{port}" stand for where it is to listen and
        "{folder}" for the folder of the run's files. A first item of "python" is this interpreter.
        -m behind it leaves the working directory out of the search path, see
        :data:`wsgifast.commands.loading.servers.START`.
    :ivar env: added to its environment. Its values have the same placeholders.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    tls: bool = False

    def placed(self, places: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command and the environment with the placeholders filled in."""

        def filled(text: str) -> str:
            for mark, value in places.items():
                text = text.replace(mark, value)
            return text

        return [filled(item) for item in self.argv], {n: filled(v) for n, v in self.env}


@dataclass
class RunningServer:
    """A server that listens."""

    name: str
    address: Address
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_tail(self) -> str:
        """The last lines that it has written to stdout and stderr, indented for a message."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"

    def check(self) -> None:
        """:raises ServerFailed: with its log, if the server has ended."""
        if (status := self.process.poll()) is not None:
            raise ServerFailed(f"{self.name} ended with status {status}:\n{self.log_tail()}")


@contextlib.contextmanager
def running_server(
    server: Server,
    name: str = "",
    *,
    folder: Path = Path(),
    host: str = HOST,
    port: int = 0,
    start_s: float = START_S,
) -> Iterator[RunningServer]:
    """Start a server, wait until it accepts connections, stop it at the end of the block.

    :param name: in messages. By default its command.
    :param folder: the value of "{folder}".
    :param port: 0 for a free one.
    :param start_s: how long it may take until it listens.
    :raises ServerFailed: if the port is taken, or the server ends or does not listen in time.
    """
    address = (host, port or free_port(host))
    places = {"{host}": host, "{port}": str(address[1]), "{folder}": str(folder)}
    argv, env = server.placed(places)
    name = name or " ".join(argv)
    if is_listening(address):
        raise ServerFailed(
            f"port {address[1]} of {host} is taken by another program, so {name} cannot "
            "have it: name another port, or none for a free one"
        )
    if argv[:2] == ["python", "-m"]:
        argv[1:2] = ["-c", START]
    if argv[0] == "python":
        argv[0] = sys.executable
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
    with temporary_folder("load") as own, contextlib.ExitStack() as stack:
        log_path = own / "log"
        with log_path.open("wb") as log:
            child = started(
                argv, stop_s=STOP_S, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            running = RunningServer(name, address, stack.enter_context(child), log_path)

        def is_there() -> bool:
            running.check()
            return is_listening(address)

        if not wait_until(is_there, start_s):
            raise ServerFailed(
                f"{name} does not listen after {start_s:.0f} s:\n{running.log_tail()}"
            )
        running.check()  # gunicorn listens first and imports the app then
        yield running


@contextlib.contextmanager
def started(
    command: Sequence[str], *, stop_s: float = 0.0, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block, with everything that it has started.

    It is a process group of its own: Ctrl-C is for this process to handle. It ends too if this
    process is killed.

    :param stop_s: how long it may take to end after SIGTERM.
    :param options: subprocess.Popen's.
    """
    guard = _guard()
    # Python drops errors of the functions that it calls at a fork (os.register_at_fork). So a
    # signal that is to end this process waits until the fork is over.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def announce() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # In the child, so that nothing can happen in between.
        os.write(guard.fileno(), b"+%d\n" % os.getpid())

    try:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=announce, **options)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process
    finally:
        if stop_s and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(stop_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(BrokenPipeError, ValueError):  # closed: Python itself is ending
            os.write(guard.fileno(), b"-%d\n" % process.pid)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it ended with something unread
                    stream.close()


@cache
def _guard() -> IO[bytes]:
    """The guard's input, which ends with this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None  # a pipe, see above
    atexit.register(process.communicate)
    return process.stdin


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A new folder, removed at the end of the block: by Ctrl-C, SIGTERM and SIGHUP too."""
    with orderly_end(), tempfile.TemporaryDirectory(prefix=f"wsgifast-{name}-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM, and the SIGHUP of a terminal that closes, end this process as Ctrl-C does.

    That is through every `finally` on the way. It leaves handlers of the program alone. It
    has an effect in the main thread only, which is the one that runs handlers.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    ours = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)  # timeout(1) sends it twice: clean up in peace
        sys.exit(128 + number)  # as shells report the end by a signal

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def free_port(host: str = HOST) -> int:
    """A TCP port that nothing has at this moment, and that no client will be given.

    :raises OSError: if this machine does not have the address.
    """
    while True:
        # Not the seeded generator: processes side by side would all draw the same.
        port = UNASSIGNED_PORTS.start + secrets.randbelow(len(UNASSIGNED_PORTS))
        with socket.socket() as sock:
            try:
                sock.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
        return port


def wait_until(
    condition: Callable[[], object], seconds: float, *, interval_s: float = 0.02
) -> bool:
    """Wait for a condition. Return False if it does not hold after this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True


def is_listening(address: Address | str) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(address) == 0
