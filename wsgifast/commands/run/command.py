"""The command line of `wsgifast run`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import ConfigurationError, MissingExtra
from ...metrics.setup import VARIABLE as METRICS
from ...metrics.setup import metrics_address
from ...server_options import SHARED, check_probe_paths
from ..arguments import (
    APP_HELP,
    DEFAULT_BIND,
    STATUS_PART_FAILED,
    add_parser,
    address_of,
    cannot_listen,
    check_certificate,
    check_unix_path,
    count,
    log_line,
    option,
    unix_path,
)
from ..doctor.formats import as_json
from ..doctor.model import SEVERITIES
from ..loading import absolute
from ..loading.servers import PROBE_PATHS, Loaded, load_as, load_for
from ..terminal import show
from .check import as_lines, check_deployment
from .gunicorn_plan import THREADS, THREADS_IF_WAITING, plan_gunicorn
from .plan import Plan, check_environment, gunicorn_options, log_kind
from .sizing import temporary_note
from .uvicorn_plan import plan_uvicorn

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


def add_command(commands: Any) -> None:
    """Add `run` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "run",
        help="serve an app with wsgifast, on gunicorn or uvicorn",
        description="Serve an app with wsgifast's middleware: a WSGI app on gunicorn with "
        "FastWorker, an ASGI app on uvicorn with asgifast's protocol. Options after -- are passed "
        "to the server. If the server's options, configuration or environment name a directory for "
        "imports, your app is imported from this directory.",
        examples=_EXAMPLES,
    )
    parser.add_argument("app", nargs="?", help=APP_HELP)
    server = parser.add_argument_group("server")
    bind = (
        f"address to listen on, or unix:PATH (default: {DEFAULT_BIND}, or 0.0.0.0:$PORT if PORT is "
        "set)"
    )
    option(server, "--bind", "HOST:PORT", bind)
    workers = (
        "number of processes, or auto: as many as the CPUs and the memory of the container allow "
        "(default: $WEB_CONCURRENCY, or auto)"
    )
    option(server, "--workers", "N", workers, type=_workers)
    threads = (
        f"threads of each process, for WSGI apps (default: {THREADS}, or {THREADS_IF_WAITING} for "
        "an app that imports a database driver or an HTTP client)"
    )
    option(server, "--threads", "N", threads, type=count)
    certfile = (
        "certificate for TLS. If a supported version of h2 is installed, a WSGI app is also "
        "served over HTTP/2"
    )
    option(server, "--certfile", "FILE", certfile)
    option(server, "--keyfile", "FILE", "private key of the certificate")
    option(server, "--reload", help="restart when code changes, for development")
    config = "gunicorn's configuration file. Its settings replace the defaults of wsgifast run"
    option(server, "--config", "FILE", config)

    responses = parser.add_argument_group("responses")
    static = "also serve a directory, as in /static/=build"
    option(responses, "--static", "PREFIX=DIR", static, repeated=True, type=_static)
    conventional = (
        "do not serve Django's STATIC_ROOT or Flask's static folder. By default wsgifast run "
        "serves these files, unless the app serves them itself"
    )
    option(responses, "--no-static", help=conventional)
    option(responses, "--no-compress", help="do not compress responses and files")
    tags = "add an ETag to responses in memory, and respond to If-None-Match with 304 (default)"
    either = responses.add_mutually_exclusive_group()
    option(either, "--etag", help=tags)
    option(either, "--no-etag", help="do not add an ETag to responses in memory")
    ids = (
        "give each request an id, from X-Request-ID or a new id. The app, the response and a JSON "
        "access log contain it"
    )
    option(responses, "--request-id", help=ids)
    times = "add a Server-Timing header with the times of the queue, the app and compression"
    option(responses, "--server-timing", help=times)

    limits = parser.add_argument_group("limits")
    operators = parser.add_argument_group("behind a load balancer")
    for name, row in SHARED.items():
        text = row.help[0].lower() + row.help[1:].removesuffix(".")
        kind, parse = row.kind, partial(_shared, name)
        group = operators if row.section == "operators" else limits
        option(group, _flag(name), kind.metavar, text, type=parse, repeated=kind.is_repeated)

    watching = parser.add_argument_group("logs and metrics")
    access_log = (
        "format of the access log on stdout. With json, the error log is in JSON, too (default: "
        "text on a terminal, otherwise json)"
    )
    option(watching, "--access-log", "", access_log, choices=("text", "json", "off"))
    metrics = "serve /metrics, /readyz and /livez for all processes at this address"
    option(watching, "--metrics", "HOST:PORT", metrics)

    checks = parser.add_argument_group("checks")
    check = (
        "list mistakes in the deployment. To check a command line of gunicorn or uvicorn, add it "
        "after --"
    )
    option(checks, "--check", help=check)
    option(checks, "--json", help="with --check: print the findings as JSON")
    bad = (
        "with --check: exit with status 1 if a finding has this severity or a higher one "
        "(default: slow)"
    )
    option(checks, "--fail-level", "", bad, choices=SEVERITIES)
    silence = "with --check: ignore a finding, such as WF113"
    option(checks, "--silence", "ID", silence, repeated=True)
    parser.usage = "wsgifast run [OPTION ...] APP [-- SERVER'S OPTION ...]"
    parser.set_defaults(run=_run, takes_rest=True)
    parser.logs_json = _error_is_json


