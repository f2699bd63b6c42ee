"""A logger for all of gunicorn's workers, WSGI and ASGI, that writes one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from gunicorn.glogging import Logger

from ..bodies.access_log import (
    APP_US,
    CHUNKS,
    CODING,
    COMPRESSED_BYTES,
    OUTCOME,
    PATTERN,
    QUEUE_US,
    REQUEST_ID,
    SEND_US,
    SENDFILE_BYTES,
    SENT_AS,
    TRACE_ID,
    UNCOMPRESSED_BYTES,
    WAIT_US,
    ErrorLogFormatter,
    basic_user,
    json_line,
    json_start,
    json_value,
    quoted,
    sent_text,
)

# Environ keys that are also the names of fields. FastWorker sets those of _COUNTED.
_COUNTED = (SENDFILE_BYTES, WAIT_US, APP_US, SEND_US)
_OTHERS = (UNCOMPRESSED_BYTES, COMPRESSED_BYTES, QUEUE_US, REQUEST_ID, "trace_id")
_NO_OTHERS = [None] * len(_OTHERS)
# All environ keys whose values a line shows.
_KEYS = (
    "REMOTE_ADDR", "HTTP_X_FORWARDED_FOR", "HTTP_AUTHORIZATION", PATTERN, "RAW_URI",
    "HTTP_USER_AGENT", "HTTP_REFERER",
    "REQUEST_METHOD", "wsgi.url_scheme", "SERVER_PROTOCOL", SENT_AS, CODING, OUTCOME,
    *_COUNTED, CHUNKS, *_OTHERS[:-1], TRACE_ID,
)  # fmt: skip


class JSONLogger(Logger):  # type: ignore[misc]
    """gunicorn's logger, with an access log and an error log in JSON.

    ``gunicorn --logger-class wsgifast.workers.JSONLogger module:app``

    gunicorn's settings `accesslog`, `syslog` and `logconfig` choose the destination of the access
    log. If none of them is set, it is stdout. `access_log_format` is ignored. The error log is JSON
    if its destination is `errorlog`. With `syslog` and `logconfig` it has their formats. With
    `statsd_host`, this logger sends the same counters as gunicorn's own logger.

    docs/reference/access-log.md lists the fields. A subclass can override :meth:`fields` to add
    fields.
    """

    FORMAT = "%(json)s"
    # gunicorn's class for atoms escapes quotes for Apache's log format. JSON escapes them
    # otherwise.
    atoms_wrapper_class = dict

    def __new__(cls, cfg: Any) -> JSONLogger:
        if cfg.statsd_host:  # gunicorn uses its statsd logger only if logger_class is not set
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
        """Return the line of a request. :meth:`fields` is not called.

        :param seconds: the duration of the request.
        """
        return self._line(resp, environ, round(seconds * 1e6))

    def fields(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> dict[str, Any]:
        """Return the logged values of a request, except the time. Empty values are left out.

        Most names are HTTP attributes of OpenTelemetry's semantic conventions.
        """
        fields: dict[str, Any] = json.loads(self._line(resp, environ, _microseconds(request_time)))
        del fields["time"]
        return fields

    def _line(self, resp: Any, environ: dict[str, Any], duration_us: int) -> str:
        """Return the line of a request. Only this method lists the fields.

        It makes the text directly, because a dictionary of the fields would take twice the time.
        """
        (
            peer, forwarded, authorization, pattern, uri, agent, referer,
            method, scheme, protocol, sent_as, coding, outcome,
            sendfile_bytes, wait_us, app_us, send_us, chunks, *others,
        ) = map(environ.get, _KEYS)  # fmt: skip
        client = peer
        if forwarded:
            client = self._client(peer or "", forwarded)
        path, _, query = sent_text(uri or "").partition("?")
        status = resp.status
        if isinstance(status, (str, bytes)):
            status = int(status.split(None, 1)[0])
        line = f'{json_start()},"process.pid":{os.getpid()}'
        if client:
            line += f',"client.address":{quoted[client]}'
        if peer and peer != client:
            line += f',"network.peer.address":{quoted[peer]}'
        if authorization and (user := basic_user(authorization)):
            line += f',"user.name":{quoted[user]}'
        if pattern:
            line += f',"http.route":{json_value(pattern)}'
        if path:
            line += f',"url.path":{quoted[path]}'
        if query:
            line += f',"url.query":{quoted[query]}'
        sent = getattr(resp, "sent", None)
        # gunicorn's own workers do not count bytes sent by sendfile.
        if sent is not None and (sent or sent_as != "file" or sendfile_bytes is not None):
            line += f',"http.response.body.size":{sent}'
        if agent:
            line += f',"user_agent.original":{quoted[sent_text(agent)]}'
        if referer:
            # OpenTelemetry requires a list for any header.
            line += f',"http.request.header.referer":[{quoted[sent_text(referer)]}]'
        if type(wait_us) is type(app_us) is type(send_us) is type(sendfile_bytes) is int:
            line += (
                f',"{SENDFILE_BYTES}":{sendfile_bytes},"{WAIT_US}":{wait_us}'
                f',"{APP_US}":{app_us},"{SEND_US}":{send_us}'
            )
        else:  # the environ of another server, or the app has replaced a value
            line += _part(_COUNTED, (sendfile_bytes, wait_us, app_us, send_us))
        if type(chunks) is int:
            line += f',"{CHUNKS}":{chunks}'
        if others != _NO_OTHERS:
            line += _part(_OTHERS, others)
        return (
            f'{line}{_request_part(method, scheme, protocol)},"http.response.status_code":{status}'
            f',"wsgifast.duration_us":{duration_us}{_response_part(sent_as, coding, outcome)}}}'
        )

    def _client(self, peer: str, forwarded: str) -> str:
        """Return the client's address, which X-Forwarded-For contains if the peer is trusted.

        Each proxy appends the address of its own peer to X-Forwarded-For. The address that an
        untrusted peer has appended may be false. So the client is the last untrusted address.

        :param peer: the address of the connected peer. It is no IP address for a Unix socket.
        :param forwarded: the value of X-Forwarded-For.
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


# These fields have few different values. So the text of each combination is cached.


@lru_cache(maxsize=256)
def _request_part(method: str | None, scheme: str | None, protocol: str | None) -> str:
    version = (protocol or "").partition("/")[2]
    names = "http.request.method", "url.scheme", "network.protocol.version"
    return _part(names, (method, scheme, version))


@lru_cache(maxsize=256)
def _response_part(sent_as: str | None, coding: str | None, outcome: str | None) -> str:
    return _part((SENT_AS, CODING, OUTCOME), (sent_as, coding, outcome))


def _part(names: tuple[str, ...], values: Sequence[object]) -> str:
    """Return the fields of a line that have a value, each after a comma."""
    fields = zip(names, values, strict=True)
    return "".join(f',"{k}":{json_value(v)}' for k, v in fields if v not in (None, ""))


def trusts_address(cfg: Any, allowed: list[str], address: str) -> bool:
    """Return whether forwarded_allow_ips contains an IP address, by gunicorn's rules.

    :param cfg: gunicorn's configuration.
    :param allowed: the value of forwarded_allow_ips.
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
    """Return an address without its port. Some proxies append the port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _microseconds(time: Any) -> int:
    """Return the microseconds of a timedelta. The ASGI worker's type has no attribute `days`."""
    seconds = getattr(time, "days", 0) * 86_400 + time.seconds
    return int(seconds * 1_000_000 + time.microseconds)
