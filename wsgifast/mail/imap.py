"""imaplib's clients with TCP_NODELAY, and with APPEND in one send.

imaplib sends a literal and the CR LF after it in two writes. The second write waits until the
server acknowledges the first (Nagle's algorithm, RFC 896). Servers delay the acknowledgement by
about 40 ms.
"""

from __future__ import annotations

import imaplib
import re
from typing import Any

from ..checks import checked_timeout
from ..sockets import send_all, set_nodelay
from .wire import CRLF, with_crlf

# The largest literal that may be sent without waiting for the server, with LITERAL- (RFC 7888, 5).
# With LITERAL+, the size is not limited.
_LITERAL_MINUS_BYTES = 4096
_LINE_BREAKING = re.compile(rb"[\0\r\n]")


class IMAP4(imaplib.IMAP4):
    """A replacement of imaplib.IMAP4.

    If the server offers LITERAL+ or LITERAL- (RFC 7888), APPEND sends the message without waiting
    for a continuation response. Then one send and one round trip suffice for the command, the
    message and the line end. A message whose line ends are CR LF is not copied. The attribute
    ``capabilities`` shows whether the server offers these extensions. imaplib does not update this
    attribute after a login.
    """

    # The message of the current APPEND.
    _message: bytes | None = None
    # A literal to send together with the next line of imaplib.
    _appendix: bytes | None = None
    # The literal that imaplib will send next, and the literal that waits for the line end after it.
    _literal: bytes | None = None
    _waiting: bytes | None = None

    def open(self, host: str = "", port: int | None = None, timeout: float | None = None) -> None:
        """Connect, like imaplib's open(). A timeout of math.inf means no limit."""
        other_port = {} if port is None else {"port": port}
        super().open(host, timeout=checked_timeout(timeout), **other_port)
        set_nodelay(self)

    def send(self, data: Any) -> None:
        """Send bytes. Join a literal with the line before or after it."""
        if self._literal is not None and data is self._literal:
            self._waiting, self._literal = self._literal, None
            return
        if self._waiting is not None:
            literal, self._waiting = self._waiting, None
            send_all(self.sock, [literal, data])
        elif self._appendix is not None:
            literal, self._appendix = self._appendix, None
            send_all(self.sock, [data, literal, CRLF])
        else:
            super().send(data)

    def append(
        self, mailbox: str | None, flags: str | None, date_time: Any, message: Any
    ) -> tuple[str, list[Any]]:
        """Append a message to a mailbox, with imaplib's arguments, result and errors.

        :param message: bytes-like. A bare CR or LF becomes CR LF.
        :raises TypeError: if the message is not bytes-like.
        :raises ValueError: if an argument contains NUL, CR or LF.
        """
        if self.utf8_enabled:
            return super().append(mailbox, flags, date_time, message)
        if not isinstance(message, bytes):
            message = bytes(memoryview(message))
        self._message = with_crlf(message)
        try:
            # imaplib formats the arguments. _command() adds the message.
            return super().append(mailbox, flags, date_time, b"")
        finally:
            self.literal = None
            self._message = self._appendix = self._literal = self._waiting = None

    def _command(self, name: str, *args: str | bytes | None) -> bytes:
        """Send a command. Every method of imaplib calls this method.

        :raises ValueError: if an argument contains a line end. The server would treat the next
            characters as another command (RFC 9051, 4.3). Nothing was sent.
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
                self.literal = literal  # type: ignore[assignment]  # bytes
        tag: bytes = super()._command(name, *args)  # type: ignore[misc]  # not in typeshed
        return tag

    def _may_send_at_once(self, size: int) -> bool:
        if "LITERAL+" in self.capabilities:
            return True
        return "LITERAL-" in self.capabilities and size <= _LITERAL_MINUS_BYTES


class IMAP4_SSL(IMAP4, imaplib.IMAP4_SSL):
    """A replacement of imaplib.IMAP4_SSL. See :class:`IMAP4`."""


def _octets(argument: str | bytes) -> bytes:
    return argument.encode() if isinstance(argument, str) else argument
