"""The keys of the environ that access logs report, and logs as lines of JSON."""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, TextIO

# environ[SENT_AS] says how the body was sent. environ[CHUNKS] is the number of chunks in the app's
# body, and is not set for a file. For a stream, both values are final at its end.
SENT_AS = "wsgifast.sent_as"
CHUNKS = "wsgifast.chunks"
# The URL pattern that the framework has matched, or that the app has set. An app of Falcon can set
# it by `req.env["wsgifast.pattern"] = req.uri_template`. Under ASGI it is a key of the scope.
PATTERN = "wsgifast.pattern"
# The error of a Content-Length: "short", "long", or "corrected" before anything was sent.
LENGTH_ERROR = "wsgifast.length_error"
# FastWorker's times, in whole microseconds like gunicorn's %(D)s. The first is the wait for a
# thread. The second is the time in the thread, without waits for the client. The third ends when
# the kernel has the last byte. %(D)s also includes the time in which the body of the request
# arrived.
WAIT_US = "wsgifast.wait_us"
APP_US = "wsgifast.app_us"
SEND_US = "wsgifast.send_us"
# How long the request had waited when it reached this server, according to X-Request-Start.
QUEUE_US = "wsgifast.queue_us"
# The id of the request, and the id of its trace, with the option `request_id`.
REQUEST_ID = "wsgifast.request_id"
TRACE_ID = "wsgifast.trace_id"
# The content coding of the body, and its sizes in bytes without and with it. The sizes of a stream
# are final at its end.
CODING = "wsgifast.coding"
UNCOMPRESSED_BYTES = "wsgifast.uncoded_bytes"
COMPRESSED_BYTES = "wsgifast.coded_bytes"
# Bytes of the response that were sent by sendfile.
SENDFILE_BYTES = "wsgifast.sendfile_bytes"
# How a response of FastWorker has ended. After the kernel has accepted the last byte, the client
# may still disconnect, and the server does not know this.
OUTCOME = "wsgifast.outcome"
SENT, CLIENT_LEFT, CUT_OFF = "sent", "client left", "cut off"

# The second of the last call of json_start(), and its text.
_second = 0, ""
_pid = os.getpid()
# The texts that end a time.
_MILLISECONDS = tuple(f'{number:03d}Z"' for number in range(1000))
_quote = json.encoder.encode_basestring_ascii
# How many texts are cached as JSON, and the most characters of such a text.
_MOST_CACHED = 500
_MOST_CACHED_CHARACTERS = 200
_encode_other = json.JSONEncoder(separators=(",", ":"), default=str).encode

# The most digits of a time since 1970 in seconds, and in microseconds. They last until the year
# 2286.
_SECOND_DIGITS, _MICROSECOND_DIGITS = 10, 16
# No request waits for an hour.
_MOST_QUEUE_S = 3600.0

# How many chunks of a stream are measured to find its kind.
SAMPLED_CHUNKS = 32
# If the average size of chunks is below this, each chunk costs more than its bytes.
_SMALL_CHUNK_BYTES = 1024
# Apps read files in blocks of a multiple of this many bytes.
_BLOCK_UNIT_BYTES = 1024


def queue_seconds(request_start: str | None, arrived: float) -> float | None:
    """Return the seconds that a request waited before it reached this server, or None if unknown.

    :param request_start: the value of X-Request-Start: seconds, milliseconds or microseconds since
        1970, perhaps after "t=", as nginx, Heroku and others send it.
    :param arrived: when the request reached this server, by time.time().
    """
    if request_start is None:
        return None
    digits, _, part = request_start.strip().removeprefix("t=").partition(".")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MICROSECOND_DIGITS):
        return None
    begun = float(digits)
    if len(digits) > _SECOND_DIGITS:
        begun /= 1e6 if len(digits) > _SECOND_DIGITS + 3 else 1e3
    elif part.isascii() and part.isdigit():
        begun += float(f"0.{part}")
    seconds = arrived - begun
    if seconds > _MOST_QUEUE_S:
        return None  # the proxy's clock is wrong, or the client sent a false header
    return max(0.0, seconds)


def stream_kind(chunks: int, first_bytes: int, total_bytes: int) -> str:
    """Return how a stream of two chunks or more is sent.

    :param chunks: the number of measured chunks.
    :param first_bytes: the size of the first chunk.
    :param total_bytes: the size of all measured chunks together.
    :returns: "stream-small" for small chunks. "stream-blocks" for chunks of one round size, as if a
        file is read in blocks. "stream" for other chunks.
    """
    if total_bytes < chunks * _SMALL_CHUNK_BYTES:
        return "stream-small"
    is_round = first_bytes % _BLOCK_UNIT_BYTES == 0
    if is_round and (chunks - 1) * first_bytes < total_bytes <= chunks * first_bytes:
        return "stream-blocks"
    return "stream"


