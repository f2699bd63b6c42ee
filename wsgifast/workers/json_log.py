"""A logger for all workers of gunicorn, WSGI and ASGI. It writes one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
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
    access_line_start,
    basic_user,
    common_fields,
    json_fields,
    json_line,
    json_value,
    quoted,
    sent_text,
)

# Environ keys that are also the names of fields. FastWorker sets those of _COUNTED.
_COUNTED = (SENDFILE_BYTES, WAIT_US, APP_US, SEND_US)
_OTHERS = (UNCOMPRESSED_BYTES, COMPRESSED_BYTES, QUEUE_US, REQUEST_ID, "trace_id")
_OTHER_KEYS = (*_OTHERS[:-1], TRACE_ID)
# Most requests have none of these environ keys.
_RARE_KEYS = ("HTTP_X_FORWARDED_FOR", "HTTP_AUTHORIZATION", PATTERN, *_OTHER_KEYS)


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
    # gunicorn's class for atoms escapes quotes for Apache's log format, but JSON has other escapes.
    atoms_wrapper_class = dict

    def __new__(cls, cfg: Any) -> JSONLogger:
        if cfg.statsd_host:  # gunicorn uses its statsd logger only if logger_class is not set
            from gunicorn.instrument.statsd import Statsd

            if not issubclass(cls, Statsd):
                cls = type(cls.__name__, (cls, Statsd), {})
        logger: JSONLogger = super().__new__(cls)
        return logger

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
            return {"json": self.line(resp, req, environ, _seconds(request_time))}
        return {"json": json_line(self.fields(resp, req, environ, request_time))}

    def fields(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> dict[str, Any]:
        """Return the logged values of a request, except the time. Empty values are left out.

        Most names are HTTP attributes of OpenTelemetry's semantic conventions.
        """
        fields: dict[str, Any] = json.loads(self.line(resp, req, environ, _seconds(request_time)))
        del fields["time"]
        return fields

    def line(self, resp: Any, req: Any, environ: dict[str, Any], seconds: float) -> str:
        """Return the line of a request.

        This method makes the text directly, because a dictionary of the fields would take twice the
        time. :meth:`fields` parses the line again.

        :param seconds: the duration of the request.
        """
        get = environ.get
        peer = client = get("REMOTE_ADDR")
        path, _, query = sent_text(get("RAW_URI") or "").partition("?")
        fields = f',"url.query":{quoted[query]}' if query else ""
        if agent := get("HTTP_USER_AGENT"):
            fields += f',"user_agent.original":{quoted[sent_text(agent)]}'
        if referer := get("HTTP_REFERER"):
            # OpenTelemetry requires a list for any header.
            fields += f',"http.request.header.referer":[{quoted[sent_text(referer)]}]'
        if type(chunks := get(CHUNKS)) is int:
            fields += f',"{CHUNKS}":{chunks}'
        if not environ.keys().isdisjoint(_RARE_KEYS):
            if forwarded := get("HTTP_X_FORWARDED_FOR"):
                client = self._client(peer or "", forwarded)
                if peer and peer != client:
                    fields += f',"network.peer.address":{quoted[peer]}'
            if (authorization := get("HTTP_AUTHORIZATION")) and (user := basic_user(authorization)):
                fields += f',"user.name":{quoted[user]}'
            if pattern := get(PATTERN):
                fields += f',"http.route":{json_value(pattern)}'
            fields += json_fields(_OTHERS, map(get, _OTHER_KEYS))
        sent_as = get(SENT_AS)
        sent = getattr(resp, "sent", None)
        counted = sendfile_bytes, wait_us, app_us, send_us = (
            get(SENDFILE_BYTES), get(WAIT_US), get(APP_US), get(SEND_US)
        )  # fmt: skip
        if type(wait_us) is type(app_us) is type(send_us) is type(sendfile_bytes) is int:
            fields += (
                f',"{SENDFILE_BYTES}":{sendfile_bytes},"{WAIT_US}":{wait_us}'
                f',"{APP_US}":{app_us},"{SEND_US}":{send_us}'
            )
        else:  # the environ of another server, or the app has replaced a value
            fields += json_fields(_COUNTED, counted)
            if sent_as == "file" and sendfile_bytes is None and not sent:
                sent = None  # gunicorn's own workers do not count bytes sent by sendfile
        usual = common_fields(
            get("REQUEST_METHOD"), get("wsgi.url_scheme"), get("SERVER_PROTOCOL"),
            resp.status, sent_as, get(CODING), get(OUTCOME),
        )  # fmt: skip
        address = f',"client.address":{quoted[client]}' if client else ""
        url = f',"url.path":{quoted[path]}' if path else ""
        size = "" if sent is None else f',"http.response.body.size":{sent}'
        return (
            f"{access_line_start()}{address}{url}{size}{fields}"
            f',"wsgifast.duration_us":{round(seconds * 1e6)}{usual}}}'
        )

    def _client(self, peer: str, forwarded: str) -> str:
        """Return the client's address, which X-Forwarded-For contains if the peer is trusted.

        Each proxy appends the address of its own peer to X-Forwarded-For. The address that an
        untrusted peer has appended may be false. So the client is the last untrusted address.

        :param peer: the address of the connected peer. For a Unix socket, it is not an IP address.
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


def _seconds(time: Any) -> float:
    """Return the seconds of a timedelta. The ASGI worker's type has no attribute `days`."""
    seconds: float = getattr(time, "days", 0) * 86_400 + time.seconds + time.microseconds / 1e6
    return seconds
