"""The plan of `wsgifast run` for an ASGI app: uvicorn with asgifast's supervisor and protocol."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigurationError
from ...server_options import SHARED
from ..arguments import address_of, unix_path
from ..loading import AppNotLoaded
from ..loading.servers import NO_APP, Loaded, check_installed, load_as
from . import ARGUMENTS
from .environment import default_bind, has_sockets
from .plan import KEEP_ALIVE_S, Plan, given, graceful_s, log_kind, sizing, wrapper_arguments

# SD_LISTEN_FDS_START of sd_listen_fds(3).
_FIRST_SOCKET = 3
# The file and the variable that gunicorn reads if no other configuration is named.
_GUNICORN_FILE, _GUNICORN_ARGUMENTS = "gunicorn.conf.py", "GUNICORN_CMD_ARGS"
# gunicorn's settings that uvicorn does not need. No note says that they are ignored.
_NOT_NEEDED = ("worker_class", "accesslog", "errorlog", "default_proc_name")
# gunicorn's settings, and the corresponding settings and options of uvicorn.
_COUNTERPARTS = (
    ("workers", "workers", "--workers"),
    ("keepalive", "timeout_keep_alive", "--timeout-keep-alive"),
    ("graceful_timeout", "timeout_graceful_shutdown", "--timeout-graceful-shutdown"),
    ("forwarded_allow_ips", "forwarded_allow_ips", "--forwarded-allow-ips"),
    ("certfile", "ssl_certfile", "--ssl-certfile"),
    ("keyfile", "ssl_keyfile", "--ssl-keyfile"),
    ("max_requests", "limit_max_requests", "--limit-max-requests"),
    ("max_requests_jitter", "limit_max_requests_jitter", "--limit-max-requests-jitter"),
    ("backlog", "backlog", "--backlog"),
    ("loglevel", "log_level", "--log-level"),
)
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
    settings, bind, converted_options, gunicorn_notes = _from_gunicorn(options, loaded)
    loaded = replace(loaded, settings={**settings, **loaded.settings})
    address_options: list[str] = []
    if bind is None and not _ADDRESSES & set(loaded.settings):
        if has_sockets():
            address_options = [f"--fd={_FIRST_SOCKET}"]
        else:
            bind = default_bind()
    if bind is not None:
        address_options = _address_options(bind)
    command = [
        # -P removes the working directory from sys.path: its files may have the names of modules of
        # the standard library.
        *(sys.executable, "-P", "-m", "asgifast.uvicorn"),
        "--http=asgifast.uvicorn:HttpToolsProtocol",
        *address_options,
        *given(options, "--ssl-", "certfile", "keyfile"),
        *converted_options,
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
    return Plan(command, decided, environment, bind, [*gunicorn_notes, *notes], logs_json)


def _from_gunicorn(
    options: argparse.Namespace, loaded: Loaded
) -> tuple[dict[str, Any], str | None, list[str], list[str]]:
    """Convert gunicorn's configuration to settings of uvicorn, as far as possible.

    :returns: uvicorn's settings, the address to listen on or None, uvicorn's options, and notes for
        the user.
    """
    sources = [_GUNICORN_FILE] if os.path.exists(_GUNICORN_FILE) else []
    sources += [_GUNICORN_ARGUMENTS] if os.environ.get(_GUNICORN_ARGUMENTS) else []
    bind: str | None = options.bind
    if not sources:
        return {}, bind, [], []
    name, reason = " and ".join(sources), "gunicorn is not installed"
    configured: Mapping[str, Any] | None = None
    if importlib.util.find_spec("gunicorn") is not None:
        try:
            found = load_as("gunicorn", NO_APP)
            reason, configured = found.refusal, None if found.refusal else found.settings
        except AppNotLoaded as error:
            reason = str(error)
    reason_for_uvicorn = f"{loaded.target} is an ASGI app, which uvicorn serves"
    if configured is None:
        return {}, bind, [], [f"{name}: all of it is ignored. {reason}. {reason_for_uvicorn}"]
    settings, words, used, ignored = {}, [], [], dict(sorted(configured.items()))
    for setting, of_uvicorn, word in _COUNTERPARTS:
        value = ignored.pop(setting, None)
        is_given = of_uvicorn in loaded.settings or getattr(options, setting, None) is not None
        if value and not is_given:
            value = ",".join(value) if isinstance(value, list) else value
            settings[of_uvicorn] = value
            words.append(f"{word}={value}")
            used.append(setting)
    addresses = ignored.pop("bind", None)
    if addresses and bind is None and not _ADDRESSES & set(loaded.settings):
        bind = next((each for each in addresses if not each.startswith("fd://")), None)
        used[:0] = ["bind"] if bind is not None else []
        ignored |= {f"bind to {each}": each for each in addresses if each != bind}
    for setting in _NOT_NEEDED:
        ignored.pop(setting, None)
    parts = [f"{', '.join(used)} {'is' if len(used) == 1 else 'are'} used"] if used else []
    if ignored:
        parts.append(f"{', '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} ignored")
    notes = [f"{name}: {', and '.join(parts)}. {reason_for_uvicorn}"] if parts else []
    return settings, bind, words, notes


def _address_options(bind: str) -> list[str]:
    path = unix_path(bind)
    if path is not None:
        return [f"--uds={path}"]
    address = address_of(bind)
    return [f"--host={address.host}", f"--port={address.port}"]
