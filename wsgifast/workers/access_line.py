"""Write gunicorn's access log lines faster than gunicorn's logger.

For each line, gunicorn's logger computes about fifty fields. Most of them are environ keys that
usual formats do not name. :func:`compile_format` makes a function from `access_log_format` that
computes only the fields in the format. The lines are identical to gunicorn's.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any

from gunicorn import glogging
from gunicorn.glogging import Logger, SafeAtoms

from ..bodies.access_log import basic_user
from ..bodies.line_log import LineLog, Route, is_defined_in
from . import json_log
from .json_log import JSONLogger

# A function of the response, the request, the environ and the duration in seconds.
LineMaker = Callable[[Any, Any, dict[str, Any], float], str]

# An expression for each field without an argument. The values of _FIELDS contain no quotes. Those
# of _QUOTED_FIELDS and _LOOK_UPS may contain quotes, which are escaped.
_FIELDS = {
    "l": "'-'",
    "t": "now()",
    "b": "'-' if resp.sent is None else resp.sent",
    "B": "resp.sent",
    "T": "elapsed.seconds",
    "D": "elapsed.seconds * 1_000_000 + elapsed.microseconds",
    "M": "elapsed.seconds * 1_000 + elapsed.microseconds // 1_000",
    "L": "'%d.%06d' % (elapsed.seconds, elapsed.microseconds)",
    "p": "'<%s>' % getpid()",
}
_QUOTED_FIELDS = {
    "h": "get('REMOTE_ADDR', '-')",
    "u": "(user(environ['HTTP_AUTHORIZATION']) or '-') if get('HTTP_AUTHORIZATION') else '-'",
    "r": "'%s %s %s' % (environ['REQUEST_METHOD'], environ['RAW_URI'], environ['SERVER_PROTOCOL'])",
    "s": "resp.status.split(None, 1)[0]",
    "m": "get('REQUEST_METHOD')",
    "U": "get('PATH_INFO')",
    "q": "get('QUERY_STRING')",
    "H": "get('SERVER_PROTOCOL')",
    "f": "get('HTTP_REFERER', '-')",
    "a": "get('HTTP_USER_AGENT', '-')",
}
_LOOK_UPS = {
    "i": "header_value(req.headers, {})",
    "o": "header_value(resp.headers, {})",
    "e": "environ_value(environ, {})",
}
_FIELD = re.compile(r"%\(([^()]*)\)")
_TIME = "[%d/%b/%Y:%H:%M:%S %z]"
# Matches a format that consists of text and valid conversions. The names of fields are not checked.
_CONVERSIONS = re.compile(r"(?:[^%]|%%|%\([^()]*\)[#0 +-]*[0-9]*(?:\.[0-9]+)?[hlL]?[a-zA-Z])*")


class AccessLog:
    """Writes gunicorn's access log.

    If the logger is gunicorn's or JSONLogger, and no method was replaced, AccessLog writes compiled
    lines itself. Otherwise it calls the logger's access().

    :param log: the logger that gunicorn made.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._compiled: tuple[Any, LineMaker | None, bool] = (None, None, True)
        self._lines: LineLog | None = None
        if _is_stock(log):
            self._lines = LineLog(log.access_log, _shows_message_only)
            self._format = log.cfg.settings["access_log_format"]

    def write(
        self,
        resp: Any,
        req: Any,
        environ: dict[str, Any],
        seconds: float,
        add_details: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """Log a finished request. Errors are handled like in gunicorn's access().

        :param seconds: the duration of the request.
        :param add_details: adds keys to the environ. It is called only if the line may show them.
        """
        route = self._next_route()
        if route is not None:
            text, line_maker, shows_environ = self._compiled
            if text is not self._format.value:
                line_maker, shows_environ = self._compile()
            if line_maker is not None:
                if shows_environ and add_details is not None:
                    add_details(environ)
                    add_details = None
                try:
                    line = line_maker(resp, req, environ, seconds)
                except Exception:  # noqa: BLE001 - gunicorn's access() raises it again and logs it
                    pass
                else:
                    if route.write(line):
                        return
        if add_details is not None:
            add_details(environ)
        self._log.access(resp, req, environ, timedelta(seconds=seconds))

    def runs_user_code(self) -> bool:
        """Return whether user code, such as a logging filter, may run while a line is written."""
        return self._next_route() is None

    def _next_route(self) -> Route | None:
        """Return how to write the next line, or None to call gunicorn's logger."""
        lines = self._lines
        replaced = self._log.__dict__
        # A hook may have replaced a method on the logger. AccessLog would not call the replacement.
        if lines is None or "access" in replaced or "atoms" in replaced or "now" in replaced:
            return None
        return lines.route()

    def _compile(self) -> tuple[LineMaker | None, bool]:
        text = self._format.value
        line_maker: LineMaker | None
        shows_environ = True
        if type(self._log) is JSONLogger:
            line_maker = self._log.line if text == JSONLogger.FORMAT else None
        else:
            line_maker = compile_format(text)
            shows_environ = any(name[-1:].lower() == "e" for name in _FIELD.findall(text))
        self._compiled = text, line_maker, shows_environ
        return line_maker, shows_environ


def _is_stock(log: Any) -> bool:
    """Return whether a logger is gunicorn's or JSONLogger, with all methods unchanged.

    A configuration file may replace methods of a class, for example to skip some requests.
    """
    log_class = type(log)
    if log_class is not JSONLogger and not (
        log_class is Logger and log.atoms_wrapper_class is SafeAtoms
    ):
        return False
    functions = [
        f for kind in log_class.__mro__ for f in vars(kind).values() if type(f) is FunctionType
    ]
    functions += [SafeAtoms.__init__, SafeAtoms.__getitem__]
    return all(is_defined_in(glogging, f) or is_defined_in(json_log, f) for f in functions)


def _shows_message_only(formatter: logging.Formatter) -> bool | None:
    """Return True for a formatter whose text is only the message, and None for others.

    gunicorn's access log uses Logger.access_fmt, which a configuration file may change.
    """
    is_plain = type(formatter) is logging.Formatter and formatter._fmt == "%(message)s"
    return is_plain or None


def compile_format(text: str) -> LineMaker | None:
    """Return a function that makes the lines of an access log format.

    :returns: None if the format may be malformed.
    """
    if _CONVERSIONS.fullmatch(text) is None:
        return None
    names = _FIELD.findall(text)
    namespace: dict[str, Any] = {
        "now": _clock(),
        "getpid": os.getpid,
        "user": basic_user,
        "timedelta": timedelta,
        "escaped": _escaped,
        "header_value": _header_value,
        "environ_value": _environ_value,
    }
    start = "(resp, req, environ, seconds):\n get = environ.get\n "
    if any(name in names for name in "TDML"):
        start += "elapsed = timedelta(seconds=seconds)\n "
    values = [_FIELDS.get(name) or _expression(name) for name in names]
    escaped = [_FIELDS.get(name) or f"escaped({_expression(name)})" for name in names]
    # A format without fields needs the operator % too, because "%%" means a percent sign.
    template = repr(_FIELD.sub("%", text))
    quotes = _FIELD.sub("%", text).count('"')
    exec(
        f"def escaped_line{start}return {template} % ({''.join(f'({v}), ' for v in escaped)})\n"
        f"def line{start}text = {template} % ({''.join(f'({v}), ' for v in values)})\n"
        # Only quotes need escapes. If a line has more quotes than its format, a value contains
        # quotes, and the line is made again with escapes.
        f" if text.count('\"') == {quotes}: return text\n"
        " return escaped_line(resp, req, environ, seconds)\n",
        namespace,
    )
    line_maker: LineMaker = namespace["line"]
    return line_maker


def _expression(name: str) -> str:
    """Return the Python expression for a field whose value may contain quotes."""
    if name in _QUOTED_FIELDS:
        return _QUOTED_FIELDS[name]
    kind = name[-1:]
    if name[:1] == "{" and name[-2:-1] == "}" and kind.lower() in _LOOK_UPS:
        return _LOOK_UPS[kind.lower()].format(repr(name[1:-2].lower()))
    return "'-'"


def _escaped(value: object) -> object:
    return value.replace('"', '\\"') if isinstance(value, str) else value


def _header_value(headers: Any, name: str) -> object:
    """Return the last value of a header, like gunicorn's dictionary of headers.

    :param name: in lower case.
    """
    if hasattr(headers, "items"):
        headers = headers.items()
    result: object = "-"
    size = len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            result = value
    return result


def _environ_value(environ: dict[str, Any], name: str) -> object:
    """Return the last environ value whose key matches a name, ignoring case."""
    upper = name.upper()
    if upper in environ and name not in environ:
        return environ[upper]
    return _header_value(environ, name)


def _clock() -> Callable[[], str]:
    """Return a function that formats the local time like gunicorn's log."""
    last: tuple[int, str] = 0, ""

    def text() -> str:
        nonlocal last
        second = int(time.time())
        known = last  # a copy, because another thread may assign `last`
        if known[0] != second:
            last = known = second, time.strftime(_TIME, time.localtime(second))
        return known[1]

    return text
