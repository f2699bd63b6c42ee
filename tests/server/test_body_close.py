"""When close() of a body is called: once, and as soon as nothing reads from its file.

A body of bytes is closed when its last block is in the output queue. If the output reads a file of
the app, the body is closed after the last byte, or when the response is aborted.
"""

from __future__ import annotations

import io
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper
from werkzeug.wsgi import ClosingIterator

from tests.server.connections import (
    CLIENT_ENDS,
    MakeStepped,
    end_client,
    responds_wrapped,
    responses,
)
from tests.server.http2_peer import STREAM_ENDS, Begin
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from tests.workers.stepped_worker import GET, LARGE, SteppedWorker, request_for
from wsgifast import StaticFiles, WSGIFast
from wsgifast.bodies.files import SegmentedBody
from wsgifast.server.endpoint import CLOSED, LINGERING
from wsgifast.sockets import FileSegment


class Watched:
    """An app that makes bodies, and counts the calls of their close().

    :param fails: close() raises.
    """

    def __init__(self, make: Callable[[Watched], Any], *, fails: bool = False) -> None:
        self.closed = 0
        self.errors: list[BaseException] = []
        self.make = make
        self._fails = fails

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return self.make(self)

    def close(self) -> None:
        self.closed += 1
        if self._fails:
            raise ValueError("close() has failed")

    @property
    def raw(self) -> object:
        raise AssertionError("an app's object is asked for what files have")


class Iterable:
    def __init__(self, blocks: Iterator[bytes], watched: Watched) -> None:
        self._blocks = blocks
        self.close = watched.close

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks


