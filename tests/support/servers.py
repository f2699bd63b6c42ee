"""Live servers. Each is a separate process, which is ended by its id after the test."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from wsgifast.commands.bench import processes

from . import forkserver
from .http import Address, Response, get

ROOT = Path(__file__).resolve().parents[2]
# The time that a correct server may need on a machine that stalls. gunicorn loses a TERM that
# arrives while it forks a worker. It kills that worker graceful_timeout (30 s) later.
START_S = STOP_S = PATIENCE_S = 60.0
# A server opens its port some time after the port has been chosen. Until then no other process that
# runs tests on this machine may choose the same port.
_PORTS = processes.UNASSIGNED_PORTS
_BLOCK = 250


@dataclass
class LiveServer:
    """A running server process."""

    address: Address
    process: subprocess.Popen[bytes] | forkserver.ForkedProcess
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        assert isinstance(self.address, tuple), "a Unix socket has no URL"
        return f"http://{self.address[0]}:{self.address[1]}"

    def log(self) -> str:
        """Everything that the process has written to stdout and stderr so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Wait until the process has written a text this number of times."""
        wait_for(
            lambda: self.log().count(text) >= times,
            lambda: f"{text!r} is logged {times} times\n{self.log()}",
        )

    def open_files(self, pattern: str = "*") -> list[str]:
        """The targets of descriptors of the process and its children that match a pattern."""
        main = psutil.Process(self.pid)
        files = []
        for process in (main, *main.children(recursive=True)):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    files.append(os.readlink(link))
        return fnmatch.filter(files, pattern)

    def get(self, target: str = "/", **options: Any) -> Response:
        """Send one request on a new connection. See tests.support.http.get."""
        return get(self.address, target, **options)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """End the process. Return its exit status (negative: the signal that ended it)."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"the server did not stop {STOP_S} s after signal {signal_number}:\n{self.log()}"
            ) from None


@contextlib.contextmanager
def live_server(
    argv: Sequence[str],
    address: Address | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    forked: bool = True,
    fails: bool = False,
) -> Iterator[LiveServer]:
    """Start a server and wait until it accepts connections. End it at the end of the block.

    :param argv: the command. A first item "python" means this interpreter.
    :param address: the address where the command listens. See :func:`free_port`. None for a free
        port of 127.0.0.1, which replaces {port} in the command.
    :param forked: let the fork server run the command if it can. Otherwise it is started anew.
    :param fails: the server ends without a signal, perhaps before it listens. Do not wait for it.
    """
    if address is None:
        address = ("127.0.0.1", free_port())
        argv = [word.replace("{port}", str(address[1])) for word in argv]
    command = [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]
    with tempfile.TemporaryDirectory(prefix="wsgifast-") as folder:
        # Files of a killed server are deleted with this folder.
        inherited = {**os.environ}
        inherited.pop("DJANGO_SETTINGS_MODULE", None)  # of tests in this process
        environment = {
            **inherited, "PYTHONUNBUFFERED": "1", "TMPDIR": folder, **(env or {})
        }  # fmt: skip
        log_path = Path(folder, "log")
        with log_path.open("wb") as log:
            start = forkserver.start if forked else forkserver.start_anew
            process = start(command, cwd=cwd, env=environment, output=log)
        server = LiveServer(address, process, log_path)
        try:
            if not fails:
                _wait_until_listening(server)
            yield server
        finally:
            server.stop()


def wait_for(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    timeout: float = PATIENCE_S,
    interval: float = 0.01,
) -> None:
    """Wait until a condition holds. Fail with the text `what`.

    :param what: the condition in words, or a function that returns a text, such as the log.
    :param timeout: seconds. Only a test that fails takes them, so a short time proves no more.
    """
    if not processes.wait_until(condition, timeout, interval_s=interval):
        waited_for = what if isinstance(what, str) else what()
        raise AssertionError(f"waited {timeout} s in vain until {waited_for}")


def _wait_until_listening(server: LiveServer) -> None:
    def listens() -> bool:
        if processes.is_listening(server.address):
            return True
        status = server.process.poll()
        assert status is None, f"the server ended with status {status}:\n{server.log()}"
        return False

    what = f"something listens on {server.address}"
    wait_for(listens, lambda: f"{what}:\n{server.log()}", START_S, interval=0.02)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is unused, and that no other call returns for a while."""
    claimed = _claimed()
    if claimed is None:
        return processes.free_port()
    for port in itertools.islice(claimed, _BLOCK):
        with socket.socket() as sock:
            try:
                sock.bind((processes.HOST, port))
            except OSError:
                continue
        return port
    raise AssertionError("no port of this process's own is free")


@functools.cache
def _claimed() -> Iterator[int] | None:
    """Yield the ports of this process repeatedly, or None if all are in use."""
    if sys.platform != "linux":
        return None
    for start in range(_PORTS.start, _PORTS.stop, _BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # An abstract address: only one process can have it, and it ends with that process.
            claim.bind(f"\0wsgifast-test-ports-{start}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return itertools.cycle(range(start, start + _BLOCK))
    return None


_claims: list[socket.socket] = []
