"""imaplib's clients with TCP_NODELAY and an APPEND that leaves in one send.

imaplib sends a literal and the CR LF after it in two small writes: the second waits for the
acknowledgement of the first (Nagle's algorithm, RFC 896), which the server delays by about 40 ms.
"""

from __future__ import annotations

import imaplib
from typing import Any

from ..sockets import set_nodelay
from .wire import CRLF, with_crlf

__all__ = ["IMAP4", "IMAP4_SSL"]

# A longer literal is not copied to be joined: only so much of its start and of its end leaves
# together with what stands around it.
_JOINED_BYTES = 256 * 1024
# RFC 7888, 5: LITERAL- allows a literal without waiting up to this size, LITERAL+ any.
_LITERAL_MINUS_BYTES = 4096


class IMAP4(imaplib.IMAP4):
    """imaplib.IMAP4, to be used in its place.

    Where the server offers LITERAL+ or LITERAL- (RFC 7888), APPEND does not wait for its leave to
    send the message: the command, the message and the line end are one round trip, and one send
    unless the message is long. A message whose line ends are CR LF is not copied.
    ``capabilities`` is what says so: after a login, imaplib asks for it anew only if told to.
    """

    # What is to leave together with the next line that imaplib sends.
    _appendix: bytes | None = None
    # A literal that imaplib is about to send by itself, and then: its line end follows in the next
    # call.
    _literal: bytes | None = None
    _held: bytes | None = None

    def open(self, *args: Any, **kwargs: Any) -> None:
        super().open(*args, **kwargs)
        set_nodelay(self)

    def send(self, data: Any) -> None:
        """Send bytes, together with what belongs to them."""
        if self._literal is not None and data is self._literal:
            self._held, self._literal = self._literal, None
            return
        if self._held is not None:
            literal, self._held = self._held, None
            self._send_around(b"", literal, data)
        elif self._appendix is not None:
            literal, self._appendix = self._appendix, None
            self._send_around(data, literal, CRLF)
        else:
            super().send(data)

    def _send_around(self, before: bytes, literal: bytes, after: bytes) -> None:
        """Send a literal and what stands around it: in one send, or three if it is long."""
        view = memoryview(literal)
        start, end = _JOINED_BYTES, len(view) - _JOINED_BYTES
        if start < end:
            super().send(b"".join((before, view[:start])))
            super().send(view[start:end])
            before, view = b"", view[end:]
        super().send(b"".join((before, view, after)))

    def append(
        self, mailbox: str | None, flags: str | None, date_time: Any, message: Any
    ) -> tuple[str, list[Any]]:
        """Append a message to a mailbox; arguments, result and errors as imaplib's.

        :param message: bytes; line ends that are not CR LF are made so.
        :raises TypeError: if the message is not bytes-like.
        """
        if self.utf8_enabled:
            return super().append(mailbox, flags, date_time, message)
        if not isinstance(message, bytes):
            message = bytes(memoryview(message))
        literal = with_crlf(message)
        arguments = [mailbox or "INBOX"]
        if flags:
            arguments.append(flags if (flags[0], flags[-1]) == ("(", ")") else f"({flags})")
        if date_time:
            arguments.append(imaplib.Time2Internaldate(date_time))
        try:
            if self._may_send_at_once(len(literal)):
                self._appendix = literal
                arguments.append(f"{{{len(literal)}+}}")
            else:
                self._literal = literal
                self.literal = literal  # type: ignore[assignment]  # bytes for a literal, in truth
            return self.xatom("APPEND", *arguments)
        finally:
            self._appendix = self._literal = self._held = None

    def _may_send_at_once(self, size: int) -> bool:
        if "LITERAL+" in self.capabilities:
            return True
        return "LITERAL-" in self.capabilities and size <= _LITERAL_MINUS_BYTES


class IMAP4_SSL(IMAP4, imaplib.IMAP4_SSL):
    """imaplib.IMAP4_SSL, to be used in its place; see :class:`IMAP4`."""
