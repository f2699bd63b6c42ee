"""Mail at the speed of the socket: clients that take the place of smtplib's and imaplib's.

The server (:mod:`wsgifast.mail.server`, on aiosmtpd) and the Django e-mail backend
(:mod:`wsgifast.mail.django`) are imported by their own names: each needs a package more.
"""

from .imap import IMAP4, IMAP4_SSL
from .smtp import SMTP, SMTP_SSL

__all__ = ["IMAP4", "IMAP4_SSL", "SMTP", "SMTP_SSL"]
