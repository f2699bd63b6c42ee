"""Access log lines that are written directly are the lines that uvicorn's formatters make."""

from __future__ import annotations

import io
import logging
import queue
import re
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Any

import pytest
from asgifast.access_line import AccessLogger
from asgifast.json_log import JSONFormatter
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import AccessFormatter

UVICORNS = LOGGING_CONFIG["formatters"]["access"]["fmt"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FORMATTERS: dict[str, Callable[[], logging.Formatter]] = {
    "uvicorn's": lambda: AccessFormatter(UVICORNS, use_colors=False),
    "colours": lambda: AccessFormatter(UVICORNS, use_colors=True),
    "own text": lambda: AccessFormatter("%(levelname)s %(status_code)-9s%%", use_colors=False),
    "JSON": JSONFormatter,
}
FOREIGN: dict[str, Callable[[], logging.Formatter]] = {
    "time": lambda: AccessFormatter("%(asctime)s " + UVICORNS, use_colors=False),
    "style": lambda: AccessFormatter("{client_addr}", style="{", use_colors=False),
    "subclass": type("Own", (AccessFormatter,), {}),
    "another": logging.Formatter,
}
ARGS = "192.0.2.1:80", "GET", "/a?b=c", "1.1", 200
MESSAGE = '%s - "%s %s HTTP/%s" %d'


def logger_to(stream: io.StringIO, formatter: logging.Formatter) -> logging.Logger:
    logger = logging.Logger("uvicorn.access")
    logger.manager = logging.root.manager
    logger.propagate = False
    logger.addHandler(logging.StreamHandler(stream))
    logger.handlers[0].setFormatter(formatter)
    return logger


def without_time(text: str) -> str:
    return re.sub(r'"time":"[^"]+"', "", text)


@pytest.mark.parametrize("formatter", FORMATTERS)
@settings(deadline=None)
@given(args=st.tuples(TEXT, TEXT, TEXT, TEXT, st.integers(100, 999)))
def test_direct_line_is_formatters(formatter: str, args: tuple[Any, ...]) -> None:
    own, ours = io.StringIO(), io.StringIO()
    logger_to(own, FORMATTERS[formatter]()).info(MESSAGE, *args)
    AccessLogger(logger_to(ours, FORMATTERS[formatter]())).info(MESSAGE, *args)
    assert without_time(ours.getvalue()) == without_time(own.getvalue())


def calls_of(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the calls of the logger's own info()."""
    calls: list[Any] = []
    real = logging.Logger.info
    handle = logging.Logger.handle

    def info(self: logging.Logger, message: str, *args: Any, **options: Any) -> None:
        calls.append(args)
        handle(self, self.makeRecord(self.name, 20, "", 0, message, args, None))

    assert real is logging.Logger.info
    monkeypatch.setattr(type(logger), "info", info)
    return calls


@pytest.mark.parametrize("formatter", FOREIGN)
def test_line_of_foreign_formatter_is_a_record(
    formatter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    logger = logger_to(stream, FOREIGN[formatter]())
    calls = calls_of(logger, monkeypatch)
    AccessLogger(logger).info(MESSAGE, *ARGS)
    assert calls == [ARGS]
    assert "192.0.2.1" in stream.getvalue()


def test_line_with_later_handler_reaches_it() -> None:
    streams = io.StringIO(), io.StringIO()
    logger = logger_to(streams[0], FORMATTERS["uvicorn's"]())
    access_logger = AccessLogger(logger)
    access_logger.info(MESSAGE, *ARGS)
    logger.addHandler(logging.StreamHandler(streams[1]))
    access_logger.info(MESSAGE, *ARGS)
    assert [stream.getvalue().count("\n") for stream in streams] == [2, 1]


def test_lines_of_handler_without_stream_reach_it() -> None:
    records: queue.Queue[Any] = queue.Queue()
    logger = logger_to(io.StringIO(), logging.Formatter())
    logger.handlers = [QueueHandler(records)]
    access_logger = AccessLogger(logger)
    for _ in range(3):
        access_logger.info(MESSAGE, *ARGS)
    assert records.qsize() == 3


def test_line_does_not_skip_replaced_formatter_method(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(AccessFormatter, "formatMessage", lambda self, record: "own")
    AccessLogger(logger_to(stream, FORMATTERS["uvicorn's"]())).info(MESSAGE, *ARGS)
    assert stream.getvalue() == "own\n"


def test_other_message_is_logged() -> None:
    stream = io.StringIO()
    access_logger = AccessLogger(logger_to(stream, logging.Formatter()))
    access_logger.info("started %s", "now")
    access_logger.warning("careful")
    assert stream.getvalue() == "started now\ncareful\n"
