"""A fast SMTP server: aiosmtpd's server with a faster DATA, with BDAT, and with joined replies.

aiosmtpd reads the data line by line from a StreamReader whose limit is one line. So it pauses and
resumes the transport for every 2 KiB. In this module, data_received() passes whole blocks of the
socket to a decoder. Commands, replies, limits, handlers, hooks and controllers are those of
aiosmtpd.

Theory of operation. aiosmtpd reads commands from its StreamReader. When data begins, the server
empties the reader and sets ``_reception``. Then data_received() passes all octets to
``_reception``. After the end of the data, data_received() passes pipelined commands and all later
input to the reader again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
from collections.abc import Iterator
from typing import IO, Any

from ..checks import check_switches, checked_timeout, is_count, needs
from ..errors import ConfigurationError
from .reception import (
    ChunkDecoder,
    Content,
    DataDecoder,
    Decoder,
    Reception,
    Refusal,
    SmugglingCheck,
)

with needs("wsgifast.mail.server", "aiosmtpd", "mail"):
    from aiosmtpd import controller as _controller
    from aiosmtpd import smtp as _smtp

__all__ = [
    "Controller",
    "Envelope",
    "SMTPServer",
    "UnixSocketController",
    "UnixSocketUnthreadedController",
    "UnthreadedController",
]

# A size for read(). A StreamReader never contains so many octets, so read() returns all that it
# contains.
_ALL_BYTES = 1 << 40

# RFC 3030, 2. 64-bit sizes have at most twenty digits.
_BDAT_ARGUMENT = re.compile(r"(?P<size>[0-9]{1,20})(?P<last> +LAST)?", re.ASCII | re.IGNORECASE)

# The form of most addresses: dot-atom "@" domain in angle brackets, in ASCII (RFC 5321, 4.1.2),
# with parameters. All other addresses are parsed with the email package, which is much slower.
_PLAIN_ADDRESS = re.compile(
    r"<(?P<address>[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*"
    r"@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)>(?: +(?P<rest>[A-Za-z0-9][!-~ ]*))?",
    re.ASCII,
)


# If the waiting replies have more bytes, they are sent at once. The limit is needed because a
# client may pipeline any number of commands.
_WAITING_REPLIES_BYTES = 16 * 1024


class _FastFactory:
    """Makes a controller of aiosmtpd start an SMTPServer, with keyword arguments as options.

    The options are checked here, because a controller that fails to start does not close its port.
    """

    handler: Any
    SMTP_kwargs: dict[str, Any]

    def __init__(self, handler: object, *args: Any, **options: Any) -> None:
        check_options(handler, **options)
        super().__init__(handler, *args, **options)  # type: ignore[call-arg]  # a controller is next

    def factory(self) -> SMTPServer:
        return SMTPServer(self.handler, **self.SMTP_kwargs)


class Controller(_FastFactory, _controller.Controller):
    """aiosmtpd's Controller with an :class:`SMTPServer`, in a separate thread, on a TCP port.

    Its options are those of both classes.
    """


class UnthreadedController(_FastFactory, _controller.UnthreadedController):
    """aiosmtpd's UnthreadedController with an :class:`SMTPServer`, in the caller's event loop."""


class UnixSocketController(_FastFactory, _controller.UnixSocketController):
    """Like :class:`Controller`, on a Unix socket."""


class UnixSocketUnthreadedController(_FastFactory, _controller.UnixSocketUnthreadedController):
    """Like :class:`UnthreadedController`, on a Unix socket."""


class Envelope(_smtp.Envelope):
    """aiosmtpd's Envelope, with an attribute for the file of a long message."""

    content_file: IO[bytes] | None = None
    """The file of a spooled message, positioned at its start.

    The file is open until handle_DATA returns. If it is set, ``content`` and ``original_content``
    are None."""


