"""Django's mail functions through the backend, over TLS and not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mail.test_server import Handler, serving
from wsgifast.mail import SMTP, SMTP_SSL

SETTINGS = """
from django.conf import settings
settings.configure(
    EMAIL_BACKEND="wsgifast.mail.django.EmailBackend",
    EMAIL_HOST="127.0.0.1",
    EMAIL_PORT={port},
    EMAIL_TIMEOUT=20,
    DEFAULT_FROM_EMAIL="anne@example.com",
    USE_TZ=True,
)
"""


@pytest.fixture
def server() -> Iterator[tuple[int, Handler]]:
    with serving() as (port, handler):
        yield port, handler


def in_django(port: int, code: str) -> str:
    """Run code in a process of its own: Django's settings are the process's."""
    program = SETTINGS.format(port=port) + code
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_messages_of_one_batch_share_a_connection(server: tuple[int, Handler]) -> None:
    port, handler = server
    sent = in_django(
        port,
        """
from django.core import mail
with mail.get_connection() as connection:
    messages = [
        mail.EmailMessage(f"subject {n}", ".dot\\nend", to=["bart@example.com"]) for n in range(5)
    ]
    messages[0].attach("data.bin", bytes(range(256)) * 4000, "application/octet-stream")
    print(connection.send_messages(messages), type(connection.connection).__module__)
""",
    )
    assert sent.split() == ["5", "wsgifast.mail.smtp"]
    assert len(handler.received) == 5
    assert handler.received[1].endswith(b"\r\n\r\n.dot\r\nend\r\n")


def test_the_class_follows_the_settings() -> None:
    printed = in_django(
        25,
        """
from django.core.mail import get_connection
for use_ssl in (False, True):
    print(get_connection(use_ssl=use_ssl).connection_class.__name__)
""",
    )
    assert printed.split() == [SMTP.__name__, SMTP_SSL.__name__]


def test_a_refusal_reaches_the_caller(server: tuple[int, Handler]) -> None:
    code = """
import smtplib
from django.core.mail import send_mail
try:
    send_mail("subject", "text", None, ["refused@example.com"])
except smtplib.SMTPRecipientsRefused as error:
    print(error.recipients)
print(send_mail("subject", "text", None, ["refused@example.com"], fail_silently=True))
"""
    assert in_django(server[0], code).splitlines() == [
        "{'refused@example.com': (550, b'no such user')}",
        "0",
    ]


def test_without_django_the_missing_extra_is_named() -> None:
    code: Any = (
        "import sys; sys.modules['django'] = None; import wsgifast.mail, wsgifast\n"
        "try: import wsgifast.mail.django\n"
        "except wsgifast.MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'wsgifast[django]'" in done.stdout
