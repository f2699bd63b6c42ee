"""The process that loads an app as a server would.

    python -c START wsgifast.commands.loading.as_server SERVER TARGET SERVER'S ARGUMENT ...

It has the server's own parser read the arguments. It changes the directory, search path and
environment as that server does, loads the app, and prints the result as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, cast

from ...errors import ConfigurationError, WSGIFastError
from ...metrics.health import resident_bytes
from ...server_options import options_of_environment
from ...sockets.options import Address
from . import AppNotLoaded, AwaitedApp, ServerName, described, django_settings, load_app, unwrapped
from .paths import PROBE_PATHS, free_paths
from .servers import NO_APP, Loaded

# How much of the log is read for the reason of an end.
_LOG_BYTES = 4000


def main() -> None:
    """Load the app that the command line names, and print the result."""
    server, target, *arguments = sys.argv[1:]
    output = os.dup(1)
    os.dup2(2, 1)  # whatever the app prints is no response
    found = _as_server(server, target, arguments)
    os.write(output, json.dumps(asdict(found)).encode())
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
        free_probes=free_paths(app, PROBE_PATHS.values(), settings is not None),
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

    Django's STATIC_ROOT is left out if its middleware or one of its URLs serves it. Flask's static
    folder is left out if functions around each request may decide who gets it, or add headers.
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
    """Return whether one of Django's URLs is below a prefix. A URL for everything is not."""
    from django.urls import resolve

    if not prefix:
        return False
    with contextlib.suppress(Exception):  # the app's own, of its URLs
        route: str = resolve(f"/{prefix.strip('/')}/x").route
        return route.lstrip("^/").startswith(prefix.strip("/"))
    return False


# The settings of gunicorn that have defaults in `wsgifast run`.
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
        **_operators(cfg),
    }  # fmt: skip
    is_special = application.has_file or bool(os.environ.get("GUNICORN_CMD_ARGS"))
    return {"settings": settings, "is_special": is_special, "configured": configured}


def _problem_of_worker(cfg: Any) -> str:
    """Return why FastWorker would refuse its options. "" if it does not, or is not the worker."""
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


_OPERATORS = ("health_path", "ready_path", "drain_delay_s")


def _operators(cfg: Any) -> dict[str, Any]:
    """Return FastWorker's options for health checks and the drain."""
    try:
        worker = cfg.worker_class
        if not hasattr(worker, "drain_delay_s"):
            return {}
        from ...workers.options import outside_value

        return {name: outside_value(worker, name) for name in _OPERATORS}
    except Exception:  # noqa: BLE001 - it is reported when gunicorn starts
        return {}


def _operators_of_protocol(kind: str) -> dict[str, Any]:
    """Return the same options of one of asgifast's protocols."""
    if "asgifast" not in kind:
        return {}
    module, _, name = kind.partition(":")
    variables = options_of_environment()
    try:
        protocol = getattr(import_module(module), name)
        return {each: variables.get(each, getattr(protocol, each)) for each in _OPERATORS}
    except Exception:  # noqa: BLE001 - it is reported when uvicorn starts
        return {}


def _plain(value: Any) -> Any:
    """A setting's value that JSON has. None for others, such as functions."""
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


# The settings that find the app, and those of its address.
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
        **_operators_of_protocol(str(values["http"])),
    }  # fmt: skip
    return {
        "configured": configured,
        "settings": settings,
        "is_special": any(n.startswith("UVICORN_") for n in os.environ),
    }


if __name__ == "__main__":
    main()
