"""Replies to pipelined commands leave together (RFC 2920, 3.2)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from ..imports import needs

with needs("wsgifast.mail.server", "aiosmtpd", "mail"):
    from aiosmtpd import smtp as _smtp

__all__ = ["PipelinedSMTP"]

# Replies held back for the next loop turn are let go beyond this: a client may pipeline much.
_HELD_REPLIES_BYTES = 16 * 1024


class PipelinedSMTP(_smtp.SMTP):
    """aiosmtpd.smtp.SMTP, which holds back the replies to MAIL and RCPT for the next one."""

    session: _smtp.Session  # None between connections only; no command runs then

    def __init__(self, handler: object, **options: Any) -> None:
        super().__init__(handler, **options)
        self._holding_replies = False
        self._held_replies = bytearray()

    @functools.wraps(_smtp.SMTP.smtp_MAIL)
    async def smtp_MAIL(self, arg: str | None) -> None:
        with self._replies_held():
            await super().smtp_MAIL(arg)

    @functools.wraps(_smtp.SMTP.smtp_RCPT)
    async def smtp_RCPT(self, arg: str | None) -> None:
        with self._replies_held():
            await super().smtp_RCPT(arg)

    async def push(self, status: str | bytes) -> None:
        """Send a reply; those to MAIL and RCPT leave with the next one, or in the next loop turn.

        Pipelined commands stand in the reader and are worked off in one turn of the loop: so their
        replies leave together, and a reply to a command by itself leaves as soon as ever.
        """
        if not self._holding_replies:
            self._release_replies()
            await super().push(status)  # type: ignore[type-var]
            return
        if isinstance(status, str):
            status = status.encode("utf-8" if self.enable_SMTPUTF8 else "ascii")
        _smtp.log.debug("%r << %r", self.session.peer, status)
        if not self._held_replies:
            self.loop.call_soon(self._release_replies)
        self._held_replies += status + b"\r\n"
        if len(self._held_replies) > _HELD_REPLIES_BYTES:
            self._release_replies()
        await self._writer.drain()

    def _release_replies(self) -> None:
        if self._held_replies:
            self._writer.write(bytes(self._held_replies))
            self._held_replies.clear()

    @contextlib.contextmanager
    def _replies_held(self) -> Iterator[None]:
        self._holding_replies = True
        try:
            yield
        finally:
            self._holding_replies = False
