"""gunicorn's logs as one JSON object a line, for its WSGI and ASGI workers."""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from gunicorn.glogging import Logger

from ..bodies.access_log import (
    LOGGED,
    PATTERN,
    SENDFILE_BYTES,
    SENT_AS,
    TRACE_ID,
    ErrorLogFormatter,
    basic_user,
    json_line,
    json_start,
    json_value,
    quoted,
    sent_text,
)

# The names of fields that are keys of the environ, and their beginnings in a line.
_LOGGED = [*((name, f',"{name}":') for name in LOGGED), (TRACE_ID, ',"trace_id":')]


class JSONLogger(Logger):  # type: ignore[misc]
    """gunicorn's logger, with an access log and an error log in JSON.

    ``gunicorn --logger-class wsgifast.workers.JSONLogger module:app``

    The access log goes to the place in gunicorn's settings `accesslog`, `syslog` or `logconfig`, or
    to stdout if none of them is set. `access_log_format` is ignored. The error log in `errorlog` is
    in JSON. In `syslog` and `logconfig` it has their own formats. With `statsd_host` gunicorn's
    counters are sent as by its own logger. docs/reference/access-log.md lists the fields. A
    subclass can add fields by overriding :meth:`fields`.
    """

    FORMAT = "%(json)s"
    # gunicorn's own class escapes quotes as Apache's format needs it. JSON has its own rules.
    atoms_wrapper_class = dict

    def __new__(cls, cfg: Any) -> JSONLogger:
        if cfg.statsd_host:  # gunicorn uses its statsd logger only if no logger class is set
            from gunicorn.instrument.statsd import Statsd

            if not issubclass(cls, Statsd):
                cls = type(cls.__name__, (cls, Statsd), {})
        made: JSONLogger = super().__new__(cls)
        return made

    def setup(self, cfg: Any) -> None:
        configured = (cfg.accesslog, cfg.logconfig, cfg.logconfig_dict, cfg.logconfig_json)
        if not (any(configured) or (cfg.syslog and not cfg.disable_redirect_access_to_syslog)):
            cfg.set("accesslog", "-")
        cfg.set("access_log_format", self.FORMAT)
        super().setup(cfg)

    def _set_handler(
        self, log: logging.Logger, output: str | None, fmt: logging.Formatter, stream: Any = None
    ) -> None:
        is_errors = log is self.error_log
        super()._set_handler(log, output, ErrorLogFormatter() if is_errors else fmt, stream)

    def atoms(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> dict[str, Any]:
        if type(self).fields is JSONLogger.fields:
            return {"json": self._line(resp, environ, _microseconds(request_time))}
        return {"json": json_line(self.fields(resp, req, environ, request_time))}

    def line(self, resp: Any, req: Any, environ: dict[str, Any], seconds: float) -> str:
        """Return the line of a request that took some seconds, without :meth:`fields`."""
        return self._line(resp, environ, round(seconds * 1e6))

    def fields(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> dict[str, Any]:
        """Return the logged values of a request, except the time. None and "" are left out.

        Names are OpenTelemetry's where there is one (semantic conventions, HTTP attributes).
        """
        fields: dict[str, Any] = json.loads(self._line(resp, environ, _microseconds(request_time)))
        del fields["time"]
        return fields

    def _line(self, resp: Any, environ: dict[str, Any], duration_us: int) -> str:
        """Return the line of a request: the only list of its fields.

        It is text from the beginning, because a dictionary of the fields takes twice the time.
        """
        get = environ.get
        client = peer = get("REMOTE_ADDR", "")
        if forwarded := get("HTTP_X_FORWARDED_FOR"):
            client = self._client(peer, forwarded)
        path, _, query = sent_text(get("RAW_URI", "")).partition("?")
        status = resp.status
        if isinstance(status, (str, bytes)):
            status = int(status.split(None, 1)[0])
        line = f'{json_start()},"process.pid":{os.getpid()}'
        if client:
            line += f',"client.address":{quoted[client]}'
        if peer and peer != client:
            line += f',"network.peer.address":{quoted[peer]}'
        if (authorization := get("HTTP_AUTHORIZATION")) and (user := basic_user(authorization)):
            line += f',"user.name":{quoted[user]}'
        if pattern := get(PATTERN):
            line += f',"http.route":{json_value(pattern)}'
        if method := get("REQUEST_METHOD"):
            line += f',"http.request.method":{quoted[method]}'
        if scheme := get("wsgi.url_scheme"):
            line += f',"url.scheme":{quoted[scheme]}'
        if path:
            line += f',"url.path":{quoted[path]}'
        if query:
            line += f',"url.query":{quoted[query]}'
        if version := get("SERVER_PROTOCOL", "").partition("/")[2]:
            line += f',"network.protocol.version":{quoted[version]}'
        line += f',"http.response.status_code":{status}'
        sent = getattr(resp, "sent", None)
        # gunicorn's own workers do not count bytes sent by sendfile.
        is_counted = sent or get(SENT_AS) != "file" or SENDFILE_BYTES in environ
        if sent is not None and is_counted:
            line += f',"http.response.body.size":{sent}'
        if agent := get("HTTP_USER_AGENT"):
            line += f',"user_agent.original":{quoted[sent_text(agent)]}'
        if referer := get("HTTP_REFERER"):
            # A list, as OpenTelemetry requires for any header.
            line += f',"http.request.header.referer":[{quoted[sent_text(referer)]}]'
        line += f',"wsgifast.duration_us":{duration_us}'
        for name, start in _LOGGED:
            if name in environ and (value := environ[name]) not in (None, ""):
                line += f"{start}{value if type(value) is int else json_value(value)}"
        return line + "}"

    def _client(self, peer: str, forwarded: str) -> str:
        """Return the address of a client, behind the proxies that gunicorn trusts.

        :param peer: the address of the connection's other end. None for a Unix socket.
        :param forwarded: X-Forwarded-For, to which each proxy adds its own peer at the end.
            Anything before the address of an untrusted peer may be invented.
        """
        allowed = self.cfg.forwarded_allow_ips
        client = peer
        for text in reversed(forwarded.split(",")):
            if _is_address(client) and not trusts_address(self.cfg, allowed, client):
                break
            address = _without_port(text.strip())
            if not _is_address(address):
                break
            client = address
        return client


def trusts_address(cfg: Any, allowed: list[str], address: str) -> bool:
    """Return whether an IP address is among those that are allowed, as gunicorn decides it.

    :param cfg: gunicorn's configuration.
    :param allowed: its forwarded_allow_ips.
    """
    if "*" in allowed:
        return True
    try:
        peer = ip_address(address)
    except ValueError:
        return False
    return any(peer in network for network in cfg.forwarded_allow_networks())


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _without_port(text: str) -> str:
    """Return an address as some proxies write it, without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _microseconds(time: Any) -> int:
    """Microseconds of a timedelta, or of the ASGI worker's replacement, which has no days."""
    seconds = getattr(time, "days", 0) * 86_400 + time.seconds
    return int(seconds * 1_000_000 + time.microseconds)
