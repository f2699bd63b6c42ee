"""Any of the usual servers, for any app that can be imported: as it is, or wrapped.

    python -m wsgifast.benchmark.serving wsgiref | werkzeug HOST PORT

is the servers that have no command of their own. What all of them import is :func:`app`; a variable
of the environment names the app, since not every server accepts a factory with arguments.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http.server import HTTPServer
from typing import Any

from ..apps import Interface
from ..errors import ConfigurationError, MissingExtra
from ..loading import AppNotLoaded, load_app, unwrapped, wrapped
from .processes import started
from .tables import Server

FAST_WORKER = "wsgifast.workers.FastWorker"
OUR_PROTOCOL = "asgifast.uvicorn:HttpToolsProtocol"
# The environment variable that says which app: JSON.
VARIABLE = "WSGIFAST_BENCH"
_APP = "wsgifast.benchmark.serving:app"
# Importing a large app takes seconds on a busy machine; one that takes longer hangs.
_IMPORT_S = 60.0
# How often an idle server checks whether it should end.
_LOOK_S = 0.1


@dataclass(frozen=True)
class Facts:
    """What an app is."""

    interface: Interface
    was_wrapped: bool


def sides(
    target: str,
    server: str,
    worker_classes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> dict[str, Server]:
    """The contenders for an app: as it is first, then wrapped, in the best way last.

    :param server: one of SERVERS.
    :param worker_classes: gunicorn's; the app as it is gets the first alone.
    :param options: WSGIFast's or ASGIFast's.
    :param more: options for the server's own command.
    :raises MissingExtra: if the server is not installed.
    :raises ConfigurationError: if gunicorn has no such worker class.
    """
    _check_installed(server)
    options = options or {}
    if server == "uvicorn":
        return {
            "uvicorn": served(target, None, server, more=more),
            "ASGIFast on uvicorn": served(target, options, server, more=more),
            "ASGIFast on our protocol": served(
                target, options, server, more=(f"--http={OUR_PROTOCOL}", *more)
            ),
        }
    if server != "gunicorn":
        return {
            server: served(target, None, server, more=more),
            f"WSGIFast on {server}": served(target, options, server, more=more),
        }
    for each in worker_classes:
        _check_worker_class(each)
    raw, *_ = worker_classes
    found = {_short(raw): served(target, None, server, raw, more)}
    for each in worker_classes:
        found[f"WSGIFast on {_short(each)}"] = served(target, options, server, each, more)
    return found


def _short(worker_class: str) -> str:
    return worker_class.rpartition(".")[2]


def _check_worker_class(name: str) -> None:
    """:raises ConfigurationError: if gunicorn has none of this name; modules are not looked at."""
    from gunicorn.util import load_class

    if not set(".:") & set(name):
        try:
            load_class(name, section="gunicorn.workers")
        except (RuntimeError, ImportError) as error:
            *_, reason = str(error).strip("]\n ").splitlines()
            raise ConfigurationError(f"--worker-class {name}: {reason.strip()}") from None


def _check_installed(server: str) -> None:
    extras = {"gunicorn": "gunicorn", "uvicorn": "asgi", "werkzeug": "devservers"}
    packages = {"uvicorn": ("uvicorn", "httptools"), "wsgiref": ()}.get(server, (server,))
    for package in packages:
        if importlib.util.find_spec(package) is None:
            if server not in extras:
                raise ConfigurationError(f"{package} is not installed: pip install {package}")
            raise MissingExtra(f"wsgifast bench on {server}", package, extras[server])


def served(
    target: str,
    options: Mapping[str, Any] | None = None,
    server: str = "gunicorn",
    worker_class: str = "gthread",
    more: Sequence[str] = (),
) -> Server:
    """An app on a server.

    :param target: see :func:`wsgifast.loading.load_app`.
    :param options: those of WSGIFast or ASGIFast; None for the app as it is.
    """
    env = {VARIABLE: json.dumps({"target": target, "options": options})}
    if server == "gunicorn":
        return gunicorn(f"{_APP}()", *more, worker_class=worker_class, env=env)
    quiet = ("--no-access-log", "--log-level=warning")
    command = {
        "uvicorn": ("uvicorn", *quiet, "--host={host}", "--port={port}", *more, "--factory", _APP),
        "waitress": ("waitress", "--listen={host}:{port}", *more, "--call", _APP),
    }.get(server, ("wsgifast.benchmark.serving", server, "{host}", "{port}"))
    return Server(("python", "-m", *command), tuple(env.items()))


def gunicorn(
    app: str,
    *options: str,
    worker_class: str = "gthread",
    threads: int = 4,
    workers: int = 1,
    tls: bool = False,
    env: Mapping[str, str] | None = None,
) -> Server:
    """gunicorn, with one worker process: on a small machine the client needs a core too.

    :param app: what gunicorn takes: "module:app", or "module:factory('argument')".
    :param options: added at the end, such as "--no-sendfile".
    :param threads: of a gthread-like worker; other workers have none and ignore it.
    :param tls: with the certificate "{folder}/server.pem".
    """
    pem = ("--certfile", "{folder}/server.pem", "--keyfile", "{folder}/server.pem")
    return Server(
        (
            *("python", "-m", "gunicorn", app, "--bind", "{host}:{port}"),
            *("--worker-class", worker_class, "--threads", str(threads), "--workers", str(workers)),
            # The defaults of 2 s and 30 s would end a paused client's connection, or a slow raw
            # app.
            *("--keep-alive", "30", "--timeout", "120", "--graceful-timeout", "3"),
            *_no_control_socket(),
            *("--log-level", "warning", *(pem if tls else ()), *options),
        ),
        tuple((env or {}).items()),
        tls,
    )


@cache
def _no_control_socket() -> tuple[str, ...]:
    """Servers side by side would have the same one, in the user's home; gunicorn 25.0 has none."""
    from gunicorn.config import KNOWN_SETTINGS

    found = any(setting.name == "control_socket_disable" for setting in KNOWN_SETTINGS)
    return ("--no-control-socket",) if found else ()


