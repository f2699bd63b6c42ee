"""The names that wsgifast.mail exports, and what importing it brings along."""

from __future__ import annotations

import subprocess
import sys

import wsgifast.mail


def test_exported_names() -> None:
    assert wsgifast.mail.__all__ == ["IMAP4", "IMAP4_SSL", "SMTP", "SMTP_SSL"]
    assert all(hasattr(wsgifast.mail, name) for name in wsgifast.mail.__all__)


def test_importing_needs_no_extra() -> None:
    code = "import sys, wsgifast.mail; print(*(sys.modules.keys() & {'aiosmtpd', 'django'}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
