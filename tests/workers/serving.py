"""A live FastWorker, with any of its attributes and gunicorn's settings."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import forkserver
from tests.support.http import Address, Connection, Response, reset_on_close
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.app import block
from wsgifast.server import poller, server
from wsgifast.server.options import Options
from wsgifast.server_options import OPTIONS
from wsgifast.workers import options as own_options
from wsgifast.workers import worker

POLLERS = ("epoll", "poll")

_CONFIGURATION = """\
from wsgifast.workers import FastWorker

class worker_class(FastWorker):
    pass

from tests.workers.serving import fix_options
fix_options({fixed!r})
for name, value in {attributes!r}.items():
    assert hasattr(FastWorker, name), name
    setattr(worker_class, name, value)
{more}
"""
_FIXED = {field.name for field in dataclasses.fields(Options)} - OPTIONS.keys() | {"poller"}


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate class attributes of the worker from options that only tests can set."""
    fixed = {name: value for name, value in options.items() if name in _FIXED}
    return {name: options[name] for name in options if name not in fixed}, fixed


def fix_options(fixed: Mapping[str, Any]) -> None:
    """Set options that only tests can set, for the workers of this process.

    :param fixed: options of the server by their names; `poller`: "epoll" or "poll".
    """
    changed = dict(fixed)
    kind = changed.pop("poller", None)
    if kind is not None:
        setattr(server, "make_poller", getattr(poller, f"{kind.capitalize()}Poller"))  # noqa: B010
    make = own_options.options

    def options(*args: Any) -> Options:
        return dataclasses.replace(make(*args), **changed)

    setattr(worker, "options", options)  # noqa: B010


def using(parser: str) -> AbstractContextManager[object]:
    """Have parsers be made of one kind.

    :param parser: "httptools" or "gunicorn".
    """
    return mock.patch.object(own_options, "_uses_httptools", return_value=parser == "httptools")


def gunicorn_command(*arguments: str) -> list[str]:
    """Return the command of gunicorn with four threads. See :func:`_command`."""
    return _command("--threads=4", *arguments)


def _command(*arguments: str) -> list[str]:
    """Return the command of gunicorn without its control socket."""
    # The script is used, not `python -m`. After USR2, gunicorn/http must not be imported as `http`.
    script = str(Path(sys.executable).with_name("gunicorn"))
    return [script, "--no-control-socket", *arguments]


@contextlib.contextmanager
def fast_worker(
    *options: str,
    app: str = "tests.workers.app:app",
    attributes: Mapping[str, object] | None = None,
    configuration: str = "",
    address: Address | None = None,
    env: Mapping[str, str] | None = None,
    fails: bool = False,
) -> Iterator[LiveServer]:
    """Run gunicorn with FastWorker.

    :param options: gunicorn's command line.
    :param attributes: class attributes of the worker, and options of :func:`fix_options`.
    :param configuration: more lines of the configuration file (hooks).
    :param fails: whether gunicorn exits by itself.
    """
    if address is None:
        address = ("127.0.0.1", free_port())
    bind = f"unix:{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"
    with tempfile.TemporaryDirectory(prefix="wsgifast-conf-") as folder:
        conf = Path(folder, "gunicorn.conf.py")
        own, fixed = split_options(attributes or {})
        conf.write_text(_CONFIGURATION.format(attributes=own, fixed=fixed, more=configuration))
        argv = gunicorn_command("-c", str(conf), "-b", bind, "--access-logfile=-", *options, app)
        with live_server(argv, address, env=env, fails=fails) as server:
            yield server


def refused(
    *options: str,
    app: str = "tests.workers.app:app",
    env: Mapping[str, str] | None = None,
    app_fails: bool = False,
) -> str:
    """Return the output of gunicorn when it refuses to start with FastWorker.

    :param app_fails: whether the app fails, so that a traceback is expected.
    """
    worker = () if "-c" in options else ("-k", "wsgifast.workers.FastWorker")
    argv = _command("-b", "127.0.0.1:0", *worker, *options, app)
    done = forkserver.run(argv, cwd=ROOT, env={**os.environ, **(env or {})}, timeout=60)
    if app_fails:
        assert done.returncode != 0, done.stderr
    else:
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
    return done.stderr


def rewrite_module(path: Path, text: str) -> None:
    """Write a module again so that Python does not use its old bytecode.

    Python compares the size and the seconds of the time of change.
    """
    later = int(path.stat().st_mtime) + 2
    path.write_text(text)
    os.utime(path, (later, later))


@dataclasses.dataclass
class Client:
    """A server, and how clients reach it."""

    server: LiveServer
    tls: ssl.SSLContext | None
    parser_options: Sequence[str] = ()

    def connect(self) -> Connection:
        return Connection(self.server.address, tls=self.tls)

    def get(self, target: str, **options: object) -> Response:
        return self.server.get(target, tls=self.tls, **options)

    def closed(self, name: str) -> int:
        """Return how many iterables of an app have been closed."""
        closed: list[str] = stats(self.server, tls=self.tls)["closed"]
        return closed.count(name)


def stats(server: LiveServer, **options: Any) -> dict[str, Any]:
    """Return the worker process's own counts."""
    value: dict[str, Any] = json.loads(server.get("/stats", **options).body)
    return value


@contextlib.contextmanager
def nothing_left_behind(server: LiveServer, **options: Any) -> Iterator[None]:
    """Require that descriptors, threads and connections are as before, and that others are served.

    :param options: how to reach the server, as for `server.get`.
    """
    before = stats(server, **options)
    yield
    assert server.get("/small/5", **options).body == block(5)
    # A disk thread ends by itself, a moment after its last read.
    wait_for(
        lambda: all(stats(server, **options)[what] <= before[what] for what in ("fds", "threads")),
        f"the descriptors are {before['fds']} again, and the threads {before['threads']}",
        interval=0.1,
    )
    after = stats(server, **options)
    assert after["pid"] == before["pid"], f"the worker was replaced\n{server.log()}"
    assert "Error in a connection" not in server.log()


def reset(sock: socket.socket) -> None:
    """Close the connection with a reset."""
    reset_on_close(sock)
    sock.close()
