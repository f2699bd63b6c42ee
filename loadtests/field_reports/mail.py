"""Measure field reports 2 and 3: imports of mail by IMAP's APPEND, and mail by SMTP.

- imaplib and wsgifast.mail.IMAP4 with a real Dovecot, directly and through a TCP forwarder.
- smtplib with aiosmtpd, and wsgifast.mail's client with its server, by DATA and by BDAT.

The client runs in this process.
"""

from __future__ import annotations

import base64
import contextlib
import imaplib
import os
import secrets
import smtplib
import time
from collections.abc import Callable, Iterator
from functools import cache

from loadtests.bench import row, table
from loadtests.servers import small
from tests.support.mailservers import PASSWORD, dovecot
from tests.support.programs import ProgramMissing, program
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import HOST, running_server
from wsgifast.mail import IMAP4, SMTP

from ..harness.tables import BYTES, REQUESTS, Client, Row, Task

# A typical message without an attachment: 1 kB.
MESSAGE = b"From: a@example.com\r\nSubject: import\r\n\r\n" + (b"x" * 76 + b"\r\n") * 12
# A run ends after this number of messages, or after this time. With a delay of 40 ms for each
# message, 5,000 messages would take minutes.
APPENDS = {False: 300, True: 5_000}
APPEND_S = {False: 1.0, True: 20.0}
LARGE_BYTES = 20_000_000
SMALL_BYTES = 1_000
DELIVER_S = 30.0


def append(client_class: type[imaplib.IMAP4], *, forwarded: bool) -> Client:
    """Return a client that appends messages to an empty mailbox, and counts them."""

    def run(task: Task) -> Load:
        with _dovecot(forwarded) as port, client_class(HOST, port) as client:
            # The server makes a mailbox for every name.
            client.login(secrets.token_hex(8), PASSWORD)
            cpu, started = time.process_time(), time.perf_counter()
            done = 0
            while done < APPENDS[task.full] and time.perf_counter() - started < APPEND_S[task.full]:
                status, reply = client.append("INBOX", "", "", MESSAGE)
                if status != "OK":
                    raise RuntimeError(f"the server refused a message: {reply!r}")
                done += 1
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            _, stored = client.select("INBOX", readonly=True)
            if stored != [b"%d" % done]:
                raise RuntimeError(f"{done} messages were appended, {stored!r} are stored")
        return Load(done, 0, done * len(MESSAGE), seconds, client_cpu_s=cpu)

    return run


@contextlib.contextmanager
def _dovecot(forwarded: bool) -> Iterator[int]:
    try:
        program("dovecot")
    except ProgramMissing as error:
        raise RuntimeError(str(error)) from None
    with dovecot() as imap:
        if not forwarded:
            yield imap.port
            return
        with running_server(small("forward", imap.port), "forwarder") as forwarder:
            yield forwarder.address[1]


def _append_row(key: str, title: str, *, forwarded: bool) -> Row:
    kinds = {"imaplib": imaplib.IMAP4, "wsgifast": IMAP4}
    clients = {name: append(kind, forwarded=forwarded) for name, kind in kinds.items()}
    return row(f"field.imap.{key}", title, clients)


APPEND = table(
    "field-report-imap",
    "imaplib and TCP_NODELAY",
    [
        _append_row("direct", "APPEND of 1 kB into Dovecot", forwarded=False),
        _append_row("forwarded", "APPEND of 1 kB behind a TCP forwarder", forwarded=True),
    ],
    old_table=(
        "Then: Python 2, import of 5,000 messages by APPEND",
        ["", "s", "messages/s", "ms each"],
        [
            ["imaplib", 210.9, 23.8, 42.2],
            ["imaplib with TCP_NODELAY=1", 14.0, 357.0, 2.8],
            ["a Perl client", 7.9, 632.0, 1.6],
        ],
    ),
    notes=[
        "What has changed: Dovecot asks its kernel for quick acknowledgements (TCP_QUICKACK). So "
        "the second of two small writes no longer waits. imaplib has not changed: it still sends "
        "a literal and its line end in two small writes. Behind a TCP forwarder, or with a server "
        "without TCP_QUICKACK, each message still takes 40 ms.",
        "The limit today is Dovecot.",
    ],
)


class DataOnly(SMTP):
    """wsgifast's client without BDAT."""

    chunking = False


@cache
def attachment(size: int) -> bytes:
    """Return a message with an attachment: headers, and base64 in lines of 76 characters."""
    headers = b"From: a@example.com\r\nTo: b@example.com\r\nSubject: A file.\r\n\r\n"
    body = base64.encodebytes(os.urandom(size * 3 // 4)).replace(b"\n", b"\r\n")
    return (headers + body)[: size - 2] + b"\r\n"


@cache
def prose(size: int) -> bytes:
    """Return a message whose lines all begin with a dot. DATA must quote every line."""
    line = b".And so on. It goes on and on.\r\n"
    return (line * (size // len(line) + 1))[: size - 2] + b"\r\n"


def deliver(
    client_class: type[smtplib.SMTP],
    make: Callable[[int], bytes],
    size: int,
    messages: int,
    short_messages: int,
) -> Client:
    """Return a client that sends messages on one connection. The first message is not measured.

    :param messages: the number of messages in a full run.
    :param short_messages: the number of messages in a short run.
    """

    def run(task: Task) -> Load:
        message = make(size)
        with client_class(*task.address, local_hostname="client") as client:
            client.sendmail("a@example.com", ["b@example.com"], message)
            cpu, started = time.process_time(), time.perf_counter()
            done = 0
            while done < (messages if task.full else short_messages):
                client.sendmail("a@example.com", ["b@example.com"], message)
                done += 1
                if time.perf_counter() - started > DELIVER_S:
                    break
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return Load(done, 0, done * len(message), seconds, client_cpu_s=cpu)

    return run


def _deliver_row(
    key: str,
    title: str,
    make: Callable[[int], bytes],
    size: int,
    messages: int,
    short_messages: int,
) -> Row:
    sides: dict[str, tuple[str, type[smtplib.SMTP]]] = {
        "smtplib, aiosmtpd": ("smtp-stock", smtplib.SMTP),
        "wsgifast, DATA": ("smtp-fast", DataOnly),
        "wsgifast, BDAT": ("smtp-fast", SMTP),
    }
    contenders = {
        name: (small(server), deliver(client, make, size, messages, short_messages))
        for name, (server, client) in sides.items()
    }
    unit = BYTES if size == LARGE_BYTES else REQUESTS
    return row(f"field.smtp.{key}", title, contenders, unit=unit)


DELIVERY = table(
    "field-report-smtp",
    "SMTP: smtplib and aiosmtpd",
    [
        _deliver_row("attachment", "20 MB, an attachment", attachment, LARGE_BYTES, 5, 1),
        _deliver_row("prose", "20 MB, a dot before each line", prose, LARGE_BYTES, 2, 1),
        _deliver_row("small", "messages of 1 kB", attachment, SMALL_BYTES, 10_000, 500),
    ],
    old_table=(
        "Then: Python 2, client and server on one machine",
        ["", "MB/s", "gain"],
        [["before", 15.0, None], ["after", 220.0, "14x"]],
    ),
    notes=[
        "What has changed: Python no longer has smtpd. Its successor aiosmtpd reads line by line. "
        "The client still applies a regular expression to the whole message.",
        "The limit today is the kernel, which copies the message into the socket and out of it. "
        "With DATA, the server also searches for line ends and dots. With BDAT it does not.",
    ],
)
TABLES = [APPEND, DELIVERY]
