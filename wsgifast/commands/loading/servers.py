"""Loads an app as a server would: with the server's options, configuration and environment.

    python -c START wsgifast.commands.loading.servers SERVER TARGET SERVER'S ARGUMENT ...

reads the server's arguments by the server's own means, changes the directory, search path and
environment as that server does, loads the app, and prints the result as JSON. It runs in a process
of its own: what the app and the configuration do when they are imported (another working directory,
variables, threads, monkey-patching) does not reach the process that asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from ...checks import Interface
from ...errors import ConfigurationError, MissingExtra, WSGIFastError
from ...metrics.health import resident_bytes
from ...sockets.options import Address
from . import AppNotLoaded, AwaitedApp, ServerName, described, django_settings, load_app, unwrapped

# Runs a module like `python -m`, which would look for its imports in the working directory first:
# a file there may have the name of a module of Python's own.
START = (
    "import sys; '' in sys.path[:1] and sys.path.pop(0); del sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
# A target: only the configuration is read.
NO_APP = ":"
# Importing a large app takes seconds on a busy machine; one that takes longer hangs.
_IMPORT_S = 60.0
_LOG_BYTES = 4000
# The extra and the packages of each server.
_NEEDED: Mapping[ServerName, tuple[str, Sequence[str]]] = {
    "gunicorn": ("gunicorn", ("gunicorn",)), "uvicorn": ("asgi", ("uvicorn", "httptools"))
}  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """The result of loading an app as a server would.

    :ivar interface: None: it was not loaded.
    :ivar was_wrapped: by WSGIFast or ASGIFast.
    :ivar error: why it was not loaded.
    :ivar refusal: the server's message, if it refuses its arguments or ends at once.
    :ivar settings: of the server, those that have a value from anywhere.
    :ivar is_special: the server has options or a configuration that may count for the app.
    :ivar memory_bytes: of the process that has loaded it; 0: it was not loaded.
    :ivar waits_for: packages that it has imported to ask other servers.
    :ivar static: directories of static files that its framework is configured with, by prefixes.
    :ivar debug: the setting by which its framework debugs; empty if it does not.
    :ivar tls_header: the environ key from which Django takes whether a request came by TLS; empty
        for none.
    :ivar loggers: of the server's own, those that the app has given handlers.
    :ivar replaced: parts of gunicorn that the configuration or the app has replaced, and that
        FastWorker does not call.
    :ivar configured: of the server, for `wsgifast run --check`: set or by default.
    """

    interface: Interface | None = None
    target: str = ""
    was_wrapped: bool = False
    error: str = ""
    refusal: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_special: bool = False
    memory_bytes: int = 0
    waits_for: Sequence[str] = ()
    static: Mapping[str, str] = field(default_factory=dict)
    debug: str = ""
    tls_header: str = ""
    loggers: Sequence[str] = ()
    replaced: Sequence[str] = ()
    configured: Mapping[str, Any] = field(default_factory=dict)


def check_installed(server: ServerName, command: str) -> None:
    """:raises MissingExtra: if a package is not installed that a command needs for a server."""
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

    :param server: None: one without a way of its own.
    :param target: "" for the app that the arguments or the configuration name; NO_APP for none.
    :param arguments: of the server's command, without the target.
    :param environment: what is added to this one.
    :raises AppNotLoaded: if the import ends Python, or has no end.
    """
    command = [sys.executable, "-c", START, __name__, server or "", target, *arguments]
    named = target or "the app"
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=answers,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # what the app starts ends with it
        )
        try:
            process.wait(_IMPORT_S)
        except subprocess.TimeoutExpired:
            raise AppNotLoaded(f"{named}: no end of the import after {_IMPORT_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answers.seek(0)
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
        said, lines = answers.read(), log.read().decode(errors="replace").strip().splitlines()
    if said:
        return Loaded(**json.loads(said))
    last = lines[-1].strip() if lines else ""
    raise AppNotLoaded(
        f"{named}: the import ended Python with status {process.returncode}. {last}".strip()
    )


def load_for(
    target: str, gunicorn: Sequence[str] = (), rest: Sequence[str] = ()
) -> tuple[ServerName, Loaded]:
    """The server that an app needs, and the result of loading the app as that one would.

    :param gunicorn: arguments for it alone.
    :param rest: the user's own arguments, for the server that the app turns out to need.
    :raises AppNotLoaded: if neither loads it.
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
        if one.interface is not None:
            needed = _server_of(one)
            if server == needed or not (one.is_special or uvicorn_is_special):
                _check_accepted(needed, found, one, target, rest)
                return needed, one
    for one in found.values():
        if one.interface is not None:
            needed = _server_of(one)
            _check_accepted(needed, found, one, target, rest)
            if not found.get(needed, Loaded()).error:
                return needed, one
    for server, one in sorted(found.items(), key=lambda item: not item[1].is_special):
        if one.error and "hooks" in one.settings:
            # They may do what the app needs; gunicorn itself finds out, with its arbiter.
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
    if "app" in loaded.settings:
        raise ConfigurationError(
            f"{loaded.settings['app']} names another app than {target}: leave one of them out"
        )


# gunicorn's options, and those of uvicorn for the same.
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
    """A server's refusal of an option, with its own for the same if that is the other server's."""
    for word in arguments:
        name = word.partition("=")[0]
        for gunicorns, uvicorns in _COUNTERPARTS:
            others, own = (uvicorns, gunicorns) if server == "gunicorn" else (gunicorns, uvicorns)
            if name in others and name in refusal:
                names = " or ".join(each for each in own if each.startswith("--"))
                refusal = refusal.partition("Did you mean")[0].rstrip("( .")  # by its spelling
                return f"{refusal}; {server} has {names} for it"
    return refusal


# Options with which a server prints something and ends.
_ENDS_AT_ONCE = {"--help", "-h", "--version", "-v", "--check-config", "--print-config"}


def _server_of(one: Loaded) -> ServerName:
    is_uvicorns = one.interface == "ASGI" or one.settings.get("interface") == "wsgi"
    return "uvicorn" if is_uvicorns else "gunicorn"


def main() -> None:
    """Load the app that the command line names, and print the result."""
    server, target, *arguments = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever the app prints is no answer
    found = _as_server(server, target, arguments)
    os.write(answers, json.dumps(asdict(found)).encode())
    os._exit(0)  # an app's threads and atexit functions are not waited for


def _as_server(server: str, target: str, arguments: list[str]) -> Loaded:
    before: dict[str, Any] = {}
    if server:
        prepare = {"gunicorn": _like_gunicorn, "uvicorn": _like_uvicorn}[server]
        try:
            before = prepare(arguments, target)
        except ConfigurationError as error:
            return Loaded(refusal=str(error))
        target = target or before["settings"].get("app", "")
        if target in ("", NO_APP):
            return Loaded(**before)
    try:
        loaded = load_app(target, cast("ServerName | None", server or None))
        app = loaded.app
        if isinstance(app, AwaitedApp):
            app = asyncio.run(app.made())
    except AppNotLoaded as error:
        return Loaded(error=str(error), **before)
    app, was_wrapped = unwrapped(app)
    settings = django_settings()
    return Loaded(
        loaded.interface,
        loaded.target,
        was_wrapped,
        memory_bytes=resident_bytes(),
        waits_for=sorted(_CLIENTS & sys.modules.keys()),
        static=configured_static(app),
        debug=_debug(app, settings),
        loggers=[name for name in ("gunicorn.access",) if logging.getLogger(name).handlers],
        tls_header=(getattr(settings, "SECURE_PROXY_SSL_HEADER", None) or ("",))[0],
        replaced=_replaced(before),
        **before,
    )


def _replaced(before: Mapping[str, Any]) -> list[str]:
    if "wsgifast" not in before.get("configured", {}).get("kind", ""):
        return []
    from ...workers.overrides import replaced_parts

    return replaced_parts()


def _debug(app: Any, settings: Any) -> str:
    if settings is not None and settings.DEBUG:
        return "Django's DEBUG is True"
    if getattr(getattr(app, "__self__", app), "debug", None) is True:
        return f"{type(app).__name__}.debug is True"
    return ""


# Packages by which apps ask databases and other servers, and wait meanwhile.
_CLIENTS = frozenset({
    "boto3", "cassandra", "elasticsearch", "grpc", "httpx", "ldap3", "MySQLdb", "mysql", "oracledb",
    "pika", "psycopg", "psycopg2", "pymemcache", "pymongo", "pymssql", "pymysql", "pyodbc", "redis",
    "requests",
})  # fmt: skip


def configured_static(app: Any) -> dict[str, str]:
    """Directories of static files that may be served beside an app, by their URL prefixes.

    Django's STATIC_ROOT, unless its middleware or one of its URLs serves it; Flask's static folder,
    unless functions around each request may decide who gets it, or add headers.
    """
    found: dict[str, Any] = {}
    settings = django_settings()
    if settings is not None:
        serves = any(
            word in name.lower()
            for name in [*settings.MIDDLEWARE, *settings.INSTALLED_APPS]
            for word in ("whitenoise", "servestatic", "wsgifast")
        )
        serves = serves or _has_url(settings.STATIC_URL)
        if "django.contrib.staticfiles" in settings.INSTALLED_APPS and not serves:
            found[settings.STATIC_URL] = settings.STATIC_ROOT
    flask = sys.modules.get("flask")
    app = getattr(app, "__self__", app)  # app.wsgi_app, where that was wrapped
    if flask is not None and isinstance(app, flask.Flask) and app.has_static_folder:
        around = (app.before_request_funcs, app.after_request_funcs, app.teardown_request_funcs)
        if not any(any(functions.values()) for functions in around):
            found[f"{app.static_url_path}/"] = app.static_folder
    return {
        prefix: str(folder)
        for prefix, folder in found.items()
        if str(prefix).startswith("/") and folder and os.path.isdir(folder)
    }


def _has_url(prefix: str | None) -> bool:
    """Whether one of Django's URLs is for what is below a prefix; one for everything is not."""
    from django.urls import resolve

    if not prefix:
        return False
    with contextlib.suppress(Exception):  # the app's own, of its URLs
        route: str = resolve(f"/{prefix.strip('/')}/x").route
        return route.lstrip("^/").startswith(prefix.strip("/"))
    return False


# What `wsgifast run` has defaults for, of gunicorn's settings.
_GUNICORN = (
    "worker_class", "workers", "threads", "bind", "accesslog", "logger_class", "http_protocols",
    "keepalive", "graceful_timeout", "access_log_format", "logconfig", "logconfig_dict",
    "logconfig_json", "syslog",
)  # fmt: skip
# Without a worker class, `wsgifast run` has gunicorn use FastWorker.
_PERHAPS_FAST_WORKER = {"sync", "gthread", "wsgifast.FastWorker", "wsgifast.workers.FastWorker"}
# Functions of the configuration that run before a worker imports the app.
_HOOKS = {"on_starting", "when_ready", "pre_fork", "post_fork"}


def _like_gunicorn(arguments: list[str], target: str) -> dict[str, Any]:
    """Do as gunicorn does before its worker imports the app.

    :raises ConfigurationError: if it refuses its arguments or its configuration, or ends at once,
        as with --version.
    """
    from gunicorn import SERVER_SOFTWARE
    from gunicorn.app.wsgiapp import WSGIApplication

    class Application(WSGIApplication):  # type: ignore[misc]
        def load_default_config(self) -> None:
            super().load_default_config()
            self.found: set[str] = set()
            self.has_file = False
            change = self.cfg.set

            def noted(name: str, value: object) -> None:
                change(name, value)
                self.found.add(name)

            self.cfg.set = noted

        def load_config_from_module_name_or_filename(self, location: str) -> Any:
            self.has_file = True
            return super().load_config_from_module_name_or_filename(location)

    sys.argv = ["gunicorn", *arguments, *([target] if target else [])]
    os.environ["SERVER_SOFTWARE"] = SERVER_SOFTWARE
    try:
        application = Application()
    except SystemExit as end:
        raise ConfigurationError(_explained(_last_words() or f"it ends with {end.code}")) from None
    except Exception as error:
        raise ConfigurationError(_explained(described(error))) from error
    cfg = application.cfg
    for path in filter(None, (cfg.pythonpath or "").split(",")):
        if os.path.abspath(path) not in sys.path:
            sys.path.insert(0, os.path.abspath(path))
    os.environ.update(cfg.env)
    own = {"worker_class": cfg.worker_class_str, "logger_class": str(cfg.logger_class)}
    settings = {
        name: own.get(name) or getattr(cfg, name) for name in _GUNICORN if name in application.found
    }
    for name in ("logconfig_dict",):  # it may have objects in it
        if name in settings:
            settings[name] = bool(settings[name])
    if hooks := _HOOKS & application.found:
        settings["hooks"] = sorted(hooks)
    if "control_socket_disable" in cfg.settings:  # of gunicorn 27
        own_socket = {"control_socket", "control_socket_disable"} & application.found
        settings["has_control_socket"] = bool(own_socket)
    settings["given"] = {name: _plain(cfg.settings[name].get()) for name in application.found}
    if "bind" in application.found:
        settings["given"]["bind"] = [_shown(each) for each in cfg.address]
    if application.app_uri != target:
        settings["app"] = application.app_uri
    configured = {
        "kind": cfg.worker_class_str, "workers": cfg.workers, "reload": cfg.reload,
        "uid": cfg.uid, "connections": cfg.worker_connections, "timeout": cfg.timeout,
        "keepalive": cfg.keepalive, "graceful": cfg.graceful_timeout,
        "certificate": cfg.certfile,
        "addresses": [
            each if isinstance(each, str) and not each.startswith("/") else f"unix:{each}"
            for each in cfg.bind
        ],
        "forwarded": list(cfg.forwarded_allow_ips),
        "problem": _problem_of_worker(cfg),
    }  # fmt: skip
    is_special = application.has_file or bool(os.environ.get("GUNICORN_CMD_ARGS"))
    return {"settings": settings, "is_special": is_special, "configured": configured}


def _problem_of_worker(cfg: Any) -> str:
    """Return why FastWorker would refuse its options; "" if it does not, or is not the worker."""
    if cfg.worker_class_str not in _PERHAPS_FAST_WORKER:
        return ""
    try:
        from ...workers import FastWorker
        from ...workers.options import check_settings, configure, name_module

        name_module(cfg.config)
        configure(FastWorker, FastWorker)
        check_settings(cfg)
    except WSGIFastError as error:
        return str(error)
    return ""


def _plain(value: Any) -> Any:
    """A setting's value that JSON has; None for others, such as functions."""
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str)]
    return value if isinstance(value, (str, int, float)) else None


