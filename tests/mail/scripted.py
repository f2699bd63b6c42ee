"""An SMTP server with scripted replies that records the messages of its clients."""

from __future__ import annotations

import re
import smtplib
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from wsgifast.mail import SMTP

TIMEOUT_S = 60.0
FEATURES = {
    "plain": ("SIZE", "8BITMIME"),
    "pipelining": ("SIZE", "8BITMIME", "PIPELINING"),
    "chunking": ("SIZE", "8BITMIME", "CHUNKING"),
    "both": ("SIZE", "8BITMIME", "PIPELINING", "CHUNKING"),
}
SENDER, RECIPIENTS = "anne@example.com", ["bart@example.com", "cate@example.com"]
TEXT = b"Subject: dots\r\n\r\n.one\r\n..two\r\n.\r\nlast"
LARGE = b"Subject: large\r\n\r\n" + (b".x" * 38 + b"\r\n") * 4000
PLAIN = LARGE.replace(b".x", b"xx")  # no line starts with a dot


def connect(server: ScriptedSMTP, client_class: type[smtplib.SMTP] = SMTP) -> Any:
    return client_class("127.0.0.1", server.port, local_hostname="client", timeout=60)


def delivered(message: bytes, *, chunked: bool) -> bytes:
    """Return the bytes that the server receives for a message."""
    whole = message if message.endswith(b"\r\n") else message + b"\r\n"
    if chunked:
        return whole
    quoted = whole.replace(b"\n.", b"\n..")
    return b"." + quoted if quoted.startswith(b".") else quoted


class ScriptedSMTP:
    """Serve one connection after the other, in a thread.

    :param features: EHLO's lines. None: EHLO is refused, only HELO is known.
    :param scripted: verb -> replies, used in turn. After the last one the reply is 250, or 354 to
        DATA, or 503 if an earlier command was refused. "message" stands for the reply to the data.
        A reply of None closes the connection.
    :param needs_sender: False to take recipients although the sender was refused.
    """

    def __init__(
        self,
        features: Sequence[str] | None = ("PIPELINING", "CHUNKING", "SIZE", "8BITMIME"),
        scripted: Mapping[str, Sequence[str | None]] | None = None,
        *,
        needs_sender: bool = True,
    ) -> None:
        self.features = features
        self.scripted = {verb: list(replies) for verb, replies in (scripted or {}).items()}
        self.needs_sender = needs_sender
        self.commands: list[str] = []
        """Every command line, in order."""
        self.reads: list[bytes] = []
        """What each receive returned."""
        self.messages: list[bytes] = []
        """The messages taken, as they came: dots of DATA still doubled, without its end."""
        self.deliveries: list[tuple[list[str], bytes]] = []
        """The messages that got a positive reply, with the recipients that had got one."""
        self._chunks = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ScriptedSMTP:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), f"the server hangs; it was sent {self.commands}"

    def verbs(self) -> list[str]:
        """Return the commands without their arguments, in lower case."""
        return [command.split(" ")[0].lower() for command in self.commands]

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(TIMEOUT_S)
                try:
                    self._converse(sock)
                except ConnectionError:
                    pass

    def _converse(self, sock: socket.socket) -> None:
        buffer = b""

        def receive() -> None:
            nonlocal buffer
            data = sock.recv(1 << 20)
            if not data:
                raise ConnectionAbortedError
            self.reads.append(data)
            buffer += data

        def send_reply(kind: str, default: str) -> str:
            replies = self.scripted.get(kind)
            reply = replies.pop(0) if replies else default
            if reply is None:
                raise ConnectionAbortedError
            sock.sendall(reply.encode() + b"\r\n")
            return reply

        send_reply("connect", "220 scripted")
        sender = False  # whether this transaction has an accepted sender
        recipients: list[str] = []
        while True:
            while b"\r\n" not in buffer:
                receive()
            line, _, buffer = buffer.partition(b"\r\n")
            command = line.decode("utf-8")
            self.commands.append(command)
            verb = command.split(" ")[0].lower()
            if verb == "bdat":
                size = int(command.split(" ")[1])
                while len(buffer) < size:
                    receive()
                self._chunks += buffer[:size]
                buffer = buffer[size:]
                if not recipients:
                    send_reply("none", "503 no recipients")
                elif send_reply("bdat", "250 chunk").startswith("2") and command.endswith("LAST"):
                    self.messages.append(self._chunks)
                    self.deliveries.append((recipients, self._chunks))
                    sender, recipients, self._chunks = False, [], b""
            elif verb == "data":
                default = "354 go on" if recipients else "503 no recipients"
                if send_reply("data", default).startswith("354"):
                    while not (end := re.search(rb"(?:\A|\r\n)\.\r\n", buffer)):
                        receive()
                    self.messages.append(buffer[: end.end() - 3])
                    buffer = buffer[end.end() :]
                    if send_reply("message", "250 taken").startswith("2"):
                        self.deliveries.append((recipients, self.messages[-1]))
                    sender, recipients = False, []
            elif verb == "ehlo":
                if self.features is None:
                    send_reply("ehlo", "502 unknown")
                else:
                    lines = ["scripted", *self.features]
                    last = "".join(f"250-{line}\r\n" for line in lines[:-1]) + f"250 {lines[-1]}"
                    send_reply("ehlo", last)
            elif verb == "quit":
                send_reply("quit", "221 bye")
                return
            elif verb == "mail":
                sender = send_reply("mail", "503 nested" if sender else "250 fine").startswith("2")
            elif verb == "rcpt":
                if not sender and self.needs_sender:
                    send_reply("none", "503 no sender")
                elif send_reply("rcpt", "250 fine").startswith("2"):
                    recipients.append(command.partition("<")[2].partition(">")[0])
            else:
                if verb == "rset":
                    sender, recipients, self._chunks = False, [], b""
                send_reply(verb, "250 fine")
