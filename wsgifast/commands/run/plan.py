"""The plan of `wsgifast run`: which server it starts, with which options.

This module has the parts that are the same for gunicorn and uvicorn.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ...metrics.setup import VARIABLE as METRICS
from ...metrics.setup import metrics_address
from ...server_options import options_of_environment
from ..arguments import DEFAULT_BIND, address_of, count, unix_path
from ..loading.servers import Loaded
from .sizing import read_container, size

# The most seconds in which requests may finish when the server stops. Kubernetes kills a pod after
# 30 s, of which a usual preStop takes 5 s. Without a limit, uvicorn would wait for endless event
# streams.
_GRACEFUL_S = 20
# The same with --reload: a developer waits for the restart.
_GRACEFUL_RELOAD_S = 1
# Proxies close idle connections to a server after 60 s. The server must close them later.
# Otherwise a proxy may send a request on a connection that the server closes.
KEEP_ALIVE_S = 75


# The variable with the number of workers.
WORKERS = "WEB_CONCURRENCY"
# Variables with a number. An empty one is removed, since gunicorn and uvicorn would fail.
_NUMBERS = (WORKERS, "PORT", "LISTEN_FDS", "LISTEN_PID")


@dataclass
class Plan:
    """The server to start.

    :ivar command: the command line of the server.
    :ivar decided: a sentence about the choice of the server, for the user.
    :ivar environment: the environment variables to add.
    :ivar bind: the address to listen on. None if the configuration of the server has the address.
    :ivar notes: further sentences for the user.
    :ivar logs_json: whether all output of the server is JSON.
    """

    command: Sequence[str]
    decided: str
    environment: dict[str, str] = field(default_factory=dict)
    bind: str | None = None
    notes: list[str] = field(default_factory=list)
    logs_json: bool = False

    @property
    def shown(self) -> str:
        """The command line with its variables, quoted for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        program = [Path(self.command[0]).name, *self.command[1:]]
        return " ".join([*variables, shlex.join(program)])


def sizing(
    options: argparse.Namespace, loaded: Loaded, *, spare: int
) -> tuple[int | None, list[str]]:
    """Return the number of workers for the command line, and notes with the reason.

    :param spare: the number of additional workers while workers are replaced.
    :returns: None as the number if the server's configuration or default decides.
    """
    if options.workers not in (None, "auto"):
        return options.workers, []
    if options.workers is None and "workers" in loaded.settings:
        return None, []
    if options.workers is None and (given := os.environ.get(WORKERS)):
        return None, [f"workers: {WORKERS}={given}"]
    if loaded.configured.get("reload") or options.reload:
        return None, ["1 worker: --reload is for development"]
    workers, reason = size(read_container(), loaded.memory_bytes, spare=spare)
    return workers, [reason]


def graceful_s(options: argparse.Namespace, loaded: Loaded) -> int:
    """Return the most seconds in which requests may finish when a worker ends."""
    is_reloading = options.reload or loaded.configured.get("reload")
    return _GRACEFUL_RELOAD_S if is_reloading else _GRACEFUL_S


def log_kind(options: argparse.Namespace) -> str:
    """Return the format of the access log: "text", "json" or "off"."""
    kind: str | None = options.access_log
    return kind or ("text" if sys.stdout.isatty() else "json")


def given(options: argparse.Namespace, prefix: str, *names: str) -> list[str]:
    """Return the options with these names that the user has set, for the server.

    :param prefix: the start of the server's options, such as "--ssl-".
    """
    values = {name: getattr(options, name) for name in names}
    return [f"{prefix}{name}={value}" for name, value in values.items() if value is not None]


def wrapper_arguments(
    options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of :func:`wsgifast.commands.run.wrapped` that differ from its defaults.

    :param static: directories to serve, by their prefixes.
    :raises ConfigurationError: if such an option, or --etag, is set for an app that is wrapped.
    """
    found: dict[str, Any] = {"static": static} if static else {}
    found |= {name: False for name in ("compress", "etag") if getattr(options, f"no_{name}")}
    wanted = [name for name in ("request_id", "server_timing") if getattr(options, name)]
    # --etag is the default, so it is not returned. For a wrapped app it has no effect.
    requested = wanted + ["etag"] * options.etag
    if requested and loaded.was_wrapped:
        option = requested[0]
        name = "ASGIFast" if loaded.interface == "ASGI" else "WSGIFast"
        raise ConfigurationError(
            f"--{option.replace('_', '-')}: {loaded.target} is wrapped in {name} already. Write "
            f"{name}(app, {option}=True) in your code, and remove the option"
        )
    return found | dict.fromkeys(wanted, True)


def gunicorn_options(options: argparse.Namespace) -> list[str]:
    """Return the options for gunicorn from the command line, except those after --."""
    words = given(options, "--", "threads", "config", "certfile", "keyfile")
    if isinstance(options.workers, int):
        words.append(f"--workers={options.workers}")
    if options.bind is not None:
        # The whole address: gunicorn would read a single port as a host. Without a host, gunicorn
        # would listen on all addresses.
        is_unix = unix_path(options.bind) is not None
        words.insert(0, f"--bind={options.bind if is_unix else address_of(options.bind)}")
    if options.reload:
        words.append("--reload")
    if options.access_log is not None:
        words += GUNICORN_LOGS[options.access_log]
    return words


GUNICORN_LOGS = {
    "off": [],
    "text": ["--access-logfile=-"],
    "json": ["--access-logfile=-", "--logger-class=wsgifast.workers.JSONLogger"],
}


def check_environment(*, uses_port: bool = False) -> None:
    """Remove empty variables, and check the values of all others that `wsgifast run` uses.

    :param uses_port: whether PORT is used, because no option and no configuration has an address.
    :raises ConfigurationError: if a variable has an invalid value.
    """
    for name in _NUMBERS:
        if not os.environ.get(name, "").strip():
            os.environ.pop(name, None)
    if (workers := os.environ.get(WORKERS)) is not None:
        try:
            count(workers.strip())
        except argparse.ArgumentTypeError:
            raise ConfigurationError(
                f"{WORKERS}={workers!r} in the environment: expected a whole number of at least 1"
            ) from None
    for name in ("LISTEN_FDS", "LISTEN_PID"):
        text = os.environ.get(name, "0")
        if not (text.isascii() and text.isdigit()):
            raise ConfigurationError(f"{name}={text!r} in the environment: expected a whole number")
    if uses_port and not has_sockets():
        default_bind()
    options_of_environment()
    if metrics := os.environ.get(METRICS):
        metrics_address(metrics)


def has_sockets() -> bool:
    """Return whether systemd passes listening sockets to this process (sd_listen_fds(3))."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and "LISTEN_FDS" in os.environ


def default_bind() -> str:
    """Return the default of --bind. Platforms that run a Procfile set PORT.

    :raises ConfigurationError: if PORT is not a valid port.
    """
    port = os.environ.get("PORT")
    if port is None:
        return DEFAULT_BIND
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigurationError(f"PORT={port!r} in the environment: expected a port number")
    return f"0.0.0.0:{port}"