def _shown(address: Any) -> str:
    """An address as --bind takes it."""
    if isinstance(address, tuple):
        return str(Address(address[0] or "0.0.0.0", address[1]))
    return f"fd://{address}" if isinstance(address, int) else f"unix:{address}"


def _lines() -> list[str]:
    """The last lines that were written to stderr, which is a file here."""
    sys.stderr.flush()
    size = os.fstat(2).st_size
    text = os.pread(2, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")
    return [line.strip() for line in text.split("\n") if line.strip()]


def _last_words() -> str:
    lines = _lines()
    last = lines[-1] if lines else ""
    return last.removeprefix("gunicorn: error: ").removeprefix("Error: ")


def _explained(reason: str) -> str:
    """Put the file, the setting or the variable before a reason that names the value alone."""
    for line in reversed(_lines()):
        if line.startswith(("Failed to read config file: ", "Invalid value for ")):
            return f"{line}. {reason}"
    name = "FORWARDED_ALLOW_IPS"
    value = os.environ.get(name)
    if value and any(repr(part.strip()) in reason for part in value.split(",")):
        return f"{name}={value!r} in the environment: {reason}"
    return reason


# What counts for finding the app, and where it is served.
_UVICORN = (
    "interface", "factory", "host", "port", "uds", "fd", "workers", "forwarded_allow_ips",
    "timeout_keep_alive", "timeout_graceful_shutdown", "ssl_certfile", "ssl_keyfile", "backlog",
    "limit_max_requests", "limit_max_requests_jitter", "log_level", "log_config",
)  # fmt: skip


def _like_uvicorn(arguments: list[str], target: str) -> dict[str, Any]:
    """Do as uvicorn does before it imports the app.

    :raises ConfigurationError: if it refuses its arguments, or ends at once, as with --help.
    """
    import click
    from click.core import ParameterSource
    from uvicorn.main import main as command

    try:
        words = [*arguments, target] if target else arguments
        context = command.make_context("uvicorn", words, **command.context_settings)
    except click.exceptions.Exit as end:
        raise ConfigurationError(f"it ends with {end.exit_code}") from None
    except click.ClickException as error:
        raise ConfigurationError(" ".join(error.format_message().split())) from None
    sys.argv = ["uvicorn", *arguments, target]
    values = context.params
    if values.get("app_dir") is not None:
        sys.path.insert(0, values["app_dir"])
    if values.get("env_file") is not None:
        from dotenv import load_dotenv

        load_dotenv(dotenv_path=values["env_file"])
    unset = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    settings = {
        name: values[name]
        for name in _UVICORN
        if name in values and context.get_parameter_source(name) not in unset
    }
    if not target:
        app = values["app"]
        settings["app"] = app if not values["factory"] or "(" in app else f"{app}()"
    address = f"unix:{values['uds']}" if values.get("uds") else f"{values['host']}:{values['port']}"
    trusted = values.get("forwarded_allow_ips") or os.environ.get(
        "FORWARDED_ALLOW_IPS", "127.0.0.1"
    )
    configured = {
        "kind": str(values["http"]), "reload": values["reload"],
        "workers": values["workers"] or int(os.environ.get("WEB_CONCURRENCY", 1)),
        "keepalive": values["timeout_keep_alive"],
        "graceful": values["timeout_graceful_shutdown"],
        "connections": values.get("limit_concurrency"),
        "certificate": values.get("ssl_certfile"),
        "addresses": [address],
        "forwarded": trusted.split(",") if values["proxy_headers"] else [],
    }  # fmt: skip
    return {
        "configured": configured,
        "settings": settings,
        "is_special": any(n.startswith("UVICORN_") for n in os.environ),
    }


if __name__ == "__main__":
    main()
