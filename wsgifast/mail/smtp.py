"""smtplib's clients with fewer round trips and fewer copies.

The clients use these extensions of a server:

- PIPELINING (RFC 2920): MAIL, every RCPT and DATA are sent together. Their replies are read
  together.
- CHUNKING (RFC 3030): BDAT declares the size of the message. So dots are not doubled, and a file is
  sent by sendfile. A small message is sent together with its envelope, in one round trip.

Without CHUNKING, the message is sent by DATA. Dots are doubled block by block.
"""

from __future__ import annotations

import contextlib
import email.message
import inspect
import os
import smtplib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, TypeAlias

from ..checks import checked_timeout
from ..sockets import (
    FileSegment,
    FileTruncated,
    file_segment,
    owned_socket,
    send_file_segment,
    set_nodelay,
)
from .wire import CRLF, Quoter, with_crlf

# A message is sent in parts of this size. The timeout applies to each part.
_TIMED_BYTES = 64 * 1024
# smtplib's default for `timeout`, an object that means the timeout of socket.setdefaulttimeout().
_DEFAULT_TIMEOUT = inspect.signature(smtplib.SMTP).parameters["timeout"].default

Reply: TypeAlias = "tuple[int, bytes]"

# The most commands to send before their replies are read. Unread replies must not fill the
# connection's buffers (RFC 2920, 3.1). A hundred replies have about 10 KiB.
_PIPELINED_COMMANDS = 100
# A message up to this size is sent together with its envelope, before the server has accepted any
# recipient. If the server accepts no recipient, the useless data costs less than another round trip
# would. The message is also joined with the commands into one send.
_SMALL_MESSAGE_BYTES = 64 * 1024
Message: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]"
"""A message for :meth:`SMTP.sendmail`, which describes these types."""

# The size of reads from a file. Smaller blocks of an iterable are joined to this size.
_BLOCK_BYTES = 256 * 1024


