"""Django's mail functions through the backend. Each runs in a process, as settings are global."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import django
import pytest

from tests.mail.serving import Handler, serving
from wsgifast.mail import SMTP, SMTP_SSL

# Django 6.1 replaces EMAIL_BACKEND and the other EMAIL_* settings by MAILERS.
SETTINGS = (
    """
from django.conf import settings
BACKEND = "wsgifast.mail.django.EmailBackend"
def options(**more):
    return {"BACKEND": BACKEND, "OPTIONS": {"host": "127.0.0.1", "timeout": 20, **more}}
settings.configure(
    MAILERS={"default": options(port=PORT), "tls": options(use_ssl=True)},
    DEFAULT_FROM_EMAIL="anne@example.com",
)
from django.core import mail
def backend(name="default"):
    return mail.mailers[name]
"""
    if django.VERSION >= (6, 1)
    else """
from django.conf import settings
settings.configure(
    EMAIL_BACKEND="wsgifast.mail.django.EmailBackend",
    EMAIL_HOST="127.0.0.1",
    EMAIL_PORT=PORT,
    EMAIL_TIMEOUT=20,
    DEFAULT_FROM_EMAIL="anne@example.com",
    USE_TZ=True,
)
from django.core import mail
def backend(name="default"):
    return mail.get_connection(use_ssl=name == "tls")
"""
)


@pytest.fixture
def server() -> Iterator[tuple[int, Handler]]:
    with serving() as (port, handler):
        yield port, handler


def in_django(port: int, code: str) -> list[str]:
    """Run code with the settings. Return the lines that it prints."""
    program = f"PORT = {port}\n{SETTINGS}\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_messages_of_one_batch_share_a_connection(server: tuple[int, Handler]) -> None:
    port, handler = server
    code = """
messages = [
    mail.EmailMessage(f"subject {n}", ".dot\\nend", to=["bart@example.com"]) for n in range(5)
]
messages[0].attach("data.bin", bytes(range(256)) * 4000, "application/octet-stream")
with backend() as connection:
    print(connection.send_messages(messages))
    print(type(connection.connection).__module__)
"""
    assert in_django(port, code) == ["5", "wsgifast.mail.smtp"]
    assert len(handler.received) == 5
    assert handler.received[1].endswith(b"\r\n\r\n.dot\r\nend\r\n")


def test_connection_class_follows_the_settings() -> None:
    code = """
for name in ("default", "tls"):
    print(backend(name).connection_class.__name__)
"""
    assert in_django(25, code) == [SMTP.__name__, SMTP_SSL.__name__]


def test_refused_recipient_raises_in_send_mail(server: tuple[int, Handler]) -> None:
    code = """
import smtplib
try:
    mail.send_mail("subject", "text", None, ["refused@example.com"])
except smtplib.SMTPRecipientsRefused as error:
    print(error.recipients)
"""
    refused = {"refused@example.com": (550, b"no such user")}
    assert in_django(server[0], code) == [str(refused)]
