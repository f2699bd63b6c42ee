"""The plan of `wsgifast run` for an ASGI app: uvicorn with asgifast's supervisor and protocol."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping

from ...errors import ConfigurationError
from ...server_options import SHARED
from ..arguments import address_of, unix_path
from ..loading.servers import MODULE, Loaded, check_installed
from . import ARGUMENTS
from .plan import (
    KEEP_ALIVE_S,
    Plan,
    default_bind,
    given,
    graceful_s,
    has_sockets,
    log_kind,
    sizing,
    wrapper_arguments,
)

# SD_LISTEN_FDS_START of sd_listen_fds(3).
_FIRST_SOCKET = 3
# The file and the variable that gunicorn reads if no other configuration is named.
_GUNICORN_FILE, _GUNICORN_ARGUMENTS = "gunicorn.conf.py", "GUNICORN_CMD_ARGS"
_ADDRESSES = {"host", "port", "uds", "fd"}


def plan_uvicorn(options: argparse.Namespace, loaded: Loaded, static: Mapping[str, str]) -> Plan:
    """Return the plan for uvicorn with asgifast's protocol.

    :param static: maps URL prefixes to directories with static files.
    :raises MissingExtra: if a package of the extra is not installed.
    :raises ConfigurationError: if an option is only for gunicorn, or does not fit the app.
    """
    check_installed("uvicorn", "wsgifast run")
    for name in ("threads", "config"):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"--{name} is an option for gunicorn, and {loaded.target} is an ASGI app: remove "
                "the option"
            )
    interface = loaded.settings.get("interface", "auto")
    if interface == "asgi2" or (interface == "wsgi" and loaded.interface == "ASGI"):
        raise ConfigurationError(
            f"--interface {interface}: {loaded.target} is an ASGI app: remove the option"
        )
    bind: str | None = options.bind
    address_options: list[str] = []
    if bind is None and not _ADDRESSES & set(loaded.settings):
        if has_sockets():
            address_options = [f"--fd={_FIRST_SOCKET}"]
        else:
            bind = default_bind()
    if bind is not None:
        address_options = _address_options(bind)
    command = [
        *(sys.executable, *MODULE, "asgifast.uvicorn"),
        "--http=asgifast.uvicorn:HttpToolsProtocol",
        *address_options,
        *given(options, "--ssl-", "certfile", "keyfile"),
    ]
    workers, notes = sizing(options, loaded, spare=0)
    if workers is not None:
        command.append(f"--workers={workers}")
    is_trusted = "forwarded_allow_ips" in loaded.settings or "FORWARDED_ALLOW_IPS" in os.environ
    if bind is not None and bind.startswith("unix:") and not is_trusted:
        # The permissions of the socket decide which clients may connect. gunicorn trusts them too.
        command.append("--forwarded-allow-ips=*")
    if options.reload:
        command.append("--reload")
    if "timeout_keep_alive" not in loaded.settings:
        command.append(f"--timeout-keep-alive={KEEP_ALIVE_S}")
    if "timeout_graceful_shutdown" not in loaded.settings:
        command.append(f"--timeout-graceful-shutdown={graceful_s(options, loaded)}")
    arguments = {"target": options.app, **wrapper_arguments(options, loaded, static)}
    logs = log_kind(options)
    logs_json = logs == "json" and "log_config" not in loaded.settings
    if logs_json:  # uvicorn's default is text
        from asgifast.json_log import CONFIGURATION

        arguments["json_log"] = True
        command.append(f"--log-config={CONFIGURATION}")
    elif logs == "off":
        command.append("--no-access-log")
    command += [*options.rest, "--factory", "wsgifast.commands.run:wrapped_by_environment"]
    kind = "an ASGI" if loaded.interface == "ASGI" else "a WSGI"
    decided = f"{loaded.target} is {kind} app: uvicorn with asgifast's protocol"
    if options.body_limit_bytes is None and not os.environ.get(SHARED["body_limit_bytes"].variable):
        notes.append("request bodies have no limit (--body-limit-bytes)")
    if bind is None and (path := loaded.settings.get("uds")):
        bind = f"unix:{path}"
    environment = {ARGUMENTS: json.dumps(arguments)}
    notes[:0] = _gunicorn_note(loaded.target)
    return Plan(command, decided, environment, bind, notes, logs_json)


def _gunicorn_note(target: str) -> list[str]:
    """Return a note about gunicorn's configuration, which uvicorn does not read."""
    sources = [_GUNICORN_FILE] if os.path.exists(_GUNICORN_FILE) else []
    sources += [_GUNICORN_ARGUMENTS] if os.environ.get(_GUNICORN_ARGUMENTS) else []
    if not sources:
        return []
    return [
        f"{' and '.join(sources)}: ignored. {target} is an ASGI app, which uvicorn serves. To use "
        "this configuration, run gunicorn -k asgifast.workers.FastUvicornWorker"
    ]


def _address_options(bind: str) -> list[str]:
    path = unix_path(bind)
    if path is not None:
        return [f"--uds={path}"]
    address = address_of(bind)
    return [f"--host={address.host}", f"--port={address.port}"]
