"""The process that loads an app as a server would.

    python -P -m wsgifast.commands.loading.as_server SERVER TARGET SERVER'S ARGUMENT ...

The server's own parser reads the arguments. The process changes its directory, search path and
environment like that server, loads the app, and prints the result as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, cast

from ...errors import ConfigurationError, WSGIFastError
from ...metrics.health import resident_bytes
from . import AppNotLoaded, ServerName, described, django_settings, load_app, unwrapped
from .frameworks import configured_static, debug_setting, free_paths
from .servers import PROBE_PATHS, Loaded

# The part of the log that may name the reason of an end.
_LOG_BYTES = 4000
# Packages that wait for databases and other servers.
_CLIENTS = frozenset({
    "boto3", "cassandra", "elasticsearch", "grpc", "httpx", "ldap3", "MySQLdb", "mysql", "oracledb",
    "pika", "psycopg", "psycopg2", "pymemcache", "pymongo", "pymssql", "pymysql", "pyodbc", "redis",
    "requests",
})  # fmt: skip


def main() -> None:
    """Load the app that the command line names, and print the result."""
    server, target, *arguments = sys.argv[1:]
    output = os.dup(1)
    os.dup2(2, 1)  # what the app prints is not a part of the result
    found = _as_server(server, target, arguments)
    os.write(output, json.dumps(asdict(found)).encode())
    os._exit(0)  # threads and atexit functions of the app do not delay the end


def _as_server(server: str, target: str, arguments: list[str]) -> Loaded:
    before: dict[str, Any] = {}
    if server:
        prepare = {"gunicorn": _like_gunicorn, "uvicorn": _like_uvicorn}[server]
        try:
            before = prepare(arguments, target)
        except ConfigurationError as error:
            return Loaded(refusal=str(error))
        target = target or before["named_app"]
        if not target:
            return Loaded(**before)
    try:
        loaded = load_app(target, cast("ServerName | None", server or None))
    except AppNotLoaded as error:
        return Loaded(error=str(error), **before)
    app, was_wrapped = unwrapped(loaded.app)
    settings = django_settings()
    return Loaded(
        loaded.interface,
        loaded.target,
        was_wrapped,
        memory_bytes=resident_bytes(),
        waits_for=sorted(_CLIENTS & sys.modules.keys()),
        static=configured_static(app),
        free_probes=free_paths(app, PROBE_PATHS.values(), settings is not None),
        debug=debug_setting(app),
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


# Without a worker class, `wsgifast run` has gunicorn use FastWorker.
_PERHAPS_FAST_WORKER = {"sync", "gthread", "wsgifast.FastWorker", "wsgifast.workers.FastWorker"}
# Functions of the configuration that run before a worker imports the app.
_HOOKS = {"on_starting", "when_ready", "pre_fork", "post_fork"}


def _like_gunicorn(arguments: list[str], target: str) -> dict[str, Any]:
    """Prepare the import of an app like gunicorn, and return fields of `Loaded`.

    :raises ConfigurationError: if gunicorn refuses its arguments or its configuration, or ends at
        once, as with --version.
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
    except (Exception, SystemExit) as error:
        raise ConfigurationError(_refusal(error)) from error
    cfg, found = application.cfg, application.found
    for path in filter(None, (cfg.pythonpath or "").split(",")):
        if os.path.abspath(path) not in sys.path:
            sys.path.insert(0, os.path.abspath(path))
    os.environ.update(cfg.env)
    # These values differ from the configured ones, or have another type than those of JSON.
    shown = {
        "worker_class": cfg.worker_class_str,
        "logger_class": str(cfg.logger_class),
        "logconfig_dict": bool(cfg.logconfig_dict),
    }
    own_socket = {"control_socket", "control_socket_disable"} & found
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
        # gunicorn 27 has a control socket.
        "default_socket": "control_socket_disable" in cfg.settings and not own_socket,
        **_operators(lambda: cfg.worker_class),
    }  # fmt: skip
    return {
        "settings": {n: shown[n] if n in shown else _plain(cfg.settings[n].get()) for n in found},
        "named_app": application.app_uri if application.app_uri != target else "",
        "hooks": sorted(_HOOKS & found),
        "is_special": application.has_file or bool(os.environ.get("GUNICORN_CMD_ARGS")),
        "configured": configured,
    }