class SMTP(smtplib.SMTP):
    """A replacement of smtplib.SMTP with the same methods, replies and errors.

    sendmail() and send_message() do not call mail(), rcpt() and data(). So an override of these
    methods in a subclass has no effect on sendmail() and send_message(). All replies 2yz count as
    positive (RFC 5321, 4.2.1). smtplib reports a recipient with a 252 as refused, although the
    server delivers to that recipient.

    ``timeout`` is in seconds. None and math.inf mean no limit.

    If a server's support of an extension is broken, set ``pipelining`` or ``chunking`` to False, on
    an object or a subclass.
    """

    pipelining = True
    chunking = True

    def connect(self, host: str = "localhost", port: int = 0, source_address: Any = None) -> Reply:
        if self.timeout is not _DEFAULT_TIMEOUT:
            self.timeout = checked_timeout(self.timeout)  # type: ignore[assignment]  # or None
        reply = super().connect(host, port, source_address)
        if owned_socket(self) is not None:
            set_nodelay(self)
        return reply

    def sendmail(
        self,
        from_addr: str,
        to_addrs: str | Sequence[str],
        msg: Any,
        mail_options: Sequence[str] = (),
        rcpt_options: Sequence[str] = (),
    ) -> dict[str, Reply]:
        """Send a message, like smtplib's sendmail.

        :param msg: the message. A str must be ASCII, and its line ends become CR LF. Bytes are sent
            unchanged, with dots doubled for DATA. A binary file is sent from its position to its
            end. A file or an iterable of bytes is read block by block. Bytes are copied only for
            DATA, block by block. A str is copied once, and a second time if its line ends are not
            CR LF.
        :returns: the server's replies by refused recipient.
        :raises smtplib.SMTPSenderRefused: if the server refuses the sender.
        :raises smtplib.SMTPRecipientsRefused: if the server refuses all recipients.
        :raises smtplib.SMTPDataError: if the server refuses the data.
        :raises smtplib.SMTPServerDisconnected: if the connection is lost, or the server did not
            accept the message before the timeout.
        :raises ValueError: if an address contains a line end. Nothing was sent.
        :raises TypeError: if the message has another type.

        An error of the file or iterable is raised, and the message is not delivered.
        """
        self.ehlo_or_helo_if_needed()
        body = _Body(msg)
        recipients = [to_addrs] if isinstance(to_addrs, str) else list(to_addrs)
        commands = [self._mail_command(from_addr, body, mail_options)]
        rcpt_options = rcpt_options if self.does_esmtp else ()
        commands += [self._command("rcpt to:", recipient, rcpt_options) for recipient in recipients]
        chunked = self.chunking and self.has_extn("chunking")
        pipelined = self.pipelining and self.has_extn("pipelining")
        small = body.data is not None and len(body.data) <= _SMALL_MESSAGE_BYTES
        if not chunked:
            commands.append(b"data" + CRLF)
        elif pipelined and small:
            commands.append(body.as_last_chunk())
        dialogue = _Dialogue(self, commands, _PIPELINED_COMMANDS if pipelined else 1)

        code, response = dialogue.reply()
        if not _is_positive(code):
            self._reset_transaction(code, dialogue)
            raise smtplib.SMTPSenderRefused(code, response, from_addr)
        refused: dict[str, Reply] = {}
        accepted = 0
        for recipient in recipients:
            code, response = dialogue.reply()
            if _is_positive(code):
                accepted += 1
                continue
            refused[recipient] = (code, response)
            if code == 421:
                self.close()
                raise smtplib.SMTPRecipientsRefused(refused)
        if not accepted:
            self._reset_transaction(code, dialogue)
            raise smtplib.SMTPRecipientsRefused(refused)
        if not chunked:
            code, response = dialogue.reply()
            if code != 354:
                if _is_negative(code):
                    self._reset_transaction(code, dialogue)
                else:
                    self.close()  # this is not a reply to DATA, so replies no longer match commands
                raise smtplib.SMTPDataError(code, response)
            code, response = self._send_data(body)
        elif pipelined and small:
            code, response = dialogue.reply()
        else:
            code, response = self._send_chunks(body)
        if not _is_positive(code):
            self._reset_transaction(code, dialogue)
            raise smtplib.SMTPDataError(code, response)
        return refused

    def send(self, s: Any) -> None:
        """Send bytes. The timeout applies to each part of a long message, for slow links."""
        if isinstance(s, str) or len(s) <= _TIMED_BYTES:
            super().send(s)
            return
        view = memoryview(s)
        for start in range(0, len(view), _TIMED_BYTES):
            super().send(view[start : start + _TIMED_BYTES])

    def data(self, msg: Any) -> Reply:
        """Send DATA and a message, and return the reply to the message.

        :param msg: see :meth:`sendmail`.
        :raises smtplib.SMTPDataError: if the server's reply to DATA is not 354.
        """
        body = _Body(msg)
        code, response = self.docmd("data")
        if code != 354:
            raise smtplib.SMTPDataError(code, response)
        return self._send_data(body)

    def _mail_command(self, sender: str, body: _Body, mail_options: Sequence[str]) -> bytes:
        options: list[str] = []
        if self.does_esmtp:
            if self.has_extn("size") and body.size is not None:
                options.append(f"size={body.size}")
            options.extend(mail_options)
        if any(option.lower() == "smtputf8" for option in options):
            if not self.has_extn("smtputf8"):
                raise smtplib.SMTPNotSupportedError("SMTPUTF8 not supported by server")
            self.command_encoding = "utf-8"
        return self._command("mail from:", sender, options)

    def _command(self, verb: str, address: str, options: Iterable[str]) -> bytes:
        line = " ".join((verb + smtplib.quoteaddr(address), *options))
        if "\r" in line or "\n" in line:
            raise ValueError(f"a command contains a line end: {line!r}")
        return line.encode(self.command_encoding) + CRLF

    def _reset_transaction(self, code: int, dialogue: _Dialogue) -> None:
        """Reset the transaction, so that a new transaction can begin.

        After 421, close the connection.
        """
        if code == 421:
            self.close()
            return
        # If the connection is lost here, the caller still raises the error of the refusal. The next
        # command raises the error of the lost connection.
        with contextlib.suppress(smtplib.SMTPServerDisconnected):
            dialogue.abandon()
            self.rset()

    def _send_data(self, body: _Body) -> Reply:
        """Send a message and the end of the data, after a reply of 354. Return the reply."""
        quoter = Quoter()
        last = b""
        try:
            for block in _joined_blocks(map(quoter.feed, body.blocks())):
                if last:
                    self.send(last)
                last = block
        except BaseException:
            # If the end of the data were sent, the server would deliver an incomplete message.
            self.close()
            raise
        self.send(last + quoter.finish() + b"." + CRLF)
        return self.getreply()

    def _send_chunks(self, body: _Body) -> Reply:
        """Send a message by BDAT. Return the reply to the last chunk, or the first negative one."""
        if body.size is None:
            return self._send_unmeasured_chunks(body)
        line_end = body.missing_line_end()
        try:
            self.send(b"BDAT %d LAST\r\n" % (body.size + len(line_end)))
            self._send_measured(body)
            if line_end:
                self.send(line_end)
        except BaseException:
            self.close()  # the declared chunk cannot be completed
            raise
        return self.getreply()

    def _send_unmeasured_chunks(self, body: _Body) -> Reply:
        blocks = _joined_blocks(body.blocks())
        code, response = 250, b""
        last, last_bytes = False, b""
        while _is_positive(code) and not last:
            try:
                block = next(blocks, None)
            except BaseException:
                # The server does not deliver a message without its last chunk.
                with contextlib.suppress(smtplib.SMTPServerDisconnected):
                    self.rset()
                raise
            last = block is None
            if block is None:
                block = b"" if last_bytes == CRLF else CRLF
            last_bytes = (last_bytes + block[-2:])[-2:]
            self.send(b"BDAT %d%b\r\n%b" % (len(block), b" LAST" if last else b"", block))
            code, response = self.getreply()
        return code, response

    def _send_measured(self, body: _Body) -> None:
        """Send a message of known size unchanged. After an error the caller must call close()."""
        if body.data is not None:
            self.send(body.data)
        elif body.segment is not None and self.sock is not None:
            try:
                send_file_segment(self.sock, body.segment)
            except FileTruncated:
                raise
            except OSError as error:
                raise smtplib.SMTPServerDisconnected("Server not connected") from error


