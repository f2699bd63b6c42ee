"""Our mail server for tests, and a client that sends commands line by line."""

from __future__ import annotations

import contextlib
import smtplib
import socket
from collections.abc import Iterator
from typing import Any

from tests.support.servers import free_port, wait_for
from wsgifast.mail import SMTP
from wsgifast.mail import server as fast

SENDER, RECIPIENT = "anne@example.com", "bart@example.com"


TEXT = b"Subject: dots\r\n\r\n.one\r\n..two\r\n.\r\nlast\r\n"


LARGE = b"Subject: large\r\n\r\n" + (b".x" * 38 + b"\r\n") * 40_000  # 3 MB


class Handler:
    """Store the content of each message. Reject some recipients."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.spooled: list[bool] = []
        self.files: list[Any] = []

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address.startswith("refused"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if envelope.mail_from.startswith("broken"):
            raise LookupError("handler")
        file = getattr(envelope, "content_file", None)
        if file is not None:
            assert envelope.content is envelope.original_content is None
            self.files.append(file)
            self.received.append(file.read())
        else:
            self.received.append(envelope.content)
        self.spooled.append(file is not None)
        return "250 taken"


@contextlib.contextmanager
def serving(
    controller_class: type[Any] = fast.Controller, *, handler: Any = None, **options: Any
) -> Iterator[tuple[int, Handler]]:
    """Serve until all clients have left.

    aiosmtpd's controllers would not close their connections.
    """
    connections: list[Any] = []

    class Watched(controller_class):  # type: ignore[misc]
        def factory(self) -> Any:
            connections.append(super().factory())
            return connections[-1]

    handler = Handler() if handler is None else handler
    controller = Watched(handler, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield controller.port, handler
        wait_for(lambda: all(c.transport is None for c in connections), "all clients have left")
    finally:
        controller.stop()


class Line:
    """A plain connection that sends commands and reads replies."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.file = self.sock.makefile("rb")
        assert self.reply().startswith(b"220")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(self) -> bytes:
        while True:
            line = self.file.readline()
            if line[3:4] != b"-":
                return line.rstrip()

    def say(self, *commands: bytes) -> bytes:
        """Send commands one by one. Return the reply to the last."""
        for command in commands:
            self.send(command + b"\r\n")
            reply = self.reply()
        return reply

    def begin(self) -> None:
        assert self.say(b"EHLO x", b"MAIL FROM:<a@b.c>", b"RCPT TO:<d@e.f>") == b"250 OK"


def send(port: int, message: Any, *, client: type[smtplib.SMTP] = SMTP, **attributes: Any) -> Any:
    with client("127.0.0.1", port, local_hostname="client", timeout=60) as smtp:
        for name, value in attributes.items():
            setattr(smtp, name, value)
        return smtp.sendmail(SENDER, [RECIPIENT], message)
