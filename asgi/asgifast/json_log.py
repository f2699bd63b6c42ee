"""Write uvicorn's logs as JSON, one object per line."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path

from wsgifast.bodies.access_log import ErrorLogFormatter, json_line

# The path of uvicorn's default log configuration with this formatter, for `uvicorn --log-config`.
CONFIGURATION = str(Path(__file__).with_suffix(".json"))

# Additional fields of the current request. None until an option of ASGIFast adds some.
_more: ContextVar[Mapping[str, str]] | None = None


def add_fields(more: ContextVar[Mapping[str, str]]) -> None:
    """Add the fields in a context variable to the access log lines of each request."""
    global _more
    _more = more


class JSONFormatter(ErrorLogFormatter):
    """A formatter for the loggers uvicorn.access and uvicorn.

    In a logging configuration (``uvicorn --log-config FILE``): ``"()":
    "asgifast.json_log.JSONFormatter"``. Values that uvicorn does not log, such as bytes and times,
    are missing.
    """

    def format(self, record: logging.LogRecord) -> str:
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
    if _more is not None:
        fields |= _more.get({})
    return fields
