"""The command line of `wsgifast run`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, MissingExtra
from ...metrics.setup import VARIABLE as METRICS
from ...metrics.setup import metrics_address
from ...sockets.client_limits import LIMITS, parse_limit, variable
from ..arguments import (
    APP_HELP,
    DEFAULT_BIND,
    STATUS_PART_FAILED,
    add_parser,
    address_of,
    cannot_listen,
    check_certificate,
    check_writable,
    count,
    option,
)
from ..doctor.formats import as_json
from ..loading import absolute
from ..loading.servers import Loaded, check_installed, check_one_app, load_as, load_for
from ..terminal import show
from . import ARGUMENTS
from .check import as_lines, check_deployment
from .sizing import read_container, size, temporary_note

# Of an app that computes, and of one that waits for databases and other servers: while it waits,
# its threads do not compete for the interpreter.
_THREADS, _THREADS_OF_CLIENTS = 4, 12
_FAST_WORKER = "wsgifast.workers.FastWorker"
# Of others it is not known whether they have threads.
_WITH_THREADS = (_FAST_WORKER, "gthread")
# For requests to finish at the end: Kubernetes kills 30 s after it has begun to stop a pod, which
# takes 5 s for a usual preStop. uvicorn would wait for event streams without end. With --reload a
# developer waits for it.
_GRACEFUL_S, _GRACEFUL_RELOAD_S = 20, 1
# Longer than proxies keep an idle connection to a server (60 s): they close it first, so that no
# request is sent on a connection that is being closed.
_KEEP_ALIVE_S = 75

# SD_LISTEN_FDS_START of sd_listen_fds(3).
_FIRST_SOCKET = 3

_EXAMPLES = """\
  wsgifast run shop.wsgi:application
  wsgifast run 'shop:create_app()' --bind 0.0.0.0:8000 --workers 2 --threads 8
  wsgifast run shop.settings --static /static/=build/static
  wsgifast run api:app --reload
  wsgifast run shop.wsgi --metrics 127.0.0.1:9100 --certfile cert.pem --keyfile key.pem
  wsgifast run --check -- gunicorn -k gthread --threads 4 shop.wsgi
  wsgifast run api:app -- --app-dir src --env-file .env
  wsgifast run shop.wsgi -- --max-requests 10000 --access-logfile -
"""


@dataclass
class Plan:
    """The server to start.

    :ivar command: the server's command line.
    :ivar environment: variables that it needs.
    :ivar decided: a sentence for people.
    :ivar bind: where it listens; None: its configuration says.
    :ivar notes: more sentences: the reasons, and what it costs.
    """

    command: Sequence[str]
    decided: str
    environment: dict[str, str] = field(default_factory=dict)
    bind: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The command, to be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        program = [Path(self.command[0]).name, *self.command[1:]]
        return " ".join([*variables, shlex.join(program)])


def add_command(commands: Any) -> None:
    """Add `run` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "run",
        help="wrap an app, and serve it on gunicorn with FastWorker or on uvicorn",
        description="Wrap an app and serve it: a WSGI app on gunicorn with FastWorker, an ASGI app "
        "on uvicorn with asgifast's protocol. Options after -- are passed to that server. The app "
        "is found like the server finds it, by options, configuration and environment.",
        examples=_EXAMPLES,
    )
    parser.add_argument("app", nargs="?", help=APP_HELP)
    bind = (
        f"address to listen on, or unix:PATH (default: {DEFAULT_BIND}, or 0.0.0.0:$PORT if PORT is "
        "set)"
    )
    option(parser, "--bind", "HOST:PORT", bind)
    workers = (
        "number of processes (default: $WEB_CONCURRENCY, or else auto: as many as the CPUs and the "
        "memory of the container allow)"
    )
    option(parser, "--workers", "N", workers, type=_workers)
    threads = (
        f"threads of each process, for WSGI apps (default: {_THREADS}, or {_THREADS_OF_CLIENTS} if "
        "the app has imported a client of databases or other servers)"
    )
    option(parser, "--threads", "N", threads, type=count)
    static = "also serve a directory, as in /static/=build"
    option(parser, "--static", "PREFIX=DIR", static, repeated=True, type=_static)
    conventional = (
        "do not serve Django's STATIC_ROOT or Flask's static folder automatically (default: serve "
        "them, unless the app's URLs, middleware or hooks are involved)"
    )
    option(parser, "--no-static", help=conventional)
    option(parser, "--no-compress", help="do not compress responses and files")
    access_log = (
        "log each request to stdout. With json the error log is in JSON, too (default: text on a "
        "terminal, else json)"
    )
    option(parser, "--access-log", "", access_log, choices=("text", "json", "off"))
    metrics = "serve /metrics, /readyz and /livez for all processes at this address"
    option(parser, "--metrics", "HOST:PORT", metrics)
    option(parser, "--reload", help="restart when code changes, for development")
    certfile = "certificate for TLS. With h2 installed, a WSGI app is also served over HTTP/2"
    option(parser, "--certfile", "FILE", certfile)
    option(parser, "--keyfile", "FILE", "private key of the certificate")
    for name, limit in LIMITS.items():
        value = {"bytes": "BYTES", "s": "SECONDS"}.get(name.rpartition("_")[2], "NUMBER")
        option(parser, _flag(name), value, limit.help, type=partial(_limit, name))
    config = "gunicorn's configuration file. Its settings override the defaults of this command"
    option(parser, "--config", "FILE", config)
    check = (
        "check the deployment and exit, with status 1 if a finding is wrong or slow. A gunicorn or "
        "uvicorn command after -- is checked in its place"
    )
    option(parser, "--check", help=check)
    option(parser, "--json", help="with --check: print the findings as JSON")
    parser.usage = "wsgifast run [OPTION ...] APP [-- SERVER'S OPTION ...]"
    parser.set_defaults(run=_run, takes_rest=True)


