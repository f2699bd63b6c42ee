"""Fast SMTP and IMAP clients, which replace those of smtplib and imaplib.

The server (:mod:`wsgifast.mail.server`) and the e-mail backend of Django
(:mod:`wsgifast.mail.django`) must be imported separately. They need the packages aiosmtpd and
Django.
"""

from .imap import IMAP4, IMAP4_SSL
from .smtp import SMTP, SMTP_SSL

__all__ = ["IMAP4", "IMAP4_SSL", "SMTP", "SMTP_SSL"]
