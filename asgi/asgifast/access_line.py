"""Write uvicorn's access log lines, without a :class:`logging.LogRecord` where possible.

uvicorn writes the line of a response when the response starts. A line of JSON contains the size,
the duration and the route, which are not known then. So :class:`RequestLine` writes the line of
JSON when the response has ended.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from wsgifast.bodies.access_log import (
    CHUNKS,
    CLIENT_LEFT,
    CUT_OFF,
    SENT,
    access_line_start,
    basic_user,
    common_fields,
    json_fields,
    json_line,
    json_value,
    quoted,
    sent_text,
)
from wsgifast.bodies.line_log import LineLog, is_defined_in

from .json_log import LINE, JSONFormatter, access_fields, additional_fields
from .messages import Scope, Send

# A function that makes a line of uvicorn's five arguments: client, method, target, version, status.
LineMaker = Callable[[str, str, str, str, int], str]

_UVICORNS_FORMAT = '%s - "%s %s HTTP/%s" %d'
_BOLD, _PLAIN = "\033[1m", "\033[0m"


class AccessLogger:
    """Replaces the logger uvicorn.access in a protocol. Its lines are byte for byte the same.

    :param logger: the replaced logger. It logs the lines that cannot be written directly.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lines = LineLog(logger, _line_maker)

    def info(self, message: str, *args: Any) -> None:
        """Log a response."""
        route = self._lines.route()
        is_direct = route is not None and message == _UVICORNS_FORMAT and len(args) == 5
        if route is None or not is_direct or not route.write(route.make(*args)):
            self._logger.info(message, *args, stacklevel=2)

    def log_line(self, line: str, args: tuple[Any, ...], context: Context) -> None:
        """Log a finished request.

        :param line: the line of JSON.
        :param args: uvicorn's arguments, for handlers with another format.
        :param context: the context of the request.
        """
        route = self._lines.route()
        if route is None or route.make is not _json_access_line or not route.write(line):
            context.run(self._logger.info, _UVICORNS_FORMAT, *args, extra={LINE: line})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


class RequestLine:
    """Logs a request in JSON when its response has ended.

    A RequestLine replaces the access logger of uvicorn's cycle for one request. uvicorn calls
    :meth:`info` when the response starts, and asgifast calls :meth:`end`. The second of these calls
    writes the line.

    :ivar is_cut_off: whether the server has ended the response too early.
    """

    __slots__ = (
        "_additional_fields",
        "_args",
        "_context",
        "_cycle",
        "_headers",
        "_logger",
        "_peer",
        "_request",
        "_result",
        "is_cut_off",
    )  # fmt: skip

    def __init__(self, cycle: Any, scope: Scope) -> None:
        self._cycle = cycle
        self._logger: AccessLogger = cycle.access_logger
        self._peer = scope["client"]
        self._headers = scope["headers"]  # the app may replace scope["headers"]
        self._args: tuple[Any, ...] | None = None
        self._result: tuple[Any, ...] | None = None
        self.is_cut_off = False

    def info(self, _message: str, *args: Any) -> None:
        """Note uvicorn's arguments when the response starts."""
        self._args = args
        self._context = copy_context()
        self._additional_fields = additional_fields()
        if self._result is not None:
            self._write()

    def note_request(self, scope: Scope, pattern: str | None) -> None:
        """Note the fields of the request, so that the scope can be released.

        :param scope: the server's scope. uvicorn's middleware may have replaced its `client`.
        :param pattern: the URL pattern of the route.
        """
        fields = ""
        headers = dict(self._headers)  # a line shows the last one of repeated headers
        del self._headers
        if agent := headers.get(b"user-agent"):
            fields += f',"user_agent.original":{_quoted_header(agent)}'
        if referer := headers.get(b"referer"):
            # OpenTelemetry requires a list for any header.
            fields += f',"http.request.header.referer":[{_quoted_header(referer)}]'
        authorization = headers.get(b"authorization")
        if authorization and (user := basic_user(authorization.decode("latin-1"))):
            fields += f',"user.name":{quoted[user]}'
        if pattern:
            fields += f',"http.route":{json_value(pattern)}'
        peer = self._peer
        if peer and peer[0] and scope["client"] and scope["client"][0] != peer[0]:
            fields += f',"network.peer.address":{quoted[peer[0]]}'
        self._request = scope["scheme"], fields

    def end(
        self,
        size: int,
        chunks: int,
        sent_as: str,
        seconds: float,
        *,
        is_complete: bool,
        file_is_cut: bool,
    ) -> None:
        """Note the end of the request.

        :param size: the number of body bytes that the app has sent.
        :param seconds: the duration of the request.
        :param is_complete: whether the app has sent the end of its response.
        :param file_is_cut: whether the last bytes of a file were not sent.
        """
        cycle = self._cycle
        cycle.access_logger = self._logger  # an error response of uvicorn still uses this object
        sent: int | None = size
        if self._args is None:
            # If the client is still connected, uvicorn sends an error response.
            cycle.access_logger = self
            outcome, sent = SENT, None
        elif file_is_cut:
            outcome = CUT_OFF if self.is_cut_off else CLIENT_LEFT
        elif self.is_cut_off:
            outcome, sent = CUT_OFF, None
        elif cycle.disconnected and not cycle.response_complete:
            outcome, sent = CLIENT_LEFT, None  # uvicorn ignores messages to such a client
        elif is_complete:
            outcome = SENT
        elif cycle.response_complete:
            outcome, sent = SENT, None  # an error response of asgifast
        else:
            outcome = CUT_OFF
        self._result = sent, chunks if sent_as != "file" else 0, sent_as, seconds, outcome
        if self._args is not None:
            self._write()

    def _write(self) -> None:
        assert self._args is not None
        assert self._result is not None
        client, method, target, version, status = self._args
        size, chunks, sent_as, seconds, outcome = self._result
        scheme, fields = self._request
        address = client.rpartition(":")[0]
        path, _, query = target.partition("?")
        if address:
            fields = f',"client.address":{quoted[address]}{fields}'
        if query:
            fields += f',"url.query":{quoted[query]}'
        if size is not None:
            fields += f',"http.response.body.size":{size}'
        if chunks:
            fields += f',"{CHUNKS}":{chunks}'
        if self._additional_fields:
            fields += json_fields(self._additional_fields, self._additional_fields.values())
        usual = common_fields(method, scheme, f"HTTP/{version}", status, sent_as, None, outcome)
        line = (
            f'{access_line_start()},"url.path":{quoted[path]}{fields}'
            f',"wsgifast.duration_us":{round(seconds * 1e6)}{usual}}}'
        )
        self._logger.log_line(line, self._args, self._context)


