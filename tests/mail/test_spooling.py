"""The data of messages: in memory, in temporary files, and if the client or the disk fails."""

from __future__ import annotations

import errno
import smtplib
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.mail.serving import LARGE, RECIPIENT, SENDER, TEXT, Handler, Line, send, serving
from tests.support.calls import raising
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from wsgifast.mail import SMTP
from wsgifast.mail import server as fast
from wsgifast.mail.reception import Content


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary files are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("chunking", [True, False])
@pytest.mark.parametrize("spool_bytes", [0, len(TEXT), 1_000_000])
def test_long_content_is_spooled(folder: Path, spool_bytes: int, chunking: bool) -> None:
    with serving(spool_bytes=spool_bytes) as (port, handler):
        for message in (TEXT, LARGE):
            send(port, message, chunking=chunking)
    assert handler.received == [TEXT, LARGE]
    assert handler.spooled == [len(TEXT) > spool_bytes, True]
    assert all(file.closed for file in handler.files)
    assert list(folder.iterdir()) == []


def test_message_in_several_chunks_is_spooled() -> None:
    with serving(spool_bytes=1000) as (port, handler), Line(port) as line:
        line.begin()
        for at in range(0, len(LARGE), 70_000):
            block = LARGE[at : at + 70_000]
            line.send(b"BDAT %d\r\n%b" % (len(block), block))
            assert line.reply()[:3] == b"250"
        assert line.say(b"BDAT 0 LAST") == b"250 taken"
    assert (handler.received, handler.spooled) == ([LARGE], [True])


def test_spooled_message_beyond_the_limit_is_refused(folder: Path) -> None:
    with serving(spool_bytes=1000, data_size_limit=2 * len(LARGE)) as (port, handler):
        send(port, LARGE, chunking=False)
        with Line(port) as line:
            line.begin()
            assert line.say(b"DATA")[:3] == b"354"
            line.send(LARGE * 3 + b".\r\n")
            assert line.reply()[:3] == b"552"
            assert line.say(b"NOOP") == b"250 OK"
            assert open_files_in(folder) == []
    assert handler.spooled == [True]


@pytest.mark.parametrize("chunking", [True, False])
def test_full_disk_refuses_a_message_for_now(monkeypatch: Any, chunking: bool) -> None:
    with serving(spool_bytes=1000) as (port, handler):
        with monkeypatch.context() as patch:
            patch.setattr(
                tempfile, "TemporaryFile", raising(OSError, errno.ENOSPC, "No space left on device")
            )
            with pytest.raises(smtplib.SMTPDataError) as refused:
                send(port, LARGE, chunking=chunking)
        assert refused.value.smtp_code == 452
        send(port, LARGE, chunking=chunking)
    assert handler.received == [LARGE]


def test_disk_that_fills_up_refuses_messages(monkeypatch: Any) -> None:
    """Bytes that the disk did not accept stay in the file's buffer.

    Closing the file fails once more.
    """

    def full(**options: Any) -> Any:
        return open("/dev/full", "w+b")

    with serving(spool_bytes=5) as (port, handler), Line(port) as line:
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        line.begin()
        assert line.say(b"BDAT 10\r\n12345678")[:3] == b"452"
        line.begin()
        assert (
            line.say(b"DATA", b"12345678\r\n.") == b"452 4.3.1 Error: insufficient system storage"
        )
        assert line.say(b"NOOP") == b"250 OK"
    assert handler.received == []


def test_many_chunks_are_in_memory_once() -> None:
    block = b"x" * 100_000

    content = Content(None)
    tracemalloc.start()
    try:
        for _ in range(100):
            content.add(bytes(bytearray(block)))  # a separate block each time
        joined = content.joined()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert joined == block * 100
    assert most < 1.5 * len(joined)


def test_dropped_content_frees_its_memory() -> None:
    content = Content(None)
    content.add(LARGE)
    content.close()
    content.add(LARGE)
    assert content.joined() == b""


async def test_spool_file_of_a_client_that_left_is_closed(monkeypatch: Any) -> None:
    made: list[Any] = []
    real = tempfile.TemporaryFile
    content = Content(0)

    def late(**options: Any) -> Any:
        content.close()
        made.append(real(**options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", late)
    content.add(b"data")
    await content.spool()
    assert [file.closed for file in made] == [True]


@pytest.mark.parametrize("chunking", [True, False])
def test_failed_handler_keeps_the_connection(chunking: bool) -> None:
    with serving() as (port, handler), SMTP("127.0.0.1", port, timeout=60) as client:
        client.chunking = chunking
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.sendmail("broken@example.com", [RECIPIENT], TEXT)
        assert refused.value.args == (500, b"Error: (LookupError) handler")
        client.sendmail(SENDER, [RECIPIENT], TEXT)
    assert handler.received == [TEXT]


@pytest.mark.parametrize(
    "command", [b"DATA", b"BDAT 10000000 LAST", b"BDAT 10000000", b"BDAT %d" % len(LARGE)]
)
def test_client_that_leaves_in_its_data_leaves_no_file(folder: Path, command: bytes) -> None:
    with serving(spool_bytes=1000) as (port, handler):
        with Line(port) as line:
            line.begin()
            line.send(command + b"\r\n" + LARGE)
        send(port, TEXT)  # the server continues
        wait_for(lambda: not open_files_in(folder), "the spool file is closed")
    assert handler.received == [TEXT]


def test_slow_disk_pauses_the_client(monkeypatch: Any) -> None:
    real, disk_is_back = tempfile.TemporaryFile, threading.Event()
    server: Any = None

    def slow(**options: Any) -> Any:
        assert disk_is_back.wait(60)
        return real(**options)

    class Watching(fast.Controller):
        def factory(self) -> Any:
            nonlocal server
            server = super().factory()
            return server

    monkeypatch.setattr(tempfile, "TemporaryFile", slow)
    with serving(Watching, spool_bytes=0) as (port, handler), Line(port) as line:
        line.begin()
        size = 30_000_000  # more than the buffers of a loopback connection
        sender = threading.Thread(
            target=line.send, args=(b"BDAT %d LAST\r\n" % size + b"x" * size,)
        )
        sender.start()
        try:
            wait_for(lambda: server.transport.is_reading() is False, "the server reads no more")
            assert sender.is_alive()
        finally:
            disk_is_back.set()
            sender.join()
        assert line.reply() == b"250 taken"
    assert list(map(len, handler.received)) == [size]


@pytest.mark.parametrize("command", [b"DATA", b"BDAT 10000000"])
def test_piece_of_a_message_restarts_the_timeout(command: bytes) -> None:
    class Own(Handler):
        server: Any = None

        async def handle_RCPT(self, server: Any, *args: Any) -> str:
            self.server = server
            return await super().handle_RCPT(server, *args)

    handler = Own()
    with serving(handler=handler) as (port, _), Line(port) as line:
        line.begin()
        line.send(command + b"\r\na piece\r\n")
        wait_for(lambda: handler.server._reception is not None, "data is waited for")
        for _ in range(2):
            timer = handler.server._timeout_handle
            line.send(b"a piece\r\n")
            wait_for(timer.cancelled, "the timeout begins anew")
            wait_for(lambda: not handler.server._timeout_handle.cancelled(), "there is another one")


def open_files_in(folder: Path) -> list[str]:
    """Return this process's files in a folder, also deleted ones."""
    return [name for _, name in open_descriptors() if name.startswith(str(folder))]
