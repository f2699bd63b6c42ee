"""Run servers and commands of tests in forks of a process that has imported their modules.

The start of Python and the imports take most of a server's start. A fork of multiprocessing's fork
server, which has done both (tests/support/preloaded.py), saves them. The child then runs the own
code of the module or script, with its own arguments, environment, folder and output, as if started
by its command line.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preloaded", __name__])


class _Passed:
    """A file. A child gets its descriptor."""

    def __init__(self, file: IO[Any]) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._file.fileno()),)


def _received(passed: Any) -> int:
    fd: int = passed.detach()
    return fd


class ForkedProcess:
    """A child of the fork server, with the interface of subprocess.Popen."""

    def __init__(self, args: Sequence[str], *how: object) -> None:
        self.args = args
        self._process = _context.Process(target=_run_and_exit, args=(args, *how))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[Any]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run a command with its output in a file: in a fork if it is for this Python, else anew."""
    if not _can_run(command, env):
        return start_anew(command, cwd=cwd, env=env, output=output)
    return _fork(command, cwd, env, output, output)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] = os.environ,
    timeout: float = 200,
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends, like subprocess.run with captured output."""
    if not _can_run(command, env):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env
        )
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = _fork(command, cwd, env, output, errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def start_anew(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[Any]
) -> subprocess.Popen[bytes]:
    """Run a command with its output in a file."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env
    )


def _fork(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[Any], errors: IO[Any]
) -> ForkedProcess:
    here = os.getcwd()
    os.chdir(_ROOT)  # it imports from there
    forkserver.ensure_running()
    os.chdir(here)
    return ForkedProcess(command, str(cwd), dict(env), _Passed(output), _Passed(errors))


def close() -> None:
    """End all running children. Then the fork server ends, too."""
    for process in multiprocessing.active_children():
        process.terminate()
        process.join(1.0)
        process.kill()


def _can_run(command: Sequence[str], env: Mapping[str, str]) -> bool:
    return (
        sys.platform == "linux"
        and (
            command[:2] == [sys.executable, "-m"]
            or (command[0] == sys.executable and command[1].endswith(".py"))
            or command[0] == _script("gunicorn")
        )
        # gevent replaces modules that were imported before it.
        and not {"gevent", "pywsgi"} & set(command)
        and _of_the_interpreter(env) == _of_the_interpreter(os.environ)
    )


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _of_the_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads when it starts."""
    read_later = ("PYTHONASYNCIODEBUG", "PYTHONUNBUFFERED")
    return {k: v for k, v in env.items() if k.startswith("PYTHON") and k not in read_later}


# Functions that run in the child


def _run_and_exit(
    command: list[str], cwd: str, env: dict[str, str], output: int, errors: int
) -> None:
    """Run a command. End without the interpreter's clean-up, which would copy its memory."""
    for fd, stream in ((output, sys.stdout), (errors, sys.stderr)):
        os.dup2(fd, stream.fileno())
        os.close(fd)
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    # The null device. The workers of servers inherit it by its number.
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    multiprocessing.set_start_method(None, force=True)
    try:
        _run(command, cwd, env)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # it must be printed
        status = error.code or 0
    else:
        status = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    os._exit(status)


def _run(command: list[str], cwd: str, env: dict[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # TMPDIR differs
    if "gunicorn.config" in sys.modules:  # it has read the folder at its import
        importlib.import_module("gunicorn.config").Chdir.default = cwd
    if command[:2] == [sys.executable, "-m"]:
        _, _, module, *arguments = command
        sys.argv = [module, *arguments]
        sys.path[0] = cwd
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = command[1:] if command[0] == sys.executable else command
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