def begin_line(scope: Scope, send: Send) -> RequestLine | None:
    """Return the line of a request of asgifast's protocols, or None if the request is not logged.

    :param send: the send() of an Exchange.
    """
    cycle = send.__self__.wire.cycle  # type: ignore[attr-defined]
    if not cycle.access_log or type(cycle.access_logger) is not AccessLogger:
        return None
    line = cycle.access_logger = RequestLine(cycle, scope)
    return line


def note_cut_off(cycle: Any) -> None:
    """Note in the line of a request that the server ends the response too early."""
    line = cycle.access_logger
    if type(line) is RequestLine and not cycle.disconnected:
        line.is_cut_off = True


def _quoted_header(value: bytes) -> str:
    return quoted[sent_text(value.decode("latin-1"))]


def _line_maker(formatter: logging.Formatter) -> LineMaker | None:
    """Return a function that makes the lines of a formatter, or None for an unknown formatter."""
    if type(formatter) is JSONFormatter:
        return _json_access_line
    module: Any = sys.modules.get("uvicorn.logging")
    if module is None:
        return None
    access_class, base_class = module.AccessFormatter, module.ColourizedFormatter
    functions = (access_class.formatMessage, base_class.formatMessage, access_class.get_status_code)
    if type(formatter) is not access_class or not all(
        is_defined_in(module, each) for each in functions
    ):
        return None
    style: Any = formatter._style
    if type(style) is not logging.PercentStyle:
        return None
    return _compiled(formatter, str(style._fmt))


def _compiled(formatter: Any, text: str) -> LineMaker | None:
    level = logging.getLevelName(logging.INFO)
    space = " " * (8 - len(level))
    has_colors = formatter.use_colors
    shown_level = formatter.color_level_name(level, logging.INFO) if has_colors else level
    before, after = (_BOLD, _PLAIN) if has_colors else ("", "")
    statuses: dict[int, str] = {}

    def line(client: str, method: str, target: str, version: str, status: int) -> str:
        shown = statuses.get(status)
        if shown is None:
            shown = statuses[status] = formatter.get_status_code(status)
        return text % {
            "levelname": level,
            "levelprefix": f"{shown_level}:{space}",
            "client_addr": client,
            "request_line": f"{before}{method} {target} HTTP/{version}{after}",
            "status_code": shown,
        }

    try:
        line("", "", "", "", 200)
    except (KeyError, TypeError, ValueError):  # the format uses other fields, or is malformed
        return None
    return line


def _json_access_line(*args: Any) -> str:
    return json_line(access_fields(*args))
