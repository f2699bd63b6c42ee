"""Write uvicorn's logs as JSON, one object per line."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path

from wsgifast.bodies.access_log import ErrorLogFormatter, json_line

# The path of a file for `uvicorn --log-config`: uvicorn's default configuration, with this
# formatter.
CONFIGURATION = str(Path(__file__).with_suffix(".json"))

# The attribute of a record with the line that asgifast's protocols have made.
LINE = "asgifast_line"

# The additional fields of the current request. None until an option of ASGIFast adds fields.
_additional_fields: ContextVar[Mapping[str, str]] | None = None


def add_fields(fields: ContextVar[Mapping[str, str]]) -> None:
    """Add the fields in a context variable to the access log lines of each request."""
    global _additional_fields
    _additional_fields = fields


class JSONFormatter(ErrorLogFormatter):
    """A formatter for the loggers uvicorn.access and uvicorn.

    A logging configuration (``uvicorn --log-config FILE``) names it with ``"()":
    "asgifast.json_log.JSONFormatter"``. With asgifast's protocols, the lines also contain values
    that uvicorn does not log, such as bytes and times.
    """

    def format(self, record: logging.LogRecord) -> str:
        if LINE in vars(record):
            return str(vars(record)[LINE])
        args = record.args
        is_access = record.name == "uvicorn.access"
        if not is_access or not isinstance(args, tuple) or len(args) != 5:
            return super().format(record)
        return json_line(access_fields(*args))


def access_fields(
    client: object, method: object, target: object, version: object, status: object
) -> dict[str, object]:
    """Return the fields of a line of uvicorn's access log."""
    path, _, query = str(target).partition("?")
    fields: dict[str, object] = {
        "process.pid": os.getpid(),
        "client.address": str(client).rpartition(":")[0],
        "http.request.method": method,
        "url.path": path,
        "url.query": query,
        "network.protocol.version": version,
        "http.response.status_code": status,
    }
    return {**fields, **additional_fields()}


def additional_fields() -> Mapping[str, str]:
    """Return the additional fields of the current request."""
    return {} if _additional_fields is None else _additional_fields.get({})


def is_json(logger: logging.Logger) -> bool:
    """Return whether a handler of a logger, or of a parent that gets its records, writes JSON."""
    current: logging.Logger | None = logger
    while current is not None:
        if any(isinstance(handler.formatter, JSONFormatter) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False
