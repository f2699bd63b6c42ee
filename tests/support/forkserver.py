"""A process that has imported the servers and forks one that runs when a test asks for it.

Python and the imports take most of a server's start; a fork of a process that has made them does
without. What the child then runs is the module's or the script's own code, on its own arguments,
environment, folder and output, as if started by its command line.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

# Nothing of an app under test; nor what asks at its import whether gevent has been there before.
_PRELOADED = """
    anyio._backends._asyncio asgifast.middleware asgifast.responses asgifast.static
    asgifast.uvicorn asgifast.workers cheroot.wsgi ctypes django.contrib.staticfiles.finders
    django.core.asgi django.core.management django.core.wsgi django.db.models
    django.views.static encodings.idna falcon flask granian.cli gunicorn.app.wsgiapp
    gunicorn.workers.gasgi gunicorn.workers.gthread gunicorn.workers.sync gunicorn_h1c
    hypercorn.asyncio multiprocessing.spawn servestatic starlette.applications
    starlette.middleware.base starlette.middleware.gzip starlette.staticfiles unittest.mock
    uvicorn.lifespan.on uvicorn.loops.uvloop uvicorn.main uvicorn.protocols.http.h11_impl
    uvicorn.protocols.http.httptools_impl uvicorn.protocols.websockets.auto waitress
    werkzeug.serving werkzeug.test whitenoise wsgifast.commands.cli wsgifast.devservers
    wsgifast.commands.doctor.command wsgifast.middleware wsgifast.commands.run.command
    wsgifast.static wsgifast.workers.worker wsgiref.simple_server zttp
"""
# One message: a command line and an environment.
_MESSAGE_BYTES = 2**20
# How long gunicorn's arbiter sleeps between two looks at its workers, in place of 0.1 s; and those
# on asyncio between two at whether they are to end, in place of 0.1 s and 1 s.
_LOOK_S, _ASYNCIO_LOOK_S = 0.01, 0.02
_ON_ASYNCIO = ("uvicorn.server", "gunicorn.workers.gasgi")


class ForkedProcess:
    """A child of the fork server, to be used as a subprocess.Popen is."""

    def __init__(self, args: Sequence[str], told: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._told = told
        self.pid = int(told.recv(32))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(32))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None


def start(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[Any]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run a command, its output in a file: in a fork if it is for this Python, else anew."""
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
    """Run a command until it ends, as subprocess.run does with its output captured."""
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
    """Run a command, its output in a file."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env
    )


def _fork(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[Any], errors: IO[Any]
) -> ForkedProcess:
    global _server
    if _server is None:
        _server = _start_server()
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        request = json.dumps({"command": command, "cwd": str(cwd), "env": dict(env)})
        descriptors = [far.fileno(), output.fileno(), errors.fileno()]
        socket.send_fds(_server[1], [request.encode()], descriptors)
    return ForkedProcess(command, near)


def close() -> None:
    """End this process's fork server."""
    global _server
    if _server is not None:
        process, control = _server
        control.close()
        process.wait()
        _server = None


def _can_run(command: Sequence[str], env: Mapping[str, str]) -> bool:
    return (
        sys.platform == "linux"
        and (
            command[:2] == [sys.executable, "-m"]
            or (command[0] == sys.executable and command[1].endswith(".py"))
            or command[0] == _script("gunicorn")
        )
        # gevent replaces what has been imported before it.
        and not {"gevent", "pywsgi"} & set(command)
        and _of_the_interpreter(env) == _of_the_interpreter(os.environ)
    )


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _of_the_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads when it starts."""
    read_later = ("PYTHONASYNCIODEBUG", "PYTHONUNBUFFERED")
    return {k: v for k, v in env.items() if k.startswith("PYTHON") and k not in read_later}


def _start_server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkserver", str(far.fileno())],
            pass_fds=[far.fileno()],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            cwd=Path(__file__).resolve().parents[2],
        )
    return process, near


# In the fork server.


class _Children:
    """Its children, each with the socket on which its end is told."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def add(self, pid: int, told: socket.socket) -> None:
        told.send(b"%d" % pid)
        self._sockets[pid] = told

    def reap(self) -> None:
        while self._sockets:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._sockets.pop(pid) as told, contextlib.suppress(BrokenPipeError):
                told.send(b"%d" % os.waitstatus_to_exitcode(status))

    def forget(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()

    def end(self) -> None:
        for pid in self._sockets:
            os.kill(pid, signal.SIGTERM)


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and return it in the child; return None in the parent at the end."""
    children = _Children()
    # A signal that comes just before a call that waits does not end it; a byte that is there does.
    ended, tells = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end what they have started
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            children.reap()
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 3)
        if not message:
            children.end()
            return None
        told, output, errors = descriptors
        with _without(signal.SIGCHLD):
            pid = os.fork()
            if pid:
                children.add(pid, socket.socket(fileno=told))
                os.close(output)
                os.close(errors)
                continue
            signal.set_wakeup_fd(-1)
            children.forget()
            control.close()
            for each in ended, tells, told:
                os.close(each)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            os.close(output)
            os.close(errors)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        request: dict[str, Any] = json.loads(message)
        return request


@contextlib.contextmanager
def _without(number: signal.Signals) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _run_and_exit(command: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run a command; end without taking the interpreter apart, which copies all of its memory."""
    try:
        _run(command, cwd, env)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # it is to be printed
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
    tempfile.tempdir = None  # TMPDIR is another
    if "gunicorn.config" in sys.modules:  # it has asked for the folder when it was imported
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


def _look_often() -> None:
    """Have servers see at once what has ended or is to; else an end takes up to a second."""
    if "gunicorn.arbiter" in sys.modules:
        arbiter: Any = sys.modules["gunicorn.arbiter"]
        arbiter.time = SimpleNamespace(**vars(time))
        arbiter.time.sleep = lambda seconds: time.sleep(min(seconds, _LOOK_S))
    for name in _ON_ASYNCIO:
        if name in sys.modules:
            server: Any = sys.modules[name]
            server.asyncio = SimpleNamespace(**vars(asyncio))
            server.asyncio.sleep = lambda seconds: asyncio.sleep(min(seconds, _ASYNCIO_LOOK_S))


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.disable()  # modules are no garbage
    for name in _PRELOADED.split():
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    _look_often()
    gc.freeze()
    gc.enable()
    request = _serve(control)
    if request is not None:
        _run_and_exit(**request)


if __name__ == "__main__":
    main()
