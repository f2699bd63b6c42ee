"""`wsgifast run` of a WSGI app: gunicorn's command line."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigurationError
from ...server.http2 import check_h2
from ..loading.servers import Loaded, check_installed, check_one_app
from .environment import default_bind, has_sockets
from .plan import (
    GUNICORN_LOGS,
    KEEP_ALIVE_S,
    Plan,
    graceful_s,
    gunicorn_options,
    log_kind,
    sizing,
    wrapper_arguments,
)

# Of an app that computes, and of one that waits for databases and other servers: while it waits,
# its threads do not compete for the interpreter.
THREADS, THREADS_OF_CLIENTS = 4, 12
_FAST_WORKER = "wsgifast.workers.FastWorker"
# Of others it is not known whether they have threads.
_WITH_THREADS = (_FAST_WORKER, "gthread")
_JSON_LOGGER = "wsgifast.workers.JSONLogger"


def plan_gunicorn(options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]) -> Plan:
    """gunicorn with FastWorker, as far as its own configuration does not say otherwise.

    :param static: directories to serve, by prefixes.
    :raises MissingExtra: if gunicorn is not installed.
    :raises ConfigurationError: for an option that names another app, and for less than one worker.
    """
    check_installed("gunicorn", "wsgifast run")
    found = loaded.settings
    check_one_app(loaded, options.app)
    if found.get("workers", 1) < 1:
        raise ConfigurationError(
            f"workers={found['workers']} in gunicorn's configuration: it would answer nobody; "
            "write a whole number of at least 1"
        )
    logs, logs_json = _logs(options, loaded)
    command = gunicorn_options(options)
    given = wrapper_arguments(options, loaded, static)
    if logs_json:
        given["json_log"] = True
    arguments = [json.dumps(options.app)]
    for name, value in given.items():
        # Double quotes need no escapes in a shell's single quotes.
        arguments.append(f"{name}={json.dumps(value) if name == 'static' else value}")
    command += [*options.rest, f"wsgifast.commands.run:wrapped({', '.join(arguments)})"]
    bind = options.bind
    if "bind" not in found and not has_sockets():
        bind = default_bind()
        command.insert(0, f"--bind={bind}")
    workers, notes = sizing(options, loaded, spare=1)
    worker = found.get("worker_class", _FAST_WORKER)
    if "wsgifast" in worker and (problem := loaded.configured.get("problem")):
        raise ConfigurationError(problem)
    threads = found.get("threads")
    if threads is None and worker != "sync":  # which gunicorn replaces by gthread if it has more
        threads = THREADS
        if loaded.waits_for:
            threads = THREADS_OF_CLIENTS
            notes.append(f"{threads} threads: the app waits for {', '.join(loaded.waits_for)}")
        command.insert(0, f"--threads={threads}")
    if "worker_class" not in found:
        command.insert(0, f"--worker-class={worker}")
    if "keepalive" not in found and worker == _FAST_WORKER:  # where an idle one takes no thread
        command.insert(0, f"--keep-alive={KEEP_ALIVE_S}")
    if "graceful_timeout" not in found:
        command.insert(0, f"--graceful-timeout={graceful_s(options, loaded)}")
    if loaded.configured.get("default_socket"):  # it needs a home directory to write to
        command.insert(0, "--no-control-socket")
    command[:0] = logs
    if options.certfile and "http_protocols" not in found and importlib.util.find_spec("h2"):
        try:
            check_h2()
            command.insert(0, "--http-protocols=h2,h1")
        except ConfigurationError as error:
            notes.append(f"HTTP/1.1 alone. {error}")
    if workers is not None and workers != options.workers:
        command.insert(0, f"--workers={workers}")
    decided = f"{loaded.target} is a WSGI app: gunicorn with {worker.rpartition('.')[2]}"
    if worker in _WITH_THREADS:
        decided += f", {threads} thread{'s' * (threads != 1)}"
    return Plan([*_program(), *command], decided, bind=bind, notes=notes, logs_json=logs_json)


def _logs(options: argparse.Namespace, loaded: Loaded) -> tuple[list[str], bool]:
    """gunicorn's options for its logs, and whether these are in JSON.

    The user's own settings for them stay: JSON inside another format is of no use.
    """
    found = loaded.settings
    if options.access_log is not None or "logger_class" in found:
        logger = found.get("logger_class", "")
        return [], options.access_log != "off" and _JSON_LOGGER in logger
    if "accesslog" in found or any(found.get(name) for name in _OWN_LOGS):
        return [], False
    if found.get("access_log_format") or "gunicorn.access" in loaded.loggers:
        return GUNICORN_LOGS["text" if log_kind(options) == "json" else log_kind(options)], False
    return GUNICORN_LOGS[log_kind(options)], log_kind(options) == "json"


# gunicorn's settings by which an access log goes elsewhere, in a format of its own.
_OWN_LOGS = ("logconfig", "logconfig_dict", "logconfig_json", "syslog")


def _program() -> list[str]:
    """Return gunicorn's own script, which can start itself again, or its module."""
    script = Path(sys.executable).with_name("gunicorn")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "gunicorn"]
