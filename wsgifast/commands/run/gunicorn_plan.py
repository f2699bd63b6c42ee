"""The plan of `wsgifast run` for a WSGI app: gunicorn, with FastWorker by default."""

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
from .plan import (
    GUNICORN_LOGS,
    KEEP_ALIVE_S,
    Plan,
    default_bind,
    graceful_s,
    gunicorn_options,
    has_sockets,
    log_kind,
    sizing,
    wrapper_arguments,
)

# The threads of a process.
THREADS = 4
# The number of threads if the app waits for databases or other servers. A waiting thread releases
# the GIL.
THREADS_IF_WAITING = 12
_FAST_WORKER = "wsgifast.workers.FastWorker"
# The workers that are known to use threads.
_WITH_THREADS = (_FAST_WORKER, "gthread")
_JSON_LOGGER = "wsgifast.workers.JSONLogger"


def plan_gunicorn(options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]) -> Plan:
    """Return the plan for gunicorn. Settings of gunicorn's configuration take precedence.

    :param static: maps URL prefixes to directories with static files.
    :raises MissingExtra: if gunicorn is not installed.
    :raises ConfigurationError: if gunicorn's options name another app, if there would be no worker,
        or if the configuration is invalid.
    """
    check_installed("gunicorn", "wsgifast run")
    found = loaded.settings
    check_one_app(loaded, options.app)
    if found.get("workers", 1) < 1:
        raise ConfigurationError(
            f"workers={found['workers']} in gunicorn's configuration: no worker would answer "
            "requests. Write a whole number of at least 1"
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
    if threads is None and worker != "sync":  # given threads, gunicorn replaces sync by gthread
        threads = THREADS
        if loaded.waits_for:
            threads = THREADS_IF_WAITING
            notes.append(f"{threads} threads: the app waits for {', '.join(loaded.waits_for)}")
        command.insert(0, f"--threads={threads}")
    if "worker_class" not in found:
        command.insert(0, f"--worker-class={worker}")
    # Idle connections need no thread of FastWorker.
    if "keepalive" not in found and worker == _FAST_WORKER:
        command.insert(0, f"--keep-alive={KEEP_ALIVE_S}")
    if "graceful_timeout" not in found:
        command.insert(0, f"--graceful-timeout={graceful_s(options, loaded)}")
    # The default control socket is disabled: gunicorn cannot create it if the home directory is not
    # writable.
    if loaded.configured.get("default_socket"):
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
    """Return gunicorn's options for its logs, and whether all logs are in JSON.

    Logs that the user has configured stay unchanged, because JSON inside another format would not
    be readable.
    """
    found = loaded.settings
    if options.access_log is not None or "logger_class" in found:
        logger = found.get("logger_class", "")
        return [], options.access_log != "off" and _JSON_LOGGER in logger
    if "accesslog" in found or any(found.get(name) for name in _LOG_SETTINGS):
        return [], False
    if found.get("access_log_format") or "gunicorn.access" in loaded.loggers:
        return GUNICORN_LOGS["text" if log_kind(options) == "json" else log_kind(options)], False
    return GUNICORN_LOGS[log_kind(options)], log_kind(options) == "json"


# gunicorn's settings for logs with another destination or format.
_LOG_SETTINGS = ("logconfig", "logconfig_dict", "logconfig_json", "syslog")


def _program() -> list[str]:
    """Return the start of the command line: gunicorn's script, or its module without the script.

    After SIGUSR2, gunicorn runs the script again.
    """
    script = Path(sys.executable).with_name("gunicorn")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "gunicorn"]
