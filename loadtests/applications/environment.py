"""Install an application, prepare its folder, and start its servers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from wsgifast.commands.bench.processes import RunningServer, Server, free_port, running_server
from wsgifast.commands.bench.serving import FAST_WORKER, OUR_PROTOCOL
from wsgifast.commands.run import ARGUMENTS

from .catalogue import MODULE, Application

ROOT = Path(__file__).resolve().parents[2]
RAW, AGAIN = "raw", "raw again"
# Large applications have hundreds of packages, and pip builds some of them.
_INSTALL_S = 1800.0
# An application may create a hundred tables of a database.
_PREPARE_S = 600.0
_START_S = 120.0


class NotRunning(Exception):
    """An application cannot be installed, prepared or started."""


class Environment:
    """The virtual environment of an application, and its folder.

    :ivar data: the working directory of the servers. It is restored before each start.
    """

    def __init__(self, application: Application, folder: Path) -> None:
        self._application = application
        self._folder = folder / application.name
        self._venv = self._folder / "venv"
        # The folder after the preparation, which is copied to `data` before each start.
        self._prepared = self._folder / "pristine"
        self.data = self._folder / "data"
        self._port = free_port()

    @property
    def _python(self) -> str:
        return str(self._venv / "bin" / "python")

    def install(self) -> None:
        """Install the application and this checkout, unless they are installed.

        :raises NotRunning: if pip fails. The message has pip's last lines.
        """
        done = self._venv / "installed"
        packages = "\n".join(self._application.packages)
        if done.exists() and done.read_text() == packages:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self._venv)], _PREPARE_S)
        extra = "asgi" if self._application.asgi else "fast"
        command = [self._python, "-m", "pip", "install", "--quiet", "--prefer-binary"]
        checkout = f"{ROOT}[{extra},compress]"
        _run([*command, *self._application.packages, "--editable", checkout], _INSTALL_S)
        done.write_text(packages)

    def prepare(self) -> None:
        """Make the folder of the application, unless it exists.

        :raises NotRunning: if a program of `prepare` fails.
        """
        text = self._application.source + "\n".join(self._application.prepare)
        done = self._folder / "prepared"
        if done.exists() and done.read_text() == text and self._prepared.is_dir():
            return
        for folder in (self._prepared, self.data):
            shutil.rmtree(folder, ignore_errors=True)
        self.data.mkdir(parents=True)
        (self.data / f"{MODULE}.py").write_text(self._application.source)
        for program in self._application.prepare:
            _run([self._python, "-c", program], _PREPARE_S, self.data, self._variables())
        shutil.copytree(self.data, self._prepared, symlinks=True)
        done.write_text(text)

    def reset(self) -> None:
        """Restore `data` to its state after the preparation."""
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self._prepared, self.data, symlinks=True)

    def server(self, module: str, *arguments: str, **env: str) -> Server:
        """Return a server that is a module of the virtual environment.

        :param arguments: the command-line arguments, with the placeholders of :class:`Server`.
        :param env: environment variables to add to those of the application.
        """
        command = ("env", "-C", str(self.data), self._python, "-m", module, *arguments)
        return Server(command, tuple({**self._variables(), **env}.items()))

    def names(self) -> dict[str, str]:
        """Return the values of {name} placeholders in paths.

        {data} is the working directory. A program of `prepare` may write other values to the file
        "names".
        """
        found = {"data": str(self.data)}
        with contextlib.suppress(FileNotFoundError):
            for line in (self._prepared / "names").read_text().splitlines():
                name, _, value = line.partition(" ")
                found[name] = value
        return found

    def _variables(self) -> dict[str, str]:
        variables = {name: value.replace("{data}", str(self.data))
                     for name, value in self._application.env.items()}  # fmt: skip
        # Some pages contain the members of a set. With a fixed hash seed, their order is constant.
        common = {"HOME": str(self.data), "PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "0"}
        return {**common, **variables}

    def contenders(self) -> Mapping[str, Server]:
        """Return the servers: the usual server twice, and the servers with wsgifast."""
        target, bind = f"{MODULE}:app", "--bind={host}:{port}"
        # Each server has one worker, because some applications store data in the memory of the
        # worker.
        run = self.server("wsgifast", "run", bind, "--workers=1", target)
        if self._application.asgi:
            uvicorn = ("uvicorn", "--host={host}", "--port={port}",
                       "--timeout-graceful-shutdown=3")  # fmt: skip
            raw = self.server(*uvicorn, target)
            wrapped = ("--factory", "wsgifast.commands.run:wrapped_by_environment")
            arguments = {ARGUMENTS: json.dumps({"target": target})}
            return {
                RAW: raw,
                AGAIN: raw,
                "ASGIFast": self.server(*uvicorn, *wrapped, **arguments),
                "protocol": self.server(*uvicorn, f"--http={OUR_PROTOCOL}", target),
                "wsgifast run": run,
            }
        gunicorn = ("gunicorn", bind, "--threads=4", "--timeout=120", "--graceful-timeout=3")
        gthread = (*gunicorn, "--worker-class=gthread")
        raw = self.server(*gthread, target)
        wrapped_app = f"wsgifast.commands.run:wrapped({json.dumps(target)})"
        return {
            RAW: raw,
            AGAIN: raw,
            "WSGIFast": self.server(*gthread, wrapped_app),
            "FastWorker": self.server(*gunicorn, f"--worker-class={FAST_WORKER}", target),
            "wsgifast run": run,
        }

    def serving(self, name: str) -> AbstractContextManager[RunningServer]:
        """Restore the folder, and start the server of a contender.

        :raises ServerFailed: if the server does not start.
        """
        self.reset()
        server = self.contenders()[name]
        return running_server(server, name, port=self._port, start_s=_START_S)


def _run(
    command: list[str],
    seconds: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "PIP_NO_INPUT": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise NotRunning(f"{Path(command[0]).name} did not end within {seconds:.0f} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        name = Path(command[0]).name
        text = " / ".join(line.strip() for line in lines[-3:])
        raise NotRunning(text or f"{name} failed with status {done.returncode} and no output")