def facts_of(target: str) -> Facts:
    """Import an app, in a process of its own: whatever it starts does not run on beside the load.

    :raises AppNotLoaded: with its reason.
    """
    command = [sys.executable, "-m", "wsgifast.benchmark.serving", "facts"]
    env = {**os.environ, VARIABLE: json.dumps({"target": target, "options": None})}
    pipe = subprocess.PIPE
    with started(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        try:
            said, errors = process.communicate(timeout=_IMPORT_S)
        except subprocess.TimeoutExpired:
            raise AppNotLoaded(f"{target}: no end of the import after {_IMPORT_S:.0f} s") from None
    if not said:
        tail = "".join(errors.decode(errors="replace").strip().splitlines()[-1:])
        status = process.returncode
        raise AppNotLoaded(
            f"{target}: the import ended Python with status {status}. {tail}".strip()
        )
    found = json.loads(said)
    if "error" in found:
        raise AppNotLoaded(found["error"])
    return Facts(**found)


def app() -> Any:
    """The app that the environment names, as it is or wrapped; for servers."""
    arguments = json.loads(os.environ[VARIABLE])
    loaded = load_app(arguments["target"])
    bare, _ = unwrapped(loaded.app)
    options = arguments["options"]
    return bare if options is None else wrapped(bare, loaded.interface, **options)


def main() -> None:
    """Serve until Ctrl-C or SIGTERM; or print facts about the app."""
    kind, *where = sys.argv[1:]
    if kind == "facts":
        _tell_facts()
    host, port = where
    server = _made(kind, host, int(port), app())

    def end(*_: object) -> None:
        # Whatever is raised in a request is taken for a failure of the app, and served on.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    server.serve_forever(_LOOK_S)


def _tell_facts() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever the app prints is no answer
    try:
        loaded = load_app(json.loads(os.environ[VARIABLE])["target"])
        found: dict[str, Any] = {"interface": loaded.interface}
        found["was_wrapped"] = unwrapped(loaded.app)[1]
    except AppNotLoaded as error:
        found = {"error": str(error)}
    os.write(answers, json.dumps(found).encode())
    os._exit(0)  # an app's threads and atexit functions are not waited for


def _made(server: str, host: str, port: int, app: Any) -> HTTPServer:
    # A line for every request would be measured too.
    if server == "werkzeug":
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log_request(self, *_: object) -> None: ...

        return make_server(host, port, app, threaded=True, request_handler=Quiet)
    from wsgiref import simple_server

    class Silent(simple_server.WSGIRequestHandler):
        def log_request(self, *_: object) -> None: ...

    return simple_server.make_server(host, port, app, handler_class=Silent)


if __name__ == "__main__":
    main()
