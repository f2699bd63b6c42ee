"""Real servers, each a process group of its own, ended by its own id with everything it started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .children import start
from .folders import temporary_folder

__all__ = ["RunningServer", "ServerFailed", "free_port", "running"]

# Importing a large app takes seconds on a busy machine; a server that still does not listen after
# this time hangs.
START_S = 30.0
# gunicorn's workers finish their requests first; what has not ended by then is killed.
STOP_S = 10.0
# Below those that systems give to clients (Linux from 32768 on, IANA's from 49152 on).
_UNASSIGNED_PORTS = range(10_000, 32_000)
# How much of a log an error message repeats: the end is where the reason stands.
LOG_TAIL_LINES = 25


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself; the message carries the end of its log."""


@dataclass
class RunningServer:
    """A server that listens."""

    name: str
    address: tuple[str, int]
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def log(self) -> str:
        """Everything that the server has written to stdout and stderr so far."""
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last lines of its log, indented for an error message."""
        lines = self.log().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"

    def check(self, within: float = 0.0) -> None:
        """Make sure that the server still runs.

        :param within: seconds to give to a server that may be about to end.
        :raises ServerFailed: with its log, if it has ended.
        """
        try:
            status = self.process.wait(within)
        except subprocess.TimeoutExpired:
            return
        else:
            raise ServerFailed(f"{self.name} ended with status {status}:\n{self.log_tail()}")


@contextlib.contextmanager
def running(
    command: Sequence[str],
    address: tuple[str, int],
    *,
    name: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[RunningServer]:
    """Start a server, wait until it accepts connections, stop it at the end of the block.

    It is stopped too if this process gets SIGTERM in the block, or is killed.

    :param command: a first item of "python" means this interpreter.
    :param address: where the command has been told to listen.
    :param name: what messages call it; by default its command.
    :param env: added to this process's environment.
    :raises ServerFailed: if the port is taken, or the server ends or does not listen in time.
    """
    name = name or " ".join(command)
    if _is_listening(address):
        raise ServerFailed(
            f"port {address[1]} of {address[0]} is taken by another program, so {name} cannot "
            "have it: name another port, or none for a free one"
        )
    argv = [sys.executable if command[0] == "python" else command[0], *command[1:]]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with temporary_folder("load") as folder:
        log_path = Path(folder, "log")
        with log_path.open("wb") as log:
            process = start(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env=environment,
                start_new_session=True,  # so that its workers can be ended with it
            )
        server = RunningServer(name, address, process, log_path)
        try:
            _wait_until_listening(server)
            yield server
        finally:
            _stop(process)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing has at this moment, and that no client will be given."""
    while True:
        # Not the seeded generator: processes side by side would all draw the same.
        port = _UNASSIGNED_PORTS.start + secrets.randbelow(len(_UNASSIGNED_PORTS))
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _wait_until_listening(server: RunningServer) -> None:
    deadline = time.monotonic() + START_S
    while not _is_listening(server.address):
        server.check()
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{server.name} does not listen after {START_S:.0f} s:\n{server.log_tail()}"
            )
        time.sleep(0.02)
    server.check()  # gunicorn listens first and imports the app then


def _is_listening(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(address) == 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, and whatever is left of its process group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
