"""The processes of a benchmark: real servers that end with it.

Each process leads a process group. The benchmark ends the group by its id, with everything that the
process has started. If the benchmark is killed, a guard (another process) ends the groups.
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
from ..loading.servers import MODULE

HOST = "127.0.0.1"
Address = tuple[str, int]
# Importing a large app takes seconds on a busy machine. A server that takes longer hangs.
START_S = 30.0
# gunicorn's workers may finish their requests for this time. Then the benchmark kills them.
STOP_S = 10.0
# Systems give higher ports to clients (Linux from 32768 on, by IANA from 49152 on).
UNASSIGNED_PORTS = range(10_000, 32_000)
# The last lines of a log have the reason of a failure.
LOG_TAIL_LINES = 25


# The program of the guard. A line "+1234" says that a process group has begun, and "-1234" that it
# has ended. The input ends with the benchmark. Then the guard kills the groups that still run.
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
    """The command of a server. A run starts equal servers once.

    :ivar argv: may contain "{host}" and "{port}", the address of the server, and "{folder}", the
        folder of the run's files. A first item "python" is this interpreter. With -m after it, the
        search path does not have the working directory (see `MODULE` of `loading.servers`).
    :ivar env: added to its environment. The values may contain these placeholders too.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    tls: bool = False

    def placed(self, places: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment with values in place of the placeholders."""

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
        """Return the last lines of stdout and stderr, indented for a message."""
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
    """Start a server, wait until it accepts connections, and stop it at the end of the block.

    :param name: in messages. By default its command.
    :param folder: the value of "{folder}".
    :param port: 0 for a free port.
    :param start_s: the time in which the server must listen.
    :raises ServerFailed: if the port is taken, or the server ends or does not listen in time.
    """
    address = (host, port or free_port(host))
    places = {"{host}": host, "{port}": str(address[1]), "{folder}": str(folder)}
    argv, env = server.placed(places)
    name = name or " ".join(argv)
    if is_listening(address):
        raise ServerFailed(
            f"port {address[1]} of {host} is taken by another program, so {name} cannot "
            "use it: name another port, or none for a free port"
        )
    if argv[:2] == ["python", "-m"]:
        argv[1:2] = MODULE
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

        def is_ready() -> bool:
            running.check()
            return is_listening(address)

        if not wait_until(is_ready, start_s):
            raise ServerFailed(
                f"{name} does not listen after {start_s:.0f} s:\n{running.log_tail()}"
            )
        running.check()  # gunicorn listens before it imports the app
        yield running


@contextlib.contextmanager
def started(
    command: Sequence[str], *, stop_s: float = 0.0, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Start a process that ends with the block, with everything that it has started.

    The process leads a process group, so Ctrl-C reaches only the benchmark. The guard ends the
    process if the benchmark is killed.

    :param stop_s: the time that it has to end after SIGTERM.
    :param options: as for `subprocess.Popen`.
    """
    guard = _guard()
    # Python drops exceptions of functions that it calls at a fork (os.register_at_fork). So signals
    # that would end this process are blocked during the fork.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def announce() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # The child itself announces its group, so the guard knows every group.
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
        with contextlib.suppress(BrokenPipeError, ValueError):  # Python ends, and has closed it
            os.write(guard.fileno(), b"-%d\n" % process.pid)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # the process ended with unread input
                    stream.close()


@cache
def _guard() -> IO[bytes]:
    """Start the guard, and return its input, which ends with this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None  # a pipe, see above
    atexit.register(process.communicate)
    return process.stdin


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Make a folder, and remove it at the end of the block, also after SIGTERM and SIGHUP."""
    with orderly_end(), tempfile.TemporaryDirectory(prefix=f"wsgifast-{name}-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """End this process on SIGTERM and SIGHUP by an exception, which runs every `finally`.

    Existing handlers of these signals stay. In another thread than the main one, nothing changes.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    ours = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)  # timeout(1) sends the signal twice
        sys.exit(128 + number)  # shells report the end by a signal with this status

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def free_port(host: str = HOST) -> int:
    """Return a free TCP port that the system gives to no client.

    :raises OSError: if this machine does not have the address.
    """
    while True:
        # A seeded generator would return the same port in several processes.
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
    """Wait for a condition, and return whether it became true within this time."""
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
