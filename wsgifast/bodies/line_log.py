"""Writes the lines of an access log without a record of :mod:`logging`, where nobody would see one.

logging makes a record for each line and passes it to filters, handlers and formatters. This takes
longer than a short request. A line may skip all of it only if no other code could notice:

- The logger is logging's own class, with one handler, no filter and no propagation.
- The handler is logging's own StreamHandler or FileHandler, without a filter.
- The caller makes the same text as the handler's formatter.
- Nobody has replaced a function of logging on the way, as Sentry, OpenTelemetry and ddtrace do.

Each line checks this anew, because tools add handlers and replace functions at run time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter
from types import FunctionType
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_INFO = logging.INFO

# Functions that a line skips.
_SKIPPED = (
    "Logger.info", "Logger._log", "Logger.makeRecord", "Logger.handle", "Logger.callHandlers",
    "Handler.handle", "Handler.format", "StreamHandler.emit", "FileHandler.emit",
    "Formatter.format",
)  # fmt: skip
_skipped_functions = attrgetter(*_SKIPPED)
_SOURCE = logging.getLevelName.__code__.co_filename


class LineLog(Generic[_T]):
    """The direct way from a logger to the stream of its only handler.

    :param logger: its lines have the level INFO.
    :param line_maker: returns what makes the same text as a formatter, or None. It is called with
        the handler's formatter, and again when that changes.
    """

    def __init__(
        self, logger: logging.Logger, line_maker: Callable[[logging.Formatter], _T | None]
    ) -> None:
        self._logger = logger
        self._line_maker = line_maker
        self._handler: Any = None
        self._formatter: logging.Formatter | None = None
        self._stream: Any = None
        self._maker: _T | None = None
        self._functions: tuple[Any, ...] = ()
        self._terminator = "\n"

    def maker(self) -> _T | None:
        """Return what makes the next line; None if the line has to go through logging."""
        logger = self._logger
        handlers = logger.handlers
        if len(handlers) != 1:
            return None
        handler = handlers[0]
        if (
            handler is not self._handler
            or handler.formatter is not self._formatter
            or handler.stream is not self._stream
            or _skipped_functions(logging) != self._functions
        ):
            self._examine(handler)
        if (
            self._maker is None
            or handler.filters
            or logger.filters
            or logger.propagate
            or handler.level > _INFO
            or not logger.isEnabledFor(_INFO)
            or logging.getLogRecordFactory() is not logging.LogRecord
        ):
            return None
        return self._maker

    def _examine(self, handler: Any) -> None:
        """Find out whether a handler can be bypassed."""
        self._handler, self._formatter = handler, handler.formatter
        self._stream = stream = getattr(handler, "stream", None)
        self._functions = functions = _skipped_functions(logging)
        self._maker = None
        is_stock = (
            type(self._logger) is logging.Logger
            and type(handler) in (logging.StreamHandler, logging.FileHandler)
            and not any(callable(value) for value in vars(self._logger).values())
            and not {"handle", "emit", "format", "flush"} & vars(handler).keys()
            and all(map(_is_of_logging, functions))
        )
        # A FileHandler may open its file later. A stream may have no flush().
        if is_stock and handler.lock is not None and hasattr(stream, "flush"):
            self._terminator = handler.terminator
            if self._formatter is not None:
                self._maker = self._line_maker(self._formatter)

    def write(self, line: str) -> None:
        """Write a line at once; only after :meth:`maker` has returned something.

        An error of the stream goes where logging reports it.
        """
        handler = self._handler
        with handler.lock:
            try:
                stream = handler.stream
                stream.write(line + self._terminator)
                stream.flush()
            except RecursionError:
                raise
            except Exception:  # noqa: BLE001 - as StreamHandler.emit() catches them
                logger = self._logger
                handler.handleError(
                    logger.makeRecord(logger.name, _INFO, "(unknown file)", 0, line, (), None)
                )


def _is_of_logging(function: object) -> bool:
    return type(function) is FunctionType and function.__code__.co_filename == _SOURCE
