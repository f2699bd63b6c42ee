"""The server that `wsgifast run` starts, and the parts of its command line on both servers."""

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
from ..arguments import address_of, unix_path
from ..loading.servers import Loaded
from .environment import WORKERS
from .sizing import read_container, size

# For requests to finish at the end: Kubernetes kills 30 s after it has begun to stop a pod, which
# takes 5 s for a usual preStop. uvicorn would wait for event streams without end. With --reload a
# developer waits for it.
_GRACEFUL_S, _GRACEFUL_RELOAD_S = 20, 1
# Longer than proxies keep an idle connection to a server (60 s): they close it first, so that no
# request is sent on a connection that is being closed.
KEEP_ALIVE_S = 75


@dataclass
class Plan:
    """The server to start.

    :ivar command: the server's command line.
    :ivar environment: variables that it needs.
    :ivar decided: a sentence for people.
    :ivar bind: where it listens. None: its configuration says.
    :ivar notes: more sentences: the reasons, and the cost.
    :ivar logs_json: all that the server writes is JSON.
    """

    command: Sequence[str]
    decided: str
    environment: dict[str, str] = field(default_factory=dict)
    bind: str | None = None
    notes: list[str] = field(default_factory=list)
    logs_json: bool = False

    @property
    def shown(self) -> str:
        """The command, to be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        program = [Path(self.command[0]).name, *self.command[1:]]
        return " ".join([*variables, shlex.join(program)])


def sizing(
    options: argparse.Namespace, loaded: Loaded, *, spare: int
) -> tuple[int | None, list[str]]:
    """How many workers to ask the server for, and the reason. None: it knows.

    :param spare: how many more there are while workers are replaced.
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
    """Seconds for requests to finish when a worker ends."""
    is_reloading = options.reload or loaded.configured.get("reload")
    return _GRACEFUL_RELOAD_S if is_reloading else _GRACEFUL_S


def log_kind(options: argparse.Namespace) -> str:
    """Of the access log: "text", "json" or "off"."""
    kind: str | None = options.access_log
    return kind or ("text" if sys.stdout.isatty() else "json")


def given(options: argparse.Namespace, prefix: str, *names: str) -> list[str]:
    """The options of these names that were given, as the server has them."""
    values = {name: getattr(options, name) for name in names}
    return [f"{prefix}{name}={value}" for name, value in values.items() if value is not None]


def wrapper_arguments(
    options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of :func:`wsgifast.commands.run.wrapped` that differ from its defaults.

    :param static: directories to serve, by prefixes.
    :raises ConfigurationError: for an option that an app which is wrapped already cannot have.
    """
    found: dict[str, Any] = {"static": static} if static else {}
    found |= {name: False for name in ("compress", "etag") if getattr(options, f"no_{name}")}
    wanted = [name for name in ("request_id", "server_timing") if getattr(options, name)]
    # This one is on by default, so that it matters only for an app that is wrapped already.
    requested = wanted + ["etag"] * options.etag
    if requested and loaded.was_wrapped:
        option = requested[0]
        name = "ASGIFast" if loaded.interface == "ASGI" else "WSGIFast"
        raise ConfigurationError(
            f"--{option.replace('_', '-')}: {loaded.target} is wrapped in {name} already. Write "
            f"{name}(app, {option}=True) there, and leave the option out"
        )
    return found | dict.fromkeys(wanted, True)


def gunicorn_options(options: argparse.Namespace) -> list[str]:
    """Those of gunicorn's that the command line gives, except those after its --."""
    words = given(options, "--", "threads", "config", "certfile", "keyfile")
    if isinstance(options.workers, int):
        words.append(f"--workers={options.workers}")
    if options.bind is not None:
        # gunicorn takes a lone port for a host, and listens on all addresses where there is no
        # host.
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
