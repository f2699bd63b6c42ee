"""Send the replies to pipelined commands together (RFC 2920, 3.2)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from ..checks import needs

with needs("wsgifast.mail.server", "aiosmtpd", "mail"):
    from aiosmtpd import smtp as _smtp

# Beyond this, held replies are sent at once: a client may pipeline any number of commands.
_HELD_REPLIES_BYTES = 16 * 1024


class PipelinedSMTP(_smtp.SMTP):
    """aiosmtpd.smtp.SMTP with the replies to MAIL and RCPT sent together with the next one."""

    session: _smtp.Session  # None only while no command runs

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
        """Send a reply; one to MAIL or RCPT with the next reply, or in the loop's next iteration.

        Pipelined commands are buffered in the reader and handled in one iteration of the loop: so
        their replies are sent together, and the reply to a single command is not delayed.
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
