"""imaplib's clients with TCP_NODELAY and an APPEND that leaves in one send.

imaplib sends a literal and the CR LF after it in two small writes: the second waits for the
acknowledgement of the first (Nagle's algorithm, RFC 896), which the server delays by about 40 ms.
"""

from __future__ import annotations

import imaplib
import re
from typing import Any

from ..sockets import set_nodelay
from .wire import CRLF, with_crlf

__all__ = ["IMAP4", "IMAP4_SSL"]

# A longer literal is not copied to be joined: only so much of its start and of its end leaves
# together with what stands around it.
_JOINED_BYTES = 256 * 1024
# RFC 7888, 5: LITERAL- allows a literal without waiting up to this size, LITERAL+ any.
_LITERAL_MINUS_BYTES = 4096
_LINE_BREAKING = re.compile(rb"[\0\r\n]")


class IMAP4(imaplib.IMAP4):
    """imaplib.IMAP4, to be used in its place.

    Where the server offers LITERAL+ or LITERAL- (RFC 7888), APPEND does not wait for its leave to
    send the message: the command, the message and the line end are one round trip, and one send
    unless the message is long. A message whose line ends are CR LF is not copied.
    ``capabilities`` is what says so: after a login, imaplib asks for it anew only if told to.
    """

    # The message of an APPEND that imaplib is about to write.
    _message: bytes | None = None
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
        :raises ValueError: if an argument contains NUL, CR or LF.
        """
        if self.utf8_enabled:
            return super().append(mailbox, flags, date_time, message)
        if not isinstance(message, bytes):
            message = bytes(memoryview(message))
        self._message = with_crlf(message)
        try:
            # The arguments are imaplib's to write, the message is not.
            return super().append(mailbox, flags, date_time, b"")
        finally:
            self.literal = None
            self._message = self._appendix = self._literal = self._held = None

    def _command(self, name: str, *args: str | bytes | None) -> bytes:
        """Send a command, as every method of imaplib's does by this one.

        :raises ValueError: if an argument would end the line and begin a command of its own
            (RFC 9051, 4.3). Nothing has been sent then.
        """
        if any(_LINE_BREAKING.search(_octets(argument)) for argument in args if argument):
            self.literal = None
            raise ValueError(f"{name}: an argument contains NUL, CR or LF")
        if self._message is not None:
            literal, self._message = self._message, None
            if self._may_send_at_once(len(literal)):
                self._appendix, self.literal = literal, None
                args += (f"{{{len(literal)}+}}",)
            else:
                self._literal = literal
                self.literal = literal  # type: ignore[assignment]  # bytes for a literal, in truth
        tag: bytes = super()._command(name, *args)  # type: ignore[misc]  # not in typeshed
        return tag

    def _may_send_at_once(self, size: int) -> bool:
        if "LITERAL+" in self.capabilities:
            return True
        return "LITERAL-" in self.capabilities and size <= _LITERAL_MINUS_BYTES


class IMAP4_SSL(IMAP4, imaplib.IMAP4_SSL):
    """imaplib.IMAP4_SSL, to be used in its place; see :class:`IMAP4`."""


def _octets(argument: str | bytes) -> bytes:
    return argument.encode() if isinstance(argument, str) else argument