def _run(options: argparse.Namespace) -> int:
    if options.check:
        return _check(options)
    if options.json:
        raise ConfigurationError("--json goes with --check")
    plan = planned(options)
    check_certificate(options.certfile, options.keyfile)
    if plan.bind is not None:
        _check_address(plan.bind)
    show("\n  ".join([plan.decided, *plan.notes, plan.shown]))
    os.environ.update(plan.environment)
    # In place of this process: signals, supervisors and exit statuses are the server's own.
    return os.execv(plan.command[0], list(plan.command))


def _check(options: argparse.Namespace) -> int:
    if options.app is None and options.rest:
        command, environment = options.rest, {}
    else:
        plan = planned(options)
        command, environment = plan.command, dict(plan.environment)
    report = check_deployment(command, environment)
    show(as_json(report) if options.json else "\n".join(as_lines(report)))
    return STATUS_PART_FAILED if report.of("wrong", "slow") else 0


def planned(options: argparse.Namespace) -> Plan:
    """Load the app as its server will, and decide how to start that one.

    :raises AppNotLoaded: if the app cannot be imported or made.
    :raises MissingExtra: if a package of the server's extra is not installed.
    :raises ConfigurationError: for an option of the other server, or one that names another app.
    """
    for _, directory in options.static:
        if not os.path.isdir(directory):
            raise ConfigurationError(f"--static {directory}: there is no such directory")
    # The server, or the app, may change the working directory.
    for name in ("certfile", "keyfile", "config"):
        if (path := getattr(options, name)) and not path.startswith("python:"):
            if not os.path.exists(path) or os.path.isdir(path):  # it may be a device
                raise ConfigurationError(f"--{name} {path}: there is no such file")
            setattr(options, name, os.path.abspath(path))
    if options.metrics is not None:
        metrics_address(options.metrics, "--metrics")
        if importlib.util.find_spec("prometheus_client") is None:  # uvicorn would exit with 0
            raise MissingExtra("--metrics", "prometheus_client", "prometheus")
    if options.app is None:
        options.app = _configured_app(options)
    options.app = absolute(options.app)
    server, loaded = load_for(options.app, _gunicorn_options(options), options.rest)
    by_convention = {} if options.no_static else loaded.static
    static = {**by_convention, **dict(options.static)}
    plan = (plan_uvicorn if server == "uvicorn" else plan_gunicorn)(options, loaded, static)
    if by_convention and not options.static:
        folders = ", ".join(f"{prefix} from {folder}" for prefix, folder in static.items())
        plan.notes.append(f"static files by convention: {folders} (--no-static serves none)")
    if (temporary := temporary_note()) is not None:
        plan.notes.append(temporary)
    if options.metrics is not None:
        plan.environment[METRICS] = options.metrics
    for name in LIMITS:
        if (limit := getattr(options, name)) is not None:
            plan.environment[variable(name)] = limit
    return plan


def _sizing(
    options: argparse.Namespace, loaded: Loaded, *, spare: int
) -> tuple[int | None, list[str]]:
    """How many workers to ask the server for, and the reason; None: it knows.

    :param spare: how many more there are while workers are replaced.
    """
    if options.workers not in (None, "auto"):
        return options.workers, []
    if options.workers is None and "workers" in loaded.settings:
        return None, []
    if options.workers is None and (given := os.environ.get("WEB_CONCURRENCY")):
        return None, [f"workers: WEB_CONCURRENCY={given}"]
    if options.reload:
        return None, ["1 worker: --reload is for development"]
    workers, reason = size(read_container(), loaded.memory_bytes, spare=spare)
    return workers, [reason]


