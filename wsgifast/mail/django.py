"""Django's SMTP e-mail backend, with the fast client of :mod:`wsgifast.mail`.

In the settings:

    EMAIL_BACKEND = "wsgifast.mail.django.EmailBackend"                     # up to Django 6.0
    MAILERS = {"default": {"BACKEND": "wsgifast.mail.django.EmailBackend", ...}}  # from 6.1 on
"""

from __future__ import annotations

from ..checks import needs
from .smtp import SMTP, SMTP_SSL

with needs("wsgifast.mail.django", "django", "django"):
    from django.core.mail.backends import smtp

__all__ = ["EmailBackend"]


class EmailBackend(smtp.EmailBackend):  # type: ignore[misc]  # Django has no types
    """Sends messages by :class:`wsgifast.mail.SMTP`, or by SMTP_SSL if EMAIL_USE_SSL is set."""

    @property
    def connection_class(self) -> type[SMTP]:
        return SMTP_SSL if self.use_ssl else SMTP
