"""Decides which server an app needs, and loads the app as that server would.

A process of its own imports the app and the configuration (`as_server`). So the directory, the
variables, the threads and the classes of the calling process do not change.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...checks import Interface
from ...errors import ConfigurationError, MissingExtra
from . import AppNotLoaded, ServerName

# -P removes the working directory from sys.path: its files may have the names of modules of the
# standard library.
MODULE = ("-P", "-m")
_PROCESS = "wsgifast.commands.loading.as_server"
# Where `wsgifast run` has the health checks, by the names of FastWorker's options.
PROBE_PATHS = {"health_path": "/livez", "ready_path": "/readyz"}
# Importing a large app takes seconds on a busy machine. An import that takes longer hangs.
_IMPORT_S = 60.0
_LOG_BYTES = 4000
# The extra and the packages of each server.
_NEEDED: Mapping[ServerName, tuple[str, Sequence[str]]] = {
    "gunicorn": ("gunicorn", ("gunicorn",)), "uvicorn": ("asgi", ("uvicorn", "httptools"))
}  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """The result of loading an app as a server would.

    :ivar interface: None if the app was not loaded.
    :ivar was_wrapped: in WSGIFast or ASGIFast.
    :ivar error: why the app was not loaded.
    :ivar refusal: the server's message, if it refuses its arguments or ends at once.
    :ivar settings: of the server, from its arguments, its configuration and the environment.
    :ivar named_app: the target that the arguments or the configuration name.
    :ivar hooks: functions of gunicorn's configuration that run before the import of the app.
    :ivar is_special: the server has a configuration that may change the result.
    :ivar memory_bytes: of the process that has loaded it. 0 if it was not loaded.
    :ivar waits_for: imported packages that wait for other servers.
    :ivar static: directories of static files that its framework is configured with, by prefixes.
    :ivar free_probes: the paths of PROBE_PATHS that no URL of its framework matches.
    :ivar debug: the setting by which its framework debugs, or "" if it does not.
    :ivar tls_header: the environ key that tells Django whether a request came by TLS, or "".
    :ivar loggers: loggers of the server for which the app has set handlers.
    :ivar replaced: parts of gunicorn that the configuration or the app has replaced, and that
        FastWorker does not call.
    :ivar configured: values of the server for `wsgifast run --check`, set or by default.
    """

    interface: Interface | None = None
    target: str = ""
    was_wrapped: bool = False
    error: str = ""
    refusal: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    named_app: str = ""
    hooks: Sequence[str] = ()
    is_special: bool = False
    memory_bytes: int = 0
    waits_for: Sequence[str] = ()
    static: Mapping[str, str] = field(default_factory=dict)
    free_probes: Sequence[str] = ()
    debug: str = ""
    tls_header: str = ""
    loggers: Sequence[str] = ()
    replaced: Sequence[str] = ()
    configured: Mapping[str, Any] = field(default_factory=dict)


def check_installed(server: ServerName, command: str) -> None:
    """:raises MissingExtra: if a package is missing that a command needs for a server."""
    extra, packages = _NEEDED[server]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{command} on {server}", package, extra)


def load_as(
    server: ServerName | None,
    target: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Load an app in a process of its own.

    :param server: None to find the app without the rules of a server.
    :param target: "" for the app that the arguments or the configuration name.
    :param arguments: of the server's command, without the target.
    :param environment: variables to add to those of this process.
    :raises AppNotLoaded: if the import ends Python, or takes too long.
    """
    command = [sys.executable, *MODULE, _PROCESS, server or "", target, *arguments]
    named = target or "the app"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # the app's own processes end with it
        )
        try:
            process.wait(_IMPORT_S)
        except subprocess.TimeoutExpired:
            raise AppNotLoaded(f"{named}: no end of the import after {_IMPORT_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
        said, lines = output.read(), log.read().decode(errors="replace").strip().splitlines()
    if said:
        return Loaded(**json.loads(said))
    last = lines[-1].strip() if lines else ""
    raise AppNotLoaded(
        f"{named}: the import ended Python with status {process.returncode}. {last}".strip()
    )


def load_for(
    target: str, gunicorn: Sequence[str] = (), rest: Sequence[str] = ()
) -> tuple[ServerName, Loaded]:
    """Return the server that an app needs, and the result of loading the app as that server would.

    :param gunicorn: arguments for gunicorn alone.
    :param rest: the user's own arguments, for the server that the app turns out to need.
    :raises AppNotLoaded: if neither server loads it.
    :raises ConfigurationError: if the server that the app needs refuses its options, its
        configuration or its environment.
    """
    arguments: dict[ServerName, Sequence[str]] = {"gunicorn": gunicorn, "uvicorn": ()}
    uvicorn_is_special = bool(rest) or any(name.startswith("UVICORN_") for name in os.environ)
    found: dict[ServerName, Loaded] = {}
    for server, own in arguments.items():
        if importlib.util.find_spec(server) is None:
            continue
        found[server] = one = load_as(server, target, [*own, *rest])
        is_special = one.is_special or uvicorn_is_special
        if one.interface is not None and (server == _server_of(one) or not is_special):
            break
    for one in reversed(found.values()):
        if one.interface is not None:
            needed = _server_of(one)
            _check_accepted(needed, found, one, target, rest)
            if not found.get(needed, Loaded()).error:
                return needed, one
    for server, one in sorted(found.items(), key=lambda item: not item[1].is_special):
        if one.error and one.hooks:
            # The app may need the hooks. They run in gunicorn itself, with its arbiter.
            return server, replace(one, interface="WSGI", target=target, error="")
        if one.error:
            raise AppNotLoaded(one.error)
    plain = load_as(None, target)
    if plain.interface is None:
        reasons = [f"{server}: {one.refusal}" for server, one in found.items() if one.refusal]
        raise AppNotLoaded("; ".join([plain.error, *reasons]))
    _check_accepted(_server_of(plain), found, plain, target, rest)
    return _server_of(plain), plain


def _check_accepted(
    server: ServerName,
    found: Mapping[ServerName, Loaded],
    app: Loaded,
    target: str,
    rest: Sequence[str],
) -> None:
    """:raises ConfigurationError: if a server refuses its options or its configuration."""
    refusal = found.get(server, Loaded()).refusal
    if refusal and not _ENDS_AT_ONCE & set(rest):
        refusal = _with_counterpart(server, rest, refusal)
        raise ConfigurationError(
            f"{server}, which serves {app.interface} apps like {target}: {refusal}"
        )


def check_one_app(loaded: Loaded, target: str) -> None:
    """:raises ConfigurationError: if the server's own options name another app, too."""
    if loaded.named_app:
        raise ConfigurationError(
            f"{loaded.named_app} names another app than {target}: leave one of them out"
        )


# Options of gunicorn, each with the options of uvicorn for the same purpose.
_COUNTERPARTS: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    (("--bind", "-b"), ("--host", "--port", "--uds")),
    (("--workers", "-w"), ("--workers",)),
    (("--keep-alive",), ("--timeout-keep-alive",)),
    (("--graceful-timeout",), ("--timeout-graceful-shutdown",)),
    (("--max-requests",), ("--limit-max-requests",)),
    (("--chdir", "--pythonpath"), ("--app-dir",)),
    (("--certfile",), ("--ssl-certfile",)),
    (("--keyfile",), ("--ssl-keyfile",)),
    (("--ca-certs",), ("--ssl-ca-certs",)),
    (("--ciphers",), ("--ssl-ciphers",)),
    (("--access-logfile",), ("--access-log", "--no-access-log")),
)


def _with_counterpart(server: ServerName, arguments: Sequence[str], refusal: str) -> str:
    """Add to the refusal of an option how this server names it, if the other server has it."""
    for word in arguments:
        name = word.partition("=")[0]
        for gunicorns, uvicorns in _COUNTERPARTS:
            others, own = (uvicorns, gunicorns) if server == "gunicorn" else (gunicorns, uvicorns)
            if name in others and name not in own and name in refusal:
                names = " or ".join(each for each in own if each.startswith("--"))
                # click guesses another option by its spelling.
                refusal = refusal.partition("Did you mean")[0].rstrip("( .")
                return f"{refusal}; {server} has {names} for it"
    return refusal


# Options with which a server prints something and ends.
_ENDS_AT_ONCE = {"--help", "-h", "--version", "-v", "--check-config", "--print-config"}


def _server_of(one: Loaded) -> ServerName:
    is_uvicorns = one.interface == "ASGI" or one.settings.get("interface") == "wsgi"
    return "uvicorn" if is_uvicorns else "gunicorn"
