"""uvicorn's access log lines, written without a :class:`logging.LogRecord` where possible."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from wsgifast.bodies.access_log import json_line
from wsgifast.bodies.line_log import LineLog, is_defined_in

from .json_log import JSONFormatter, access_fields

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def _line_maker(formatter: logging.Formatter) -> LineMaker | None:
    """Return a function that makes the lines of a formatter, or None for an unknown formatter."""
    if type(formatter) is JSONFormatter:
        return _json_access_line
    module: Any = sys.modules.get("uvicorn.logging")
    if module is None:
        return None
    own, base = module.AccessFormatter, module.ColourizedFormatter
    functions = (own.formatMessage, base.formatMessage, own.get_status_code)
    if type(formatter) is not own or not all(is_defined_in(module, each) for each in functions):
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