def _error_is_json(words: Sequence[str]) -> bool:
    """Return whether an error in the options must be JSON, like all output of the server."""
    is_other = any(name in words for name in ("--check", "text", "off", "--help"))
    is_other |= any(f"--access-log={kind}" in words for kind in ("text", "off"))
    return not is_other and not sys.stdout.isatty()


def _run(options: argparse.Namespace) -> int:
    if options.check:
        check_environment()
        return _check(options)
    options.logs_json = options.app is not None and log_kind(options) == "json"
    check_environment(uses_port=_uses_port(options))
    for name in ("json", "fail_level", "silence"):
        if getattr(options, name):
            raise ConfigurationError(f"{_flag(name)} needs --check")
    plan = planned(options)
    options.logs_json = plan.logs_json
    check_certificate(options.certfile, options.keyfile)
    if plan.bind is not None:
        _check_address(plan.bind)
    lines = [plan.decided, *plan.notes, plan.shown]
    show("\n".join(map(log_line, lines)) if plan.logs_json else "\n  ".join(lines))
    os.environ.update(plan.environment)
    # The server replaces this process, so that it gets the signals and its exit status counts.
    return os.execv(plan.command[0], list(plan.command))


def _uses_port(options: argparse.Namespace) -> bool:
    """Return whether the address to listen on can come only from PORT."""
    others = "GUNICORN_CMD_ARGS", "UVICORN_HOST", "UVICORN_PORT", "UVICORN_UDS", "UVICORN_FD"
    return not (
        options.bind
        or options.config
        or options.rest
        or any(map(os.environ.get, others))
        or os.path.exists("gunicorn.conf.py")
    )


def _check(options: argparse.Namespace) -> int:
    if options.app is None and options.rest:
        command, environment = options.rest, {}
    else:
        plan = planned(options)
        command, environment = plan.command, dict(plan.environment)
    report = check_deployment(command, environment, options.silence)
    show(as_json(report) if options.json else "\n".join(as_lines(report)))
    return STATUS_PART_FAILED if report.reaches(options.fail_level or "slow") else 0


