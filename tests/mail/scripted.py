"""What clients send to a scripted SMTP server, and what it receives."""

from __future__ import annotations

import smtplib
from typing import Any

from tests.support.smtp import ScriptedSMTP
from wsgifast.mail import SMTP

__all__ = [
    "FEATURES", "LARGE", "PLAIN", "RECIPIENTS", "SENDER", "TEXT", "ScriptedSMTP", "connect",
    "delivered",
]  # fmt: skip

FEATURES = {
    "plain": ("SIZE", "8BITMIME"),
    "pipelining": ("SIZE", "8BITMIME", "PIPELINING"),
    "chunking": ("SIZE", "8BITMIME", "CHUNKING"),
    "both": ("SIZE", "8BITMIME", "PIPELINING", "CHUNKING"),
}
SENDER, RECIPIENTS = "anne@example.com", ["bart@example.com", "cate@example.com"]
TEXT = b"Subject: dots\r\n\r\n.one\r\n..two\r\n.\r\nlast"
LARGE = b"Subject: large\r\n\r\n" + (b".x" * 38 + b"\r\n") * 4000
PLAIN = LARGE.replace(b".x", b"xx")  # no line starts with a dot


def connect(server: ScriptedSMTP, client_class: type[smtplib.SMTP] = SMTP) -> Any:
    return client_class("127.0.0.1", server.port, local_hostname="client", timeout=60)


def delivered(message: bytes, *, chunked: bool) -> bytes:
    """What the server receives for a message."""
    whole = message if message.endswith(b"\r\n") else message + b"\r\n"
    if chunked:
        return whole
    quoted = whole.replace(b"\n.", b"\n..")
    return b"." + quoted if quoted.startswith(b".") else quoted