class SMTP_SSL(SMTP, smtplib.SMTP_SSL):
    """A replacement of smtplib.SMTP_SSL. See :class:`SMTP`."""


def _is_positive(code: int) -> bool:
    return 200 <= code <= 299


def _is_negative(code: int) -> bool:
    return 400 <= code <= 599


class _Dialogue:
    """Sends commands in groups, and reads their replies one by one.

    :param window: the most commands in a group.
    """

    def __init__(self, client: SMTP, commands: Sequence[bytes], window: int) -> None:
        self._client = client
        self._commands = commands
        self._window = window
        self._awaited = 0
        self._codes: list[int] = []

    def reply(self) -> Reply:
        """Return the next command's reply. Send the command's group first, if it is not sent."""
        if not self._awaited:
            sent = len(self._codes)
            group = self._commands[sent : sent + self._window]
            self._client.send(b"".join(group))
            self._awaited = len(group)
        self._awaited -= 1
        code, response = self._client.getreply()
        self._codes.append(code)
        return code, response

    def abandon(self) -> None:
        """Read the outstanding replies, and prevent the delivery of a message.

        A server may reply to DATA with 354 although it has accepted no recipient (RFC 2920, 3.1).
        Then the server waits for data. If all recipients were refused, a single dot ends the data.
        Otherwise the dot would deliver an empty message, so the connection is closed instead.
        """
        code = 0
        while self._awaited:
            code, _ = self.reply()
        if code != 354:
            return
        # The first command is MAIL, and the last is DATA.
        is_reply_to_data = len(self._codes) == len(self._commands)
        if is_reply_to_data and all(map(_is_negative, self._codes[1:-1])):
            self._client.send(b"." + CRLF)
            self._client.getreply()
        else:
            self._client.close()


class _Body:
    """A message to send: in memory, in a file for sendfile, or in blocks."""

    def __init__(self, message: Message) -> None:
        self.data: bytes | None = None
        self.segment: FileSegment | None = None
        self._source: Any = None
        if isinstance(message, str):
            self.data = with_crlf(message.encode("ascii"))
        elif isinstance(message, (bytes, bytearray, memoryview)):
            self.data = bytes(message)
        elif isinstance(message, email.message.Message):  # iterable, too
            raise TypeError(
                "sendmail() accepts the bytes of a message: use send_message() for the object"
            )
        elif hasattr(message, "read") or isinstance(message, Iterable):
            self.segment = file_segment(message)
            self._source = message
        else:
            raise TypeError(
                f"a message must be a str, bytes, a binary file or an iterable of bytes, not "
                f"{type(message).__name__}"
            )

    @property
    def size(self) -> int | None:
        """The octets of the message for SIZE (RFC 1870, 3). None if the number is unknown."""
        if self.data is not None:
            return len(self.data)
        return None if self.segment is None else self.segment.size

    def as_last_chunk(self) -> bytes:
        """Return the command and data of the message as a single chunk."""
        data = (self.data or b"") + self.missing_line_end()
        return b"BDAT %d LAST\r\n" % len(data) + data

    def missing_line_end(self) -> bytes:
        """Return CR LF if a message of known size does not end with CR LF. Otherwise return b""."""
        if self.segment is not None:
            fd, offset, size = self.segment
            last = os.pread(fd, min(size, len(CRLF)), offset + max(0, size - len(CRLF)))
        else:
            last = self.data or b""
        return b"" if last.endswith(CRLF) else CRLF

    def blocks(self) -> Iterator[bytes]:
        """Yield the message in blocks.

        The server handles a block while the dots of the next one are doubled.
        """
        if self.data is not None:
            for start in range(0, len(self.data), _BLOCK_BYTES):
                yield self.data[start : start + _BLOCK_BYTES]
            return
        if not hasattr(self._source, "read"):
            yield from self._source
            return
        while block := self._source.read(_BLOCK_BYTES):
            yield block


def _joined_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Join small blocks. Each block costs a send, and with BDAT also a reply."""
    small: list[bytes] = []
    size = 0
    for block in blocks:
        small.append(block)
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(small)
            small, size = [], 0
    if size:
        yield b"".join(small)
