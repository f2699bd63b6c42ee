"""Any of the usual servers, for any app that can be imported: as it is, or wrapped.

    python -m wsgifast.commands.bench.serving wsgiref | werkzeug HOST PORT

starts a server that has no command of its own. All servers import :func:`app`; an environment
variable names the real app, since not every server accepts a factory with arguments.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from http.server import HTTPServer
from typing import Any

from ...errors import ConfigurationError, MissingExtra
from ..loading import AppNotLoaded, AwaitedApp, load_app, unwrapped, wrapped
from ..loading.servers import Loaded, check_one_app, load_as, load_for
from .tables import Server

FAST_WORKER = "wsgifast.workers.FastWorker"
OUR_PROTOCOL = "asgifast.uvicorn:HttpToolsProtocol"
# The environment variable that says which app: JSON.
VARIABLE = "WSGIFAST_BENCH"
_APP = "wsgifast.commands.bench.serving:app"
# How often an idle server checks whether it should end.
_LOOK_S = 0.1


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

    :param target: see :func:`wsgifast.commands.loading.load_app`.
    :param options: those of WSGIFast or ASGIFast; None for the app as it is.
    """
    finder = server if server in ("gunicorn", "uvicorn") else None
    env = {VARIABLE: json.dumps({"target": target, "options": options, "server": finder})}
    if server == "gunicorn":
        return gunicorn(f"{_APP}()", *more, worker_class=worker_class, env=env)
    quiet = ("--no-access-log", "--log-level=warning")
    command = {
        "uvicorn": ("uvicorn", *quiet, "--host={host}", "--port={port}", *more, "--factory", _APP),
        "waitress": ("waitress", "--listen={host}:{port}", *more, "--call", _APP),
    }.get(server, ("wsgifast.commands.bench.serving", server, "{host}", "{port}"))
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
    """Off: servers side by side would share one in the user's home. gunicorn 25.0 has none."""
    from gunicorn.config import KNOWN_SETTINGS

    found = any(setting.name == "control_socket_disable" for setting in KNOWN_SETTINGS)
    return ("--no-control-socket",) if found else ()


def found_app(target: str, server: str | None, more: Sequence[str]) -> tuple[str, Loaded]:
    """The server for an app, and the app as that one loads it, in a process of its own.

    :param server: one of SERVERS; None: what the app needs.
    :param more: options for the server's own command.
    :raises AppNotLoaded: with its reason.
    :raises ConfigurationError: if the server refuses its options, or they name another app.
    """
    if server is None:
        server, loaded = load_for(target, rest=more)
    elif server in ("gunicorn", "uvicorn"):
        _check_installed(server)
        loaded = load_as("gunicorn" if server == "gunicorn" else "uvicorn", target, more)
        if loaded.refusal:
            raise ConfigurationError(f"-- {shlex.join(more)}: {server}: {loaded.refusal}")
    else:
        loaded = load_as(None, target)
    if loaded.interface is None:
        raise AppNotLoaded(loaded.error)
    check_one_app(loaded, target)
    interface = loaded.settings.get("interface")
    if interface in ("wsgi", "asgi2"):
        raise ConfigurationError(f"--interface {interface}: wsgifast bench cannot wrap such apps")
    return server, loaded


def app() -> Any:
    """The app that the environment names, as it is or wrapped; for servers."""
    arguments = json.loads(os.environ[VARIABLE])
    loaded = load_app(arguments["target"], arguments["server"])
    bare, options = loaded.app, arguments["options"]
    if isinstance(bare, AwaitedApp):
        bare.then(lambda made: unwrapped(made)[0])
    else:
        bare, _ = unwrapped(bare)
    return bare if options is None else wrapped(bare, loaded.interface, **options)


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    kind, host, port = sys.argv[1:]
    server = _made(kind, host, int(port), app())

    def end(*_: object) -> None:
        # Whatever is raised in a request is taken for a failure of the app, and served on.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    server.serve_forever(_LOOK_S)


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
