"""Fast SMTP and IMAP clients, to be used in place of smtplib's and imaplib's.

The server (:mod:`wsgifast.mail.server`, on aiosmtpd) and the Django e-mail backend
(:mod:`wsgifast.mail.django`) are modules of their own, since each needs another package.
"""

from .imap import IMAP4, IMAP4_SSL
from .smtp import SMTP, SMTP_SSL

__all__ = ["IMAP4", "IMAP4_SSL", "SMTP", "SMTP_SSL"]
