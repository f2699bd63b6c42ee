"""Run the commands of a page in a folder, like its reader. Servers run in the background.

Servers use free ports. The environment has the packages of the page's install lines
(environment.py), also of lines in comments. A page without such a line has the packages of the
Install page. `wsgifast bench` is only parsed, and so is `wsgifast doctor` on pages about other
subjects, since they take long and have their own tests. Lines that begin with `#` are for root,
Docker or a cluster, and are not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.environment import Environment
from tests.support.programs import program
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from wsgifast.commands.cli import command_parser
from wsgifast.commands.client import unverified_tls

# The option with the address of each server.
_SERVERS = {
    "gunicorn": ("--bind", "--no-control-socket"),
    "uvicorn": ("--port",),
    "flask": ("--port",),
    "wsgifast run": ("--bind",),
    "wsgifast files": ("--bind",),
}
# The doctor's exit statuses: no findings, and some findings.
_GOOD = {"doctor": {0, 1}}
# Metrics are served a moment after the app.
_CURL_OPTIONS = "--fail --max-time 20 --retry 9 --retry-connrefused --retry-delay 1"
_ANOTHER_SHELLS = re.compile(r"[|><&;]")


class Shell(contextlib.ExitStack):
    """A folder, and the server that was started last.

    :param environment: the source of the programs.
    :param asks_doctor: run `wsgifast doctor`.
    """

    def __init__(self, folder: Path, environment: Environment, *, asks_doctor: bool) -> None:
        super().__init__()
        self._installed = environment
        self.folder = folder
        self._parsed = ["bench"] if asks_doctor else ["bench", "doctor"]
        self.output = ""
        self._server: LiveServer | None = None
        # Replacements of the ports in the documentation: a server's, and its metrics'.
        self._ports = {"8000": free_port(), "9100": free_port()}
        self._variables: list[str] = []  # NAME=value before the command

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w") as file:
            file.write(text)

    def run(self, lines: str) -> None:
        """Run the lines that begin with a prompt."""
        for line in lines.replace("\\\n", " ").splitlines():
            assert line.startswith(("$ ", "# ")), f"{line!r}: '$ ' or '# ' begins a command"
            if line.startswith("$ "):
                command, _, comment = line.removeprefix("$ ").partition("  # ")
                for install in re.findall(r"pip install [^)]+", comment):
                    self._installed.install(install)
                self._run(command.strip())

    def _run(self, line: str) -> None:
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
        assert not re.search(r"[?*\[(]", unquoted), (
            f"{line}: zsh takes ? * [ ( for its own: quote it"
        )
        words = shlex.split(line)
        self._variables = [words.pop(0)] if "=" in words[0] else []
        if words[:2] == ["pip", "install"]:
            self._installed.install(line)
        elif words[0] in ("pip", "python3", "pytest"):  # the tests of a page run with its Python
            assert words[0] != "pytest" or self._installed.has("pytest"), line
        elif _ANOTHER_SHELLS.search(line):
            self._run_by_shell(line)
        elif words[0] in _SERVERS or " ".join(words[:2]) in _SERVERS:
            self._serve(words)
        elif words[0] == "wsgifast" and words[1] in self._parsed:
            assert words[1] != "bench" or self._installed.has("locust"), f"{line}: wsgifast[bench]"
            rest = words.index("--") if "--" in words else len(words)
            command_parser().parse_args(words[1:rest])
        elif words[0] == "wsgifast":
            self._run_command(words, _GOOD.get(words[1], {0}))
        elif words[:2] == ["python", "manage.py"]:
            # Django's admin takes seconds to compress, and is not part of a page.
            more = ["--ignore=js", "--ignore=vendor"] if "collectstatic" in words else []
            self._run_command([*words, *more], {0})
        elif words[0] == "django-admin":
            self._run_command(words, {0})
        elif words[0] in ("curl", "openssl", "mkdir", "truncate"):
            self._run_by_shell(line)
        else:
            raise AssertionError(f"{line!r}: tests/docs/shell.py does not know this program")

    def _run_command(self, words: list[str], good: set[int]) -> None:
        done = subprocess.run(
            [self._program(words[0]), *map(self._here, words[1:])],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        self.output = done.stdout
        assert done.returncode in good, f"{words}: {done.returncode}\n{self.output}"

    def _run_by_shell(self, line: str) -> None:
        for name in ("curl", "openssl"):
            if name in line:
                program(name)
        if "curl" in line:
            line = line.replace("curl ", f"curl {_CURL_OPTIONS} ")
        done = subprocess.run(
            self._here(line),
            shell=True,
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.output = done.stdout + done.stderr
        good = _GOOD.get("doctor" if "doctor" in line else "", {0})
        assert done.returncode in good, f"{line}: {done.returncode}\n{self.output}"

    def _serve(self, words: list[str]) -> None:
        self._server = None
        self.close()  # the previous server
        self._ports = {port: free_port() for port in self._ports}
        name = words[0] if words[0] in _SERVERS else " ".join(words[:2])
        option, *more = _SERVERS[name]
        address = ("127.0.0.1", self._ports["8000"])
        where = str(address[1]) if option == "--port" else f"127.0.0.1:{address[1]}"
        at = words.index("--bind") if "--bind" in words else len(words)
        words = [*words[:at], *words[at + 2 :], option, where, *more]
        server = live_server(
            [self._program(words[0]), *words[1:]],
            address,
            env=self._environment(),
            cwd=self.folder,
        )
        self._server = self.enter_context(server)
        # gunicorn's arbiter listens before a signal can end its worker.
        response = self._server.get("/", tls=unverified_tls() if "--certfile" in words else None)
        assert response.status < 500, f"{words}: {response}\n{self._server.log()}"
        if "--workers" in words and name == "gunicorn":
            workers = int(words[words.index("--workers") + 1])
            arbiter = self._server.pid
            wait_for(lambda: _can_end(arbiter, workers), "every worker can be ended by a signal")

    def _program(self, name: str) -> str:
        path = self._installed.bin / name
        assert path.exists(), f"{name} is not installed: the page lacks a line with pip install"
        return str(path)

    def _here(self, text: str) -> str:
        for named, port in self._ports.items():
            text = text.replace(f":{named}", f":{port}")
        return text

    def _environment(self) -> dict[str, str]:
        ours = str(Path(sys.executable).parent)
        others = [each for each in os.environ["PATH"].split(":") if each != ours]
        path = ":".join([str(self._installed.bin), *others])
        variables = dict(self._here(each).split("=") for each in self._variables)
        environment = {**os.environ, **variables, "PATH": path}
        environment.pop("DJANGO_SETTINGS_MODULE", None)  # the port of other tests
        return environment


def _can_end(arbiter: int, workers: int) -> bool:
    """Whether all workers have their own signal handlers: SIGTERM is lost on one that has not.

    A worker that has been forked only now still catches SIGCHLD, as its arbiter does.
    """
    handlers = []
    for task in Path(f"/proc/{arbiter}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                status = Path(f"/proc/{child}/status").read_text()
            except OSError:
                return False  # the worker has ended meanwhile
            handlers.append(int(status.partition("SigCgt:")[2].split()[0], 16))
    child_ended = 1 << signal.SIGCHLD - 1
    return len(handlers) >= workers and not any(caught & child_ended for caught in handlers)
