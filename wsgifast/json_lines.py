"""Log lines of one JSON object each, with OpenTelemetry's names where it has one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone

__all__ = ["json_line", "sent_text"]


def json_line(fields: Mapping[str, object]) -> str:
    """One line: the time (RFC 3339, UTC, to the millisecond), and every field that has a value.

    ASCII alone and no line break, whatever a client has sent.
    """
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
    told = {name: value for name, value in fields.items() if value is not None and value != ""}
    line = {"time": now.replace("+00:00", "Z"), **told}
    return json.dumps(line, separators=(",", ":"), default=str)


def sent_text(value: str) -> str:
    """What a client has sent (latin-1 by PEP 3333) as the UTF-8 that it most likely is."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