def _problem_of_worker(cfg: Any) -> str:
    """Return why FastWorker would refuse its options, or "" if it accepts them or does not run."""
    if cfg.worker_class_str not in _PERHAPS_FAST_WORKER:
        return ""
    try:
        from ...workers import FastWorker
        from ...workers.options import check_settings, configure, set_config

        set_config(cfg.config)
        configure(FastWorker, FastWorker)
        check_settings(cfg)
    except WSGIFastError as error:
        return str(error)
    return ""


def _operators(load: Callable[[], Any]) -> dict[str, Any]:
    """Return the options for health checks and the drain.

    :param load: returns the class of the worker, or of uvicorn's protocol.
    """
    try:
        kind = load()
        if not hasattr(kind, "drain_delay_s"):
            return {}
        from ...workers.options import effective_value

        names = ("health_path", "ready_path", "drain_delay_s")
        return {name: effective_value(kind, name) for name in names}
    except Exception:  # noqa: BLE001 - the server reports it when it starts
        return {}


def _plain(value: Any) -> Any:
    """Return the value of a setting, or None for a type that JSON does not have."""
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str)]
    return value if isinstance(value, (str, int, float)) else None


def _refusal(error: BaseException) -> str:
    """Return gunicorn's reason, and the file, the setting or the variable that it is about."""
    sys.stderr.flush()
    size = os.fstat(2).st_size  # stderr is a file in this process
    text = os.pread(2, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    reason = described(error)
    if isinstance(error, SystemExit):
        last = lines[-1] if lines else f"it ends with {error.code}"
        reason = last.removeprefix("gunicorn: error: ").removeprefix("Error: ")
    for line in reversed(lines):
        if line.startswith(("Failed to read config file: ", "Invalid value for ")):
            return f"{line}. {reason}"
    name = "FORWARDED_ALLOW_IPS"
    value = os.environ.get(name)
    if value and any(repr(part.strip()) in reason for part in value.split(",")):
        return f"{name}={value!r} in the environment: {reason}"
    return reason


def _like_uvicorn(arguments: list[str], target: str) -> dict[str, Any]:
    """Prepare the import of an app like uvicorn, and return fields of `Loaded`.

    :raises ConfigurationError: if uvicorn refuses its arguments, or ends at once, as with --help.
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
    app = "" if target else values["app"]
    if app and values["factory"] and "(" not in app:
        app += "()"
    trusted = values.get("forwarded_allow_ips") or os.environ.get(
        "FORWARDED_ALLOW_IPS", "127.0.0.1"
    )
    kind = str(values["http"])
    module, _, name = kind.partition(":")
    uds = values.get("uds")
    configured = {
        "kind": kind, "reload": values["reload"],
        "workers": values["workers"] or int(os.environ.get("WEB_CONCURRENCY", 1)),
        "keepalive": values["timeout_keep_alive"],
        "graceful": values["timeout_graceful_shutdown"],
        "connections": values.get("limit_concurrency"),
        "certificate": values.get("ssl_certfile"),
        "addresses": [f"unix:{uds}" if uds else f"{values['host']}:{values['port']}"],
        "forwarded": trusted.split(",") if values["proxy_headers"] else [],
        **(_operators(lambda: getattr(import_module(module), name)) if name else {}),
    }  # fmt: skip
    return {
        "settings": {
            name: _plain(value)
            for name, value in values.items()
            if context.get_parameter_source(name) not in unset
        },
        "named_app": app,
        "is_special": any(n.startswith("UVICORN_") for n in os.environ),
        "configured": configured,
    }


if __name__ == "__main__":
    main()
