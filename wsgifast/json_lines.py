"""Log lines of one JSON object each, with OpenTelemetry's attribute names where there are any."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone


def json_line(fields: Mapping[str, object]) -> str:
    """Return a line with the time (RFC 3339, UTC, in milliseconds) and every field with a value.

    It is ASCII without line breaks, whatever a client has sent.
    """
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
    present = {name: value for name, value in fields.items() if value is not None and value != ""}
    line = {"time": now.replace("+00:00", "Z"), **present}
    return json.dumps(line, separators=(",", ":"), default=str)


def sent_text(value: str) -> str:
    """Decode a client's text (latin-1 by PEP 3333) as UTF-8, if it is that."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