def planned(options: argparse.Namespace) -> Plan:
    """Load the app like its server will, and return the plan of the server.

    :raises AppNotLoaded: if the app cannot be imported or created.
    :raises MissingExtra: if a package of the server's extra is not installed.
    :raises ConfigurationError: if an option does not fit the server, or names another app.
    """
    for _, directory in options.static:
        if not os.path.isdir(directory):
            raise ConfigurationError(f"--static {directory}: there is no such directory")
    # The server, or the app, may change the working directory.
    for name in ("certfile", "keyfile", "config"):
        if (path := getattr(options, name)) and not path.startswith("python:"):
            if not os.path.exists(path) or os.path.isdir(path):  # a device is allowed
                raise ConfigurationError(f"--{name} {path}: there is no such file")
            setattr(options, name, os.path.abspath(path))
    if options.metrics is not None:
        metrics_address(options.metrics, "--metrics")
        # Without this check, uvicorn would exit with status 0.
        if importlib.util.find_spec("prometheus_client") is None:
            raise MissingExtra("--metrics", "prometheus_client", "prometheus")
    if options.app is None:
        options.app = _configured_app(options)
    options.app = absolute(options.app)
    server, loaded = load_for(options.app, gunicorn_options(options), options.rest)
    by_convention = {} if options.no_static else loaded.static
    static = {**by_convention, **dict(options.static)}
    plan = (plan_uvicorn if server == "uvicorn" else plan_gunicorn)(options, loaded, static)
    if by_convention and not options.static:
        folders = ", ".join(f"{prefix} from {folder}" for prefix, folder in static.items())
        plan.notes.append(f"static files by convention: {folders} (--no-static disables them)")
    if (temporary := temporary_note()) is not None:
        plan.notes.append(temporary)
    if options.metrics is not None:
        plan.environment[METRICS] = options.metrics
    for name, row in SHARED.items():
        if value := getattr(options, name):
            text = " ".join(value) if row.kind.is_repeated else value
            plan.environment[row.variable] = text
    _add_health_checks(plan, options, loaded)
    variables = {**os.environ, **plan.environment}
    check_probe_paths(*(variables.get(SHARED[name].variable) or None for name in PROBE_PATHS))
    return plan


def _add_health_checks(plan: Plan, options: argparse.Namespace, loaded: Loaded) -> None:
    """Add the paths of both health checks, unless they are configured or the app may use them."""
    added = []
    for name, path in PROBE_PATHS.items():
        is_set = loaded.configured.get(name) or SHARED[name].variable in os.environ
        if not (is_set or getattr(options, name)) and path in loaded.free_probes:
            plan.environment[SHARED[name].variable] = path
            added.append(path)
    if added:
        plan.notes.append(f"health checks at {' and '.join(added)}: no URL of the app matches")


def _configured_app(options: argparse.Namespace) -> str:
    """Return the app that the configuration of gunicorn or uvicorn names.

    :raises ConfigurationError: if there is no such app.
    """
    if importlib.util.find_spec("gunicorn") is not None:
        found = load_as("gunicorn", "", [*gunicorn_options(options), *options.rest])
        if found.named_app:
            return found.named_app
    app = os.environ.get("UVICORN_APP")
    if not app:
        raise ConfigurationError("name an app, as in: wsgifast run shop.wsgi:application")
    return app


def _check_address(bind: str) -> None:
    """Check an address now: the server would try ten times before it reports an error.

    :raises WSGIFastError: if no socket can listen on the address.
    """
    if (path := unix_path(bind)) is not None:
        check_unix_path(path)
        return
    try:
        address_of(bind).check_free()
    except OSError as error:
        raise cannot_listen(bind, error) from None


def _workers(text: str) -> int | str:
    return text if text == "auto" else count(text, ", or auto")


def _flag(name: str) -> str:
    """Return the option of the command line for a name of SHARED."""
    return f"--{name.replace('_', '-')}"


def _shared(name: str, text: str) -> str:
    try:
        SHARED[name].parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _static(text: str) -> tuple[str, str]:
    prefix, found, directory = text.partition("=")
    if not found or not prefix.startswith("/") or not directory:
        raise argparse.ArgumentTypeError(f"{text!r}: expected /PREFIX/=DIRECTORY")
    return prefix, os.path.abspath(directory)  # the server may change the working directory
