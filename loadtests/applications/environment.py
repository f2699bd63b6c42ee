"""An application's environment, folder and servers."""

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
# Large applications have hundreds of packages, and build some.
_INSTALL_S = 1800.0
# Migrations of a hundred tables.
_PREPARE_S = 600.0
_START_S = 120.0


class NotRunning(Exception):
    """An application cannot be installed, prepared or started, for this reason."""


class Environment:
    """A virtual environment, and a folder that is the same for each server."""

    def __init__(self, application: Application, folder: Path) -> None:
        self._application = application
        self._folder = folder / application.name
        self._venv = self._folder / "venv"
        # What a server finds at its start, and what it works in.
        self._pristine, self.data = self._folder / "pristine", self._folder / "data"
        self._port = free_port()

    @property
    def _python(self) -> str:
        return str(self._venv / "bin" / "python")

    def install(self) -> None:
        """Install the application and this checkout, if they are not yet.

        :raises NotRunning: with the end of what pip says.
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
        """Make the folder as it is at each start.

        :raises NotRunning: if one of its programs fails.
        """
        text = self._application.source + "\n".join(self._application.prepare)
        done = self._folder / "prepared"
        if done.exists() and done.read_text() == text and self._pristine.is_dir():
            return
        for folder in (self._pristine, self.data):
            shutil.rmtree(folder, ignore_errors=True)
        self.data.mkdir(parents=True)
        (self.data / f"{MODULE}.py").write_text(self._application.source)
        for program in self._application.prepare:
            _run([self._python, "-c", program], _PREPARE_S, self.data, self._variables())
        shutil.copytree(self.data, self._pristine, symlinks=True)
        done.write_text(text)

    def reset(self) -> None:
        """Make the servers' folder as prepared."""
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self._pristine, self.data, symlinks=True)

    def server(self, module: str, *arguments: str, **env: str) -> Server:
        """A server for the benchmarks, run as a module of the environment.

        :param arguments: its own, with the placeholders of :class:`Server`.
        :param env: added to the application's variables.
        """
        command = ("env", "-C", str(self.data), self._python, "-m", module, *arguments)
        return Server(command, tuple({**self._variables(), **env}.items()))

    def names(self) -> dict[str, str]:
        """What stands for {name} in paths: what the preparation has written, and the folder."""
        found = {"data": str(self.data)}
        with contextlib.suppress(FileNotFoundError):
            for line in (self._pristine / "names").read_text().splitlines():
                name, _, value = line.partition(" ")
                found[name] = value
        return found

    def _variables(self) -> dict[str, str]:
        own = {name: value.replace("{data}", str(self.data))
               for name, value in self._application.env.items()}  # fmt: skip
        # Some put the members of a set into a page, in its order.
        same = {"HOME": str(self.data), "PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "0"}
        return {**same, **own}

    def contenders(self) -> Mapping[str, Server]:
        """As it is, twice, and wrapped in each way."""
        target, bind = f"{MODULE}:app", "--bind={host}:{port}"
        # One worker, as the others have: some keep in memory what the next request asks for.
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
        """A contender's server, in a folder as prepared.

        :raises ServerFailed: if it does not start.
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
        raise NotRunning(" / ".join(line.strip() for line in lines[-3:]) or "it failed silently")
