"""Writes the lines of an access log without :mod:`logging`, if the result is the same.

logging makes a record for each line, and passes the record to filters, handlers and formatters.
These steps take longer than a short request. A line skips the steps under all of these conditions:

- The logger is logging's own class, with one handler, no filter and no propagation.
- The handler is logging's own StreamHandler or FileHandler, without a filter.
- The caller makes the same text as the handler's formatter.
- The skipped functions of logging are unchanged. Sentry, OpenTelemetry and ddtrace replace some.

The conditions are checked for each line, because tools change handlers and functions at run time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

# A function that returns another function, which makes the same text as a formatter, or None.
FindMaker = Callable[[logging.Formatter], Any]
_INFO = logging.INFO

# Functions that a line skips.
_SKIPPED = (
    "Logger.info", "Logger._log", "Logger.makeRecord", "Logger.handle", "Logger.callHandlers",
    "LogRecord.__init__", "LogRecord.getMessage", "Filterer.filter", "Handler.handle",
    "Handler.format", "StreamHandler.emit", "StreamHandler.flush", "FileHandler.emit",
    "Formatter.format", "Formatter.formatMessage", "PercentStyle.format",
)  # fmt: skip
_skipped_functions = attrgetter(*_SKIPPED)


class Route:
    """The direct path from a logger to the stream of its only handler.

    A route never changes. So a thread may write through a route that has been replaced.

    :ivar make: a function that makes the same text as the formatter. None if logging has to write
        the lines.
    """

    __slots__ = (
        "_logger", "attributes", "counts", "formatter", "functions", "handler", "make", "stream",
        "terminator",
    )  # fmt: skip

    def __init__(
        self,
        logger: logging.Logger,
        handler: Any,
        line_maker: FindMaker,
    ) -> None:
        self._logger = logger
        self.handler = handler
        self.formatter = formatter = handler.formatter
        self.stream = stream = getattr(handler, "stream", None)
        self.functions = functions = _skipped_functions(logging)
        objects = (logger, handler) if formatter is None else (logger, handler, formatter)
        self.attributes = tuple(each.__dict__ for each in objects)
        self.counts = tuple(map(len, self.attributes))
        self.make: Any = None
        is_stock = (
            type(logger) is logging.Logger
            and type(handler) in (logging.StreamHandler, logging.FileHandler)
            and not any(map(callable, vars(logger).values()))
            and not {"handle", "emit", "format", "flush"} & vars(handler).keys()
            and all(is_defined_in(logging, each) for each in functions)
        )
        # A FileHandler may open its file later. A stream may have no flush().
        if is_stock and handler.lock is not None and hasattr(stream, "flush"):
            self.terminator = handler.terminator
            if formatter is not None and not any(map(callable, vars(formatter).values())):
                self.make = line_maker(formatter)

    def write(self, line: str) -> bool:
        """Write a line and flush the stream. An error goes to the handler's handleError().

        :returns: False if the handler has been closed. The line must then go through logging, which
            opens the file again.
        """
        handler = self.handler
        with handler.lock:
            try:
                stream = handler.stream
                if stream is None:
                    return False
                stream.write(line + self.terminator)
                stream.flush()
            except RecursionError:
                raise
            except Exception:  # noqa: BLE001 - as StreamHandler.emit() catches them
                logger = self._logger
                handler.handleError(
                    logger.makeRecord(logger.name, _INFO, "(unknown file)", 0, line, (), None)
                )
        return True


class LineLog:
    """Finds the direct path from a logger to the stream of its only handler.

    :param logger: the logger of the access log. Its lines have the level INFO.
    :param line_maker: a function that accepts the formatter of the handler. It returns a function
        that makes the same text, or None. It is called again if the handler or formatter changes.
    """

    def __init__(self, logger: logging.Logger, line_maker: FindMaker) -> None:
        self._logger = logger
        self._line_maker = line_maker
        self._route: Route | None = None

    def route(self) -> Route | None:
        """Return the route for the next line. None if logging has to write the line."""
        logger = self._logger
        handlers = logger.handlers
        if len(handlers) != 1:
            return None
        handler: Any = handlers[0]
        route = self._route
        if (
            route is None
            or handler is not route.handler
            or handler.formatter is not route.formatter
            or getattr(handler, "stream", None) is not route.stream
            or _skipped_functions(logging) != route.functions
            # A replaced method is a new attribute of its object.
            or tuple(map(len, route.attributes)) != route.counts
        ):
            self._route = route = Route(logger, handler, self._line_maker)
        if (
            route.make is None
            or handler.filters
            or logger.filters
            or logger.propagate
            or handler.level > _INFO
            or not logger.isEnabledFor(_INFO)
            or logging.getLogRecordFactory() is not logging.LogRecord
        ):
            return None
        return route


def is_defined_in(module: ModuleType, function: object) -> bool:
    """Return whether a function is defined in the module, and is not replaced or wrapped."""
    return type(function) is FunctionType and function.__globals__ is vars(module)
