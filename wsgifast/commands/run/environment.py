"""Check the environment variables of `wsgifast run` before it loads the app."""

from __future__ import annotations

import argparse
import os

from ...errors import ConfigurationError
from ...metrics.setup import VARIABLE as METRICS
from ...metrics.setup import metrics_address
from ...server_options import options_of_environment
from ..arguments import DEFAULT_BIND, count

WORKERS = "WEB_CONCURRENCY"
# Variables with a number. An empty one is removed, since gunicorn and uvicorn would fail.
_NUMBERS = (WORKERS, "PORT", "LISTEN_FDS", "LISTEN_PID")


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