def _generator(watched: Watched) -> Iterator[bytes]:
    try:
        for _ in range(16):
            yield bytes(LARGE // 16)
        watched.errors.append(AssertionError("it was not cut off"))
    finally:
        watched.close()


def _list(watched: Watched) -> Any:
    return ClosingIterator([bytes(LARGE)], watched.close)


def _blocks(watched: Watched) -> Any:
    return Iterable((bytes(LARGE // 16) for _ in range(16)), watched)


def _file(watched: Watched) -> Any:
    class File(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                super().close()
                watched.close()

    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(bytes(LARGE))
    body = File(file.name, "rb")
    Path(file.name).unlink()
    return FileWrapper(body)


def _bytes_io(watched: Watched) -> Any:
    class File:
        """A file object without a descriptor, for a file wrapper."""

        def __init__(self) -> None:
            self._data = io.BytesIO(bytes(LARGE))
            self.read = self._data.read
            self.close = watched.close

    return FileWrapper(File())


KINDS = [_list, _blocks, _file, _bytes_io]


def is_read_by_output(make: Callable[[Watched], Any]) -> bool:
    """Return whether the output reads a file of the app while the client receives the body."""
    return make is _file


def of_size(size: int) -> Callable[[Watched], Any]:
    return lambda watched: ClosingIterator([bytes(size)], watched.close)


def wait_until_closed(stepped: SteppedWorker, watched: Watched, times: int = 1) -> None:
    """Let disk threads deliver the bytes that they read."""

    def is_closed() -> bool:
        stepped.run()
        return watched.closed >= times

    wait_for(is_closed, "it is closed")
    stepped.run()
    assert watched.closed == times


@pytest.mark.parametrize("make", [*KINDS, _generator])
@pytest.mark.parametrize("end", CLIENT_ENDS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_body_is_closed_once_at_each_end(
    make_stepped: MakeStepped, make: Any, end: str, wrapped: bool
) -> None:
    watched = Watched(make)
    stepped = make_stepped(WSGIFast(watched) if wrapped else watched, keepalive=5)
    client = stepped.begin()
    assert client.near.output.is_waiting
    assert watched.closed == (0 if is_read_by_output(make) else 1)
    received = end_client(stepped, client, end)
    wait_until_closed(stepped, watched)
    if end != "read":
        assert client.is_in(CLOSED)
        stepped.pass_time(100)
        assert watched.closed == 1
        return
    assert len(received) > LARGE
    client.run(GET)
    client.close()
    stepped.run()
    assert watched.closed == 2  # once for each response


@pytest.mark.parametrize("make", KINDS)
def test_body_is_closed_once_when_framed(begin: Begin, make: Any) -> None:
    watched = Watched(make)
    peer = begin(watched, window=1000)
    response = peer.get()
    assert len(response.body) == 1000
    assert watched.closed == (0 if is_read_by_output(make) else 1)

    def has_ended() -> bool:
        peer.open_both(LARGE, 1)
        peer.run()
        return response.ended

    wait_for(has_ended, "the stream has ended")
    peer.run()
    assert watched.closed == 1


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("end", STREAM_ENDS)
def test_stream_bodies_are_closed_once_at_every_end(begin: Begin, make: Any, end: str) -> None:
    watched = Watched(make)
    peer = begin(watched, window=1000)
    for stream in (peer.ask(), peer.ask()):
        peer.run()
        assert len(peer.responses[stream].body) == 1000
    assert peer.streams == 2
    assert watched.closed == (0 if is_read_by_output(make) else 2)
    peer.end(1, end)
    if end == "reset":
        wait_until_closed(peer.stepped, watched, 1 if is_read_by_output(make) else 2)
        peer.end(3, end)
    wait_until_closed(peer.stepped, watched, 2)


@pytest.mark.parametrize("size", [0, 10, 60_000])
def test_body_taken_whole_by_kernel_is_closed_at_once(make_stepped: MakeStepped, size: int) -> None:
    watched = Watched(of_size(size))
    stepped = make_stepped(watched, keepalive=5)
    client = stepped.connect()
    client.send(GET)
    stepped.poll()
    job = stepped.take_up()
    stepped.response(job)
    assert watched.closed == 1
    assert not stepped.thread.closes


def test_delayed_blocks_are_sent_before_close(make_stepped: MakeStepped) -> None:
    """Without chunked coding, as for HTTP/1.0, no byte follows the last block.

    A delayed block must leave nevertheless.
    """
    sent: list[bytes] = []

    class Noting(Watched):
        def close(self) -> None:
            super().close()
            sent.append(client.receive_all_there_is())

    watched = Noting(lambda watched: Iterable(iter([b"first", b"second", b"last"]), watched))
    stepped = make_stepped(watched)
    stepped.hold_blocks_back()
    client = stepped.connect()
    client.run(b"GET / HTTP/1.0\r\n\r\n")
    assert watched.closed == 1
    assert sent[0].endswith(b"firstsecondlast")


def test_body_is_closed_once_when_app_fails_within_it(make_stepped: MakeStepped) -> None:
    def blocks() -> Iterator[bytes]:
        yield bytes(LARGE)
        raise ValueError("in the middle")

    watched = Watched(lambda watched: Iterable(blocks(), watched))
    stepped = make_stepped(watched)
    client = stepped.begin()
    assert watched.closed == 1
    received = b""
    while not client.is_in(LINGERING):
        received += client.receive_all_there_is()
        stepped.run()
    assert watched.closed == 1
    assert stepped.log.says("Error handling request GET /")


@pytest.mark.parametrize("make", [_list, _blocks, _file])
@pytest.mark.parametrize(("method", "status"), [(b"HEAD", "200 OK"), (b"GET", "204 No Content")])
def test_body_that_is_not_sent_is_closed_at_once(
    make_stepped: MakeStepped, make: Any, method: bytes, status: str
) -> None:
    watched = Watched(make)
    app = responses(lambda: make(watched), status=status)
    client = make_stepped(app, keepalive=5).begin(GET.replace(b"GET", method))
    assert watched.closed == 1
    assert client.receive_all_there_is().startswith(b"HTTP/1.1 20")


@pytest.mark.parametrize("make", [_list, _blocks, _bytes_io, _generator])
def test_thread_owes_no_close_of_bytes(make_stepped: MakeStepped, make: Any) -> None:
    watched = Watched(make)
    stepped = make_stepped(watched, attributes={"output_ahead_bytes": 2 * LARGE})
    client = stepped.begin()
    assert client.near.output.is_waiting
    assert watched.closed == 1
    assert not stepped.thread.closes


@pytest.mark.parametrize("kind", ["file wrapper", "WSGIFast", "StaticFiles"])
def test_file_of_slow_download_takes_one_descriptor(
    make_stepped: MakeStepped, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content := os.urandom(LARGE))
    app: Any = responds_wrapped(lambda: path.open("rb"))
    if kind == "WSGIFast":
        app = WSGIFast(app)
    elif kind == "StaticFiles":
        app = StaticFiles(directory=tmp_path)
    stepped = make_stepped(app)
    client = stepped.connect()
    client.near.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.run(request_for("/file"))
    assert client.near.output.is_waiting
    assert not stepped.thread.closes
    opened = [leads_to for _, leads_to in open_descriptors()]
    assert opened.count(str(path.resolve())) == 1
    received = b""
    while len(received.partition(b"\r\n\r\n")[2]) < LARGE:
        stepped.run()
        received += client.receive_all_there_is()
    assert received.endswith(content)


def test_generator_beyond_its_length_is_closed(make_stepped: MakeStepped) -> None:
    watched = Watched(_generator)
    app = responses(lambda: _generator(watched), ("Content-Length", str(LARGE // 2)))
    stepped = make_stepped(app, attributes={"output_ahead_bytes": 2 * LARGE})
    client = stepped.begin()
    assert watched.closed == 1
    received = b""
    while len(received.partition(b"\r\n\r\n")[2]) < LARGE // 2:
        stepped.run()
        received += client.receive_all_there_is()
    assert not watched.errors


@pytest.mark.parametrize("size", [10, LARGE])
def test_close_that_fails_is_logged_with_its_request(make_stepped: MakeStepped, size: int) -> None:
    watched = Watched(of_size(size), fails=True)
    stepped = make_stepped(watched, keepalive=5)
    client = stepped.begin(b"GET /path HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(end_client(stepped, client, "read")) > size
    assert watched.closed == 1
    assert isinstance(stepped.log.errors[0], ValueError)
    assert stepped.log.says("GET /path") or stepped.log.says("/path")
    assert not stepped.thread.closes


def test_segments_are_closed_when_all_is_sent(make_stepped: MakeStepped) -> None:
    watched = Watched(_list)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(LARGE))
        file.flush()
        body = SegmentedBody([b"head", FileSegment(file.fileno(), 0, LARGE)], watched.close)
        stepped = make_stepped(responses(body), keepalive=5)
        client = stepped.begin()
        assert watched.closed == 0
        end_client(stepped, client, "read")
        assert watched.closed == 1
