"""The servers of a benchmark: gunicorn and uvicorn with an app, unwrapped or wrapped.

Both servers import :func:`app`. An environment variable names the user's app, because uvicorn
accepts no factory with arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError
from ..loading import ServerName, load_app, unwrapped, wrapped
from ..loading.servers import Loaded, check_installed, check_one_app, load_for
from .processes import Server

FAST_WORKER = "wsgifast.workers.FastWorker"
OUR_PROTOCOL = "asgifast.uvicorn:HttpToolsProtocol"
# The environment variable with the target of the app and the options of its wrapper, as JSON.
VARIABLE = "WSGIFAST_BENCH"
_APP = "wsgifast.commands.bench.serving:app"
GUNICORN = (
    *("python", "-m", "gunicorn", "--bind", "{host}:{port}"),
    # With its defaults (2 s and 30 s), gunicorn would disconnect clients that pause, and kill
    # workers of slow unwrapped apps.
    *("--keep-alive", "30", "--timeout", "120", "--graceful-timeout", "3"),
    # Several servers would use one socket in the user's home directory.
    "--no-control-socket",
    *("--log-level", "warning"),
)
_QUIET = ("--no-access-log", "--log-level=warning")
UVICORN = ("python", "-m", "uvicorn", *_QUIET, "--host={host}", "--port={port}")


def sides(
    target: str,
    server: ServerName,
    worker_classes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> dict[str, Server]:
    """Return the servers of a comparison by their names. The first one has the unwrapped app.

    :param worker_classes: of gunicorn. The first one also serves the unwrapped app.
    :param options: of WSGIFast or ASGIFast.
    :param more: options for the server's own command.
    :raises MissingExtra: if the server is not installed.
    :raises ConfigurationError: if gunicorn has no such worker class.
    """
    check_installed(server, "wsgifast bench")
    options = options or {}
    if server == "uvicorn":
        return {
            "uvicorn": served(target, None, server, more=more),
            "ASGIFast on uvicorn": served(target, options, server, more=more),
            "ASGIFast on our protocol": served(
                target, options, server, more=(f"--http={OUR_PROTOCOL}", *more)
            ),
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
    """:raises ConfigurationError: for the name of a class that gunicorn does not have."""
    from gunicorn.util import load_class

    if not set(".:") & set(name):  # gunicorn itself imports a class of another module
        try:
            load_class(name, section="gunicorn.workers")
        except (RuntimeError, ImportError) as error:
            *_, reason = str(error).strip("]\n ").splitlines()
            raise ConfigurationError(f"--worker-class {name}: {reason.strip()}") from None


def served(
    target: str,
    options: Mapping[str, Any] | None = None,
    server: ServerName = "gunicorn",
    worker_class: str = "gthread",
    more: Sequence[str] = (),
) -> Server:
    """Return a server for an app. uvicorn uses uvloop and httptools if they are installed.

    :param target: see :func:`wsgifast.commands.loading.load_app`.
    :param options: of WSGIFast or ASGIFast. None for the unwrapped app.
    """
    argv = (*UVICORN, *more, "--factory", _APP)
    if server == "gunicorn":
        own = ("--worker-class", worker_class, "--threads", "4", "--workers", "1")
        argv = (*GUNICORN, *own, *more, f"{_APP}()")
    arguments = json.dumps({"target": target, "options": options, "server": server})
    return Server(argv, ((VARIABLE, arguments),))


def found_app(target: str, more: Sequence[str]) -> tuple[ServerName, Loaded]:
    """Return the server that an app needs, and the result of loading the app as that server would.

    :param more: options for the server's own command.
    :raises AppNotLoaded: if it cannot be imported or made.
    :raises ConfigurationError: if the server refuses the options, or if they name another app.
    """
    server, loaded = load_for(target, rest=more)
    check_one_app(loaded, target)
    interface = loaded.settings.get("interface")
    if interface in ("wsgi", "asgi2"):
        raise ConfigurationError(f"--interface {interface}: wsgifast bench cannot wrap such apps")
    return server, loaded


def app() -> Any:
    """Return the app that the environment names, unwrapped or wrapped."""
    arguments = json.loads(os.environ[VARIABLE])
    loaded = load_app(arguments["target"], arguments["server"])
    options = arguments["options"]
    bare, _ = unwrapped(loaded.app)
    return bare if options is None else wrapped(bare, loaded.interface, **options)