class SMTPServer(_smtp.SMTP):
    """aiosmtpd.smtp.SMTP with fast DATA and BDAT, and with joined replies to MAIL and RCPT.

    All options of aiosmtpd apply. EHLO offers PIPELINING (RFC 2920), which aiosmtpd supports but
    does not announce. It also offers CHUNKING, or BDAT (RFC 3030). handle_EHLO can remove both.

    ``timeout`` limits the silence of a client, even within a message. In aiosmtpd it limits the
    time for a whole message. math.inf and None mean no limit.

    :param handler: a handler for aiosmtpd.
    :param spool_bytes: write longer content to a temporary file, and pass the file to the handler
        as ``envelope.content_file``. None: all content stays in memory. The file is in the system's
        temporary folder (TMPDIR).
    :param refuse_smuggling: refuse (554) a message with a line that consists of a dot and has a
        bare LF or CR before or after it. If False, such a dot is content, like in aiosmtpd. It
        never ends the data.
    :raises ConfigurationError: if an option has an invalid value.
    """

    # aiosmtpd's attributes. While a command runs, they are not None.
    session: _smtp.Session
    envelope: Envelope
    transport: asyncio.Transport
    _handler_coroutine: asyncio.Task[None]

    def __init__(
        self,
        handler: object,
        *,
        spool_bytes: int | None = None,
        refuse_smuggling: bool = False,
        **options: Any,
    ) -> None:
        check_options(
            handler, spool_bytes=spool_bytes, refuse_smuggling=refuse_smuggling, **options
        )
        if "timeout" in options and checked_timeout(options["timeout"]) is None:
            options["timeout"] = math.inf  # asyncio's timers accept it
        super().__init__(handler, **options)
        self._spool_bytes = spool_bytes
        self._refuse_smuggling = refuse_smuggling
        # Whether replies wait to be joined with later ones, and the waiting replies.
        self._replies_wait = False
        self._waiting_replies = bytearray()
        self._reception: Reception | None = None
        # The content of the transaction's BDAT commands so far.
        self._chunks: Content | None = None
        self._chunks_check: SmugglingCheck | None = None
        if self._ehlo_hook_ver is None:
            self._ehlo_hook_ver = "new"  # so that _call_handler_hook() can add extensions

    def data_received(self, data: bytes) -> None:
        """Receive octets from the transport."""
        if self._reception is None:
            super().data_received(data)
            return
        # Restart the timeout at each block, like Postfix and Exim. aiosmtpd's timeout for the whole
        # message is too short for slow links.
        self._reset_timeout()
        self._reception.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._drop_chunks()
        super().connection_lost(error)

    @functools.wraps(_smtp.SMTP.smtp_MAIL)
    async def smtp_MAIL(self, arg: str | None) -> None:
        with self._replies_joined():
            await super().smtp_MAIL(arg)

    @functools.wraps(_smtp.SMTP.smtp_RCPT)
    async def smtp_RCPT(self, arg: str | None) -> None:
        with self._replies_joined():
            await super().smtp_RCPT(arg)

    async def push(self, status: str | bytes) -> None:
        """Send a reply. Replies to MAIL and RCPT wait until the next iteration of the event loop.

        Pipelined commands are in the reader, and are handled in one iteration of the event loop. So
        the replies to them are sent together (RFC 2920, 3.2). The reply to a single command is sent
        when the iteration ends.
        """
        if not self._replies_wait:
            self._release_replies()
            await super().push(status)  # type: ignore[type-var]
            return
        if isinstance(status, str):
            status = status.encode("utf-8" if self.enable_SMTPUTF8 else "ascii")
        _smtp.log.debug("%r << %r", self.session.peer, status)
        if not self._waiting_replies:
            self.loop.call_soon(self._release_replies)
        self._waiting_replies += status + b"\r\n"
        if len(self._waiting_replies) > _WAITING_REPLIES_BYTES:
            self._release_replies()
        await self._writer.drain()

    @_smtp.syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        if await self.check_helo_needed() or await self.check_auth_needed("DATA"):
            return
        if not self.envelope.rcpt_tos:
            await self.push("503 Error: need RCPT command")
            return
        if arg:
            await self.push("501 Syntax: DATA")
            return
        if self._chunks is not None:  # RFC 3030, 2: DATA and BDAT must not be mixed
            await self.push("503 Error: DATA after BDAT")
            return
        await self.push("354 End data with <CR><LF>.<CR><LF>")
        decoder = DataDecoder(
            size_limit=self.data_size_limit,
            line_limit=self.line_length_limit,
            smuggling_check=self._new_smuggling_check(),
        )
        with contextlib.closing(Content(self._spool_bytes)) as content:
            await self._receive(decoder, content)
            if decoder.refusal is not None:
                await self.push(decoder.refusal.value)
                self._set_post_data_state()
            else:
                await self._deliver(content)

    @_smtp.syntax("BDAT <size> [LAST]")
    async def smtp_BDAT(self, arg: str | None) -> None:
        syntax = _BDAT_ARGUMENT.fullmatch(arg or "")
        if syntax is None:
            # The size of the data is unknown, and the data must not be read as commands.
            await self.push("501 Syntax: BDAT <size> [LAST]")
            self.transport.close()
            self._handler_coroutine.cancel()
            await asyncio.sleep(0)  # raises CancelledError, so no further line is read
            return
        size, last = int(syntax["size"]), syntax["last"] is not None
        if self._chunks is None:
            self._chunks = Content(self._spool_bytes)
            self._chunks_check = self._new_smuggling_check()
        content = self._chunks
        decoder = ChunkDecoder(size, self._chunks_check)
        # Without recipients, HELO, authentication or MAIL may be missing. Their checks follow
        # below.
        if not self.envelope.rcpt_tos or (
            self.data_size_limit and content.size + size > self.data_size_limit
        ):
            decoder.refusal = Refusal.TOO_MUCH  # the octets of the chunk are read and dropped
        try:
            if size:
                await self._receive(decoder, content)
            if await self.check_helo_needed() or await self.check_auth_needed("BDAT"):
                last = True
            elif not self.envelope.rcpt_tos:
                last = True
                await self.push("503 Error: need RCPT command")
            elif decoder.refusal is not None:
                await self.push(decoder.refusal.value)
                self._set_post_data_state()
            elif last:
                await self._deliver(content)
            else:
                await self.push(f"250 {size} octets received")
        finally:
            if last:
                self._drop_chunks()

    def _release_replies(self) -> None:
        if self._waiting_replies:
            self._writer.write(bytes(self._waiting_replies))
            self._waiting_replies.clear()

    @contextlib.contextmanager
    def _replies_joined(self) -> Iterator[None]:
        self._replies_wait = True
        try:
            yield
        finally:
            self._replies_wait = False

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        plain = _PLAIN_ADDRESS.fullmatch(arg)
        if plain is None or self.local_part_limit:
            return super()._getaddr(arg)
        return plain["address"], plain["rest"] or ""

    async def _receive(self, decoder: Decoder, content: Content) -> None:
        """Read data until the decoder finds the end of the data. Add its content to `content`."""
        try:
            # This returns as soon as there is input, and empties the reader.
            received = await self._reader.read(_ALL_BYTES)
            self._reception = Reception(decoder, content, self.transport, self.session.peer)
            self._reception.feed(received)
            await self._reception.wait_until_received()
        except asyncio.CancelledError:
            _smtp.log.info("Connection lost during DATA")
            self._writer.close()
            raise
        finally:
            self._reception = None
        if decoder.remaining:
            super().data_received(decoder.remaining)

    async def _deliver(self, content: Content) -> None:
        """Call the handler with the message, and send its reply."""
        if content.file is not None:
            content.file.seek(0)
            self.envelope.content_file = content.file
        else:
            original = content.joined()
            self.envelope.original_content = self.envelope.content = original
            if self._decode_data:
                try:
                    self.envelope.content = (
                        original.decode("utf-8", "surrogateescape")
                        if self.enable_SMTPUTF8
                        else original.decode("ascii")
                    )
                except UnicodeDecodeError:
                    await self.push("500 Error: strict ASCII mode")
                    return
        status = await self._call_handler_hook("DATA")
        self._set_post_data_state()
        await self.push("250 OK" if status is _smtp.MISSING else status)

    async def _call_handler_hook(self, command: str, *args: Any) -> Any:
        if command != "EHLO" or self._ehlo_hook_ver != "new":
            return await super()._call_handler_hook(command, *args)
        hostname, responses = args
        responses[-1:-1] = ["250-PIPELINING"]  # inserted before the last line, which has no hyphen
        # With require_starttls, aiosmtpd refuses BDAT without reading its data.
        if self._tls_protocol or not self.require_starttls:
            responses[-1:-1] = ["250-CHUNKING"]
        if "EHLO" in self._handle_hooks:
            return await super()._call_handler_hook(command, hostname, responses)
        self.session.host_name = hostname
        return responses

    def _create_envelope(self) -> Envelope:
        return Envelope()

    def _set_post_data_state(self) -> None:
        self._drop_chunks()
        super()._set_post_data_state()  # type: ignore[no-untyped-call]

    def _drop_chunks(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def _new_smuggling_check(self) -> SmugglingCheck | None:
        return SmugglingCheck() if self._refuse_smuggling else None


def check_options(
    handler: object,
    *,
    spool_bytes: object = None,
    refuse_smuggling: object = False,
    timeout: object = None,
    **options: object,
) -> None:
    """Check options of SMTPServer.

    :raises ConfigurationError: if an option has an invalid value.
    """
    if hasattr(handler, "process_message") and not hasattr(handler, "handle_DATA"):
        raise ConfigurationError(
            f"{type(handler).__name__} has only process_message(), which aiosmtpd deprecates: "
            "add handle_DATA()"
        )
    check_switches(refuse_smuggling=refuse_smuggling)
    checked_timeout(timeout)
    if spool_bytes is not None and not is_count(spool_bytes):
        raise ConfigurationError(f"spool_bytes is {spool_bytes!r}; it must be None, 0 or more")
    if spool_bytes is not None and options.get("decode_data"):
        raise ConfigurationError("spool_bytes needs binary content: leave out decode_data")