def _log_kind(options: argparse.Namespace) -> str:
    """Of the access log: "text", "json" or "off"."""
    kind: str | None = options.access_log
    return kind or ("text" if sys.stdout.isatty() else "json")


def _has_sockets() -> bool:
    """Whether systemd passes listening sockets to this process (sd_listen_fds(3))."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and "LISTEN_FDS" in os.environ


def _default_bind() -> str:
    """As the platforms configure it that run a Procfile."""
    port = os.environ.get("PORT")
    if port is None:
        return DEFAULT_BIND
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigurationError(f"PORT={port!r} in the environment: expected a port's number")
    return f"0.0.0.0:{port}"


def _configured_app(options: argparse.Namespace) -> str:
    """The app that the server's own configuration names.

    :raises ConfigurationError: if there is none.
    """
    if importlib.util.find_spec("gunicorn") is not None:
        found = load_as("gunicorn", "", [*_gunicorn_options(options), *options.rest])
        if app := found.settings.get("app"):
            return str(app)
    app = os.environ.get("UVICORN_APP")
    if app is None:
        raise ConfigurationError("name an app, as in: wsgifast run shop.wsgi:application")
    return app


def _gunicorn_options(options: argparse.Namespace) -> list[str]:
    """Those of gunicorn's that the command line gives, but for what follows its --."""
    given = _given(options, "--", "threads", "config", "certfile", "keyfile")
    if isinstance(options.workers, int):
        given.append(f"--workers={options.workers}")
    if options.bind is not None:
        # gunicorn takes a lone port for a host, and listens on all addresses where there is no
        # host.
        is_unix = options.bind.startswith("unix:")
        given.insert(0, f"--bind={options.bind if is_unix else address_of(options.bind)}")
    if options.reload:
        given.append("--reload")
    if options.access_log is not None:
        given += _GUNICORN_LOGS[options.access_log]
    return given


def plan_gunicorn(options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]) -> Plan:
    """gunicorn with FastWorker, as far as its own configuration does not say otherwise.

    :param static: directories to serve, by prefixes.
    :raises MissingExtra: if gunicorn is not installed.
    :raises ConfigurationError: for an option that names another app.
    """
    check_installed("gunicorn", "wsgifast run")
    found = loaded.settings
    check_one_app(loaded, options.app)
    given = _gunicorn_options(options)
    arguments = [json.dumps(options.app)]
    if static:
        arguments.append(f"static={json.dumps(static)}")
    if options.no_compress:
        arguments.append("compress=False")
    given += [*options.rest, f"wsgifast.commands.run:wrapped({', '.join(arguments)})"]
    bind = options.bind
    if "bind" not in found and not _has_sockets():
        bind = _default_bind()
        given.insert(0, f"--bind={bind}")
    workers, notes = _sizing(options, loaded, spare=1)
    worker = found.get("worker_class", _FAST_WORKER)
    threads = found.get("threads")
    if threads is None and worker != "sync":  # which gunicorn replaces by gthread if it has more
        threads = _THREADS
        if loaded.waits_for:
            threads = _THREADS_OF_CLIENTS
            notes.append(f"{threads} threads: the app waits for {', '.join(loaded.waits_for)}")
        given.insert(0, f"--threads={threads}")
    if "worker_class" not in found:
        given.insert(0, f"--worker-class={worker}")
    if "keepalive" not in found and worker == _FAST_WORKER:  # where an idle one takes no thread
        given.insert(0, f"--keep-alive={_KEEP_ALIVE_S}")
    if "graceful_timeout" not in found:
        given.insert(0, f"--graceful-timeout={_GRACEFUL_S}")
    if options.access_log is None and not {"accesslog", "logger_class"} & set(found):
        given[:0] = _GUNICORN_LOGS[_log_kind(options)]
    if options.certfile and "http_protocols" not in found and importlib.util.find_spec("h2"):
        given.insert(0, "--http-protocols=h2,h1")
    if workers is not None and workers != options.workers:
        given.insert(0, f"--workers={workers}")
    decided = f"{loaded.target} is a WSGI app: gunicorn with {worker.rpartition('.')[2]}"
    if worker in _WITH_THREADS:
        decided += f", {threads} thread{'s' * (threads != 1)}"
    return Plan([*_program("gunicorn"), *given], decided, bind=bind, notes=notes)