class Quoted(dict[str, str]):
    """A cache of texts as JSON strings in ASCII. Long texts are not cached."""

    def __missing__(self, text: str) -> str:
        quoted = _quote(text)
        if len(text) <= _MOST_CACHED_CHARACTERS:
            if len(self) >= _MOST_CACHED:
                self.clear()
            self[text] = quoted
        return quoted


quoted = Quoted()


def json_line(fields: Mapping[str, object]) -> str:
    """Return a JSON object with the time (RFC 3339, UTC, in milliseconds) and all set fields.

    The text is ASCII without line breaks, also if a client has sent other characters.

    :param fields: maps names to values. If OpenTelemetry has a name for an attribute, it is used.
    """
    parts = [json_start()]
    append = parts.append
    for name, value in fields.items():
        if isinstance(value, str):
            if value:
                append(f"{quoted[name]}:{quoted[value]}")
        elif value is not None:
            append(f"{quoted[name]}:{json_value(value)}")
    return ",".join(parts) + "}"


def json_start() -> str:
    """Return the beginning of a line: the time, without a comma."""
    global _second
    now = time.time()
    second = int(now)
    known = _second  # another thread may change it
    if known[0] != second:
        text = datetime.fromtimestamp(second, UTC).isoformat()
        _second = known = second, f'{{"time":"{text.removesuffix("+00:00")}.'
    return known[1] + _MILLISECONDS[int((now - second) * 1e3)]


def access_line_start() -> str:
    """Return the beginning of an access log line: the time and the process, without a comma."""
    return f'{json_start()},"process.pid":{_pid}'


def _update_pid() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_update_pid)


def json_value(value: object) -> str:
    """Return a value of a field as JSON, in ASCII."""
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return quoted[value]
    if isinstance(value, list) and all(type(item) is str for item in value):
        return f"[{','.join(map(_quote, value))}]"
    return _encode_other(value)


@lru_cache(maxsize=512)
def common_fields(
    method: str | None,
    scheme: str | None,
    protocol: str | None,
    status: str | bytes | int,
    sent_as: str | None,
    coding: str | None,
    outcome: str | None,
) -> str:
    """Return the fields with few different values, as JSON. All combinations are cached."""
    if isinstance(status, (str, bytes)):
        status = int(status.split(None, 1)[0])
    values = {
        "http.request.method": method,
        "url.scheme": scheme,
        "network.protocol.version": (protocol or "").partition("/")[2],
        "http.response.status_code": status,
        SENT_AS: sent_as,
        CODING: coding,
        OUTCOME: outcome,
    }
    return json_fields(values, values.values())


def json_fields(names: Iterable[str], values: Iterable[object]) -> str:
    """Return the fields of a line that have a value, as JSON. Each field begins with a comma."""
    fields = zip(names, values, strict=True)
    return "".join(f',"{k}":{json_value(v)}' for k, v in fields if v not in (None, ""))


class ErrorLogFormatter(logging.Formatter):
    """Formats a record of an error log as :func:`json_line`, with its traceback and its stack."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info or None  # it may be False
        return json_line(
            {
                "level": record.levelname,
                "process.pid": record.process,
                "message": record.getMessage(),
                "exception.stacktrace": error and self.formatException(error),
                "code.stacktrace": record.stack_info,
            }
        )


def report_in_json() -> None:
    """Write in JSON what Python itself writes to stderr in this process.

    This is output for records of unconfigured loggers, for warnings, and for uncaught exceptions.
    If an app configures logging, it chooses its own format.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(ErrorLogFormatter())
    warnings.showwarning = _log_warning
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback, f"Ignored in {args.object!r}"
    )


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    text = warnings.formatwarning(message, category, filename, lineno, line)
    if file is None:
        logging.getLogger("py.warnings").warning("%s", text.rstrip())
    else:
        file.write(text)


def _log_uncaught(
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    text: str = "Uncaught exception",
) -> None:
    if issubclass(kind, (KeyboardInterrupt, SystemExit)):
        return
    found: Any = (kind, error, traceback)
    logging.getLogger("wsgifast").critical(text, exc_info=found)


def basic_user(authorization: str) -> str | None:
    """Return the user of an Authorization header of HTTP's Basic scheme (RFC 7617).

    :returns: None for another scheme, and if the header is malformed.
    """
    scheme, _, credentials = authorization.partition(" ")
    if not scheme.lower().startswith("basic") or not credentials:
        return None
    try:
        return base64.b64decode(credentials.strip().encode()).split(b":", 1)[0].decode()
    except ValueError:
        return None


def sent_text(value: str) -> str:
    """Decode a client's text as UTF-8 if that is possible.

    :param value: the bytes of the text, decoded as Latin-1 (PEP 3333).
    """
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