def plan_uvicorn(options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]) -> Plan:
    """uvicorn with asgifast's protocol.

    :param static: directories to serve, by prefixes.
    :raises MissingExtra: if a package of the extra is not installed.
    :raises ConfigurationError: for an option that only gunicorn has, or not for this app.
    """
    check_installed("uvicorn", "wsgifast run")
    for name in ("threads", "config"):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"--{name} is gunicorn's, and {loaded.target} is an ASGI app: leave it out"
            )
    interface = loaded.settings.get("interface", "auto")
    if interface == "asgi2" or (interface == "wsgi" and loaded.interface == "ASGI"):
        raise ConfigurationError(
            f"--interface {interface}: {loaded.target} is an ASGI app: leave it out"
        )
    bind, where = options.bind, []
    if bind is None and not {"host", "port", "uds", "fd"} & set(loaded.settings):
        if _has_sockets():
            where = [f"--fd={_FIRST_SOCKET}"]
        else:
            bind = _default_bind()
    if bind is not None:
        where = _uvicorn_address(bind)
    command = [
        *_program("uvicorn"),
        "--http=asgifast.uvicorn:HttpToolsProtocol",
        *where,
        *_given(options, "--ssl-", "certfile", "keyfile"),
    ]
    workers, notes = _sizing(options, loaded, spare=0)
    if workers is not None:
        command.append(f"--workers={workers}")
    is_trusted = "forwarded_allow_ips" in loaded.settings or "FORWARDED_ALLOW_IPS" in os.environ
    if bind is not None and bind.startswith("unix:") and not is_trusted:
        # The socket's permissions decide which clients may connect, as under gunicorn.
        command.append("--forwarded-allow-ips=*")
    if options.reload:
        command.append("--reload")
    if "timeout_keep_alive" not in loaded.settings:
        command.append(f"--timeout-keep-alive={_KEEP_ALIVE_S}")
    if "timeout_graceful_shutdown" not in loaded.settings:
        graceful_s = _GRACEFUL_RELOAD_S if options.reload else _GRACEFUL_S
        command.append(f"--timeout-graceful-shutdown={graceful_s}")
    command += [*options.rest, "--factory", "wsgifast.commands.run:wrapped_by_environment"]
    arguments: dict[str, Any] = {"target": options.app}
    if static:
        arguments["static"] = static
    if options.no_compress:
        arguments["compress"] = False
    log_kind = _log_kind(options)
    if log_kind == "json":  # in text it is uvicorn's default
        arguments["json_log"] = True
    elif log_kind == "off":
        command.insert(-2, "--no-access-log")
    of = "an ASGI" if loaded.interface == "ASGI" else "a WSGI"
    decided = f"{loaded.target} is {of} app: uvicorn with asgifast's protocol"
    if options.body_limit_bytes is None and not os.environ.get(variable("body_limit_bytes")):
        notes.append(f"request bodies have no limit ({_flag('body_limit_bytes')})")
    return Plan(command, decided, {ARGUMENTS: json.dumps(arguments)}, bind, notes)


_GUNICORN_LOGS = {
    "off": [],
    "text": ["--access-logfile=-"],
    "json": ["--access-logfile=-", "--logger-class=wsgifast.workers.JSONLogger"],
}


def _given(options: argparse.Namespace, prefix: str, *names: str) -> list[str]:
    """The options of these names that were given, as the server has them."""
    values = {name: getattr(options, name) for name in names}
    return [f"{prefix}{name}={value}" for name, value in values.items() if value is not None]


def _program(name: str) -> list[str]:
    """The server's own script, which can start itself again; else its module."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", name]


def _uvicorn_address(bind: str) -> list[str]:
    if bind.startswith("unix:"):
        return [f"--uds={bind.removeprefix('unix:')}"]
    address = address_of(bind)
    return [f"--host={address.host}", f"--port={address.port}"]


def _check_address(bind: str) -> None:
    """Report at once what the server would retry ten times.

    :raises WSGIFastError: if it is not possible to listen there.
    """
    if bind.startswith("unix:"):
        check_writable("--bind", bind.removeprefix("unix:"))
        return
    try:
        address_of(bind).check_free()
    except OSError as error:
        raise cannot_listen(bind, error) from None


def _workers(text: str) -> int | str:
    return text if text == "auto" else count(text, ", or auto")


def _flag(name: str) -> str:
    """The option of the command line for one of LIMITS."""
    return f"--{name.replace('_', '-')}"


def _limit(name: str, text: str) -> str:
    try:
        parse_limit(name, text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _static(text: str) -> tuple[str, str]:
    prefix, found, directory = text.partition("=")
    if not found or not prefix.startswith("/") or not directory:
        raise argparse.ArgumentTypeError(f"{text!r}: expected /PREFIX/=DIRECTORY")
    return prefix, os.path.abspath(directory)  # as files, see planned()
