"""When the close() of a body is called: once, when its last byte has been sent or never will be."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper
from werkzeug.wsgi import ClosingIterator

from tests.server.connections import MakeBench
from tests.server.http2_streams import Begin, begin
from tests.support.servers import wait_for
from tests.workers.bench import GET, LARGE, Bench, Client, make_bench
from wsgifast import WSGIFast
from wsgifast.server.endpoint import LINGERING, SENDING
from wsgifast.sockets import FileSegment

__all__ = ["begin", "make_bench"]

HTTP2_SMALL_WINDOW = {"window": 1000, "reads": False}


class Watched:
    """Makes bodies, and notes their close().

    :ivar closed: how often close() has been called.
    :param fails: close() raises.
    """

    def __init__(self, make: Callable[[Watched], Any], *, fails: bool = False) -> None:
        self.closed = 0
        self.on_error: list[BaseException] = []
        self._make = make
        self._fails = fails

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return self._make(self)

    def close(self) -> None:
        self.closed += 1
        if self._fails:
            raise ValueError("close() has failed")


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
        watched.on_error.append(AssertionError("it was not cut off"))
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
        """What a wrapper gets that is no file of the system."""

        def __init__(self) -> None:
            self._data = io.BytesIO(bytes(LARGE))
            self.read = self._data.read
            self.close = watched.close

    return FileWrapper(File())


KINDS = [_list, _blocks, _file, _bytes_io]


def receive_rest(bench: Bench, client: Client) -> bytes:
    received = b""

    def all_is_sent() -> bool:
        nonlocal received
        bench.run()
        received += client.receive_all_there_is()
        return not client.is_in(SENDING)

    wait_for(all_is_sent, "all is sent")
    return received + client.receive_all_there_is()


def run_until_closed(bench: Bench, watched: Watched, *, seconds: float = 0) -> None:
    """Let disk threads bring what they read, and time go by."""

    def is_closed() -> bool:
        bench.pass_time(seconds)
        return watched.closed > 0

    wait_for(is_closed, "it is closed")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_body_is_closed_once_when_its_last_byte_has_been_sent(
    make_bench: MakeBench, make: Any, wrapped: bool
) -> None:
    watched = Watched(make)
    bench = make_bench(WSGIFast(watched) if wrapped else watched, keepalive=5)
    client = bench.begin()
    assert client.near.output.draining
    assert watched.closed == 0
    received = receive_rest(bench, client)
    assert len(received) > LARGE
    assert watched.closed == 1
    client.send(GET)
    bench.run()
    client.close()
    bench.run()
    assert watched.closed == 2  # once for each response


@pytest.mark.parametrize("make", KINDS)
def test_body_is_closed_once_when_its_stream_has_been_framed(begin: Begin, make: Any) -> None:
    watched = Watched(make)
    peer = begin(watched, client=HTTP2_SMALL_WINDOW)
    stream = peer.ask()
    peer.run()
    assert len(peer.answers[stream].body) == 1000
    assert watched.closed == 0

    def has_ended() -> bool:
        peer.open(LARGE, stream)
        peer.open(LARGE)
        peer.run()
        return peer.answers[stream].ended

    wait_for(has_ended, "the stream has ended")
    peer.run()
    assert watched.closed == 1


@pytest.mark.parametrize("make", [*KINDS, _generator])
def test_body_is_closed_once_when_client_leaves(make_bench: MakeBench, make: Any) -> None:
    watched = Watched(make)
    bench = make_bench(watched, keepalive=5)
    client = bench.begin()
    assert client.near.output.draining
    client.close()
    bench.run()
    run_until_closed(bench, watched)
    bench.run()
    assert watched.closed == 1


@pytest.mark.parametrize("make", KINDS)
def test_body_is_closed_once_when_client_is_too_slow(make_bench: MakeBench, make: Any) -> None:
    watched = Watched(make)
    bench = make_bench(watched, keepalive=5)
    bench.begin()
    assert watched.closed == 0
    run_until_closed(bench, watched, seconds=100)
    bench.pass_time(100)
    assert watched.closed == 1


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("end", ["reset", "left", "slow", "closed"])
def test_body_of_stream_is_closed_once_when_stream_is_lost(
    begin: Begin, make: Any, end: str
) -> None:
    watched = Watched(make)
    peer = begin(watched, client=HTTP2_SMALL_WINDOW)
    stream = peer.ask()
    peer.run()
    assert watched.closed == 0
    if end == "reset":
        peer.state.reset_stream(stream)
        peer.run()
    elif end == "left":
        peer.socket.close()
    elif end == "slow":
        peer.bench.pass_time(100)
    else:
        peer.bench.server.registry.claim(peer.near.fd)
        peer.near.close()
    peer.bench.run()
    peer.bench.run()
    assert watched.closed == 1


def test_body_is_closed_once_when_server_closes_its_connection(make_bench: MakeBench) -> None:
    watched = Watched(_list)
    bench = make_bench(watched, keepalive=5)
    client = bench.begin()
    bench.server.registry.claim(client.near.fd)
    client.near.close()
    bench.run()
    assert watched.closed == 1


@pytest.mark.parametrize("make", KINDS)
def test_body_is_closed_once_when_client_is_cut_off(make_bench: MakeBench, make: Any) -> None:
    watched = Watched(make)
    bench = make_bench(watched, keepalive=5)
    client = bench.begin()
    assert watched.closed == 0
    client.near.cut_off()
    run_until_closed(bench, watched)
    assert client.is_in("closed")
    assert watched.closed == 1


def test_bodies_of_all_streams_are_closed_when_client_is_cut_off(begin: Begin) -> None:
    watched = Watched(_list)
    peer = begin(watched, client=HTTP2_SMALL_WINDOW)
    peer.ask()
    peer.ask()
    peer.run()
    assert peer.streams == 2
    peer.near.cut_off()
    peer.bench.run()
    assert watched.closed == 2
    assert peer.has_ended


@pytest.mark.parametrize("size", [0, 10, 60_000])
def test_body_that_kernel_takes_whole_is_closed_within_its_turn(
    make_bench: MakeBench, size: int
) -> None:
    """No other thread is asked for anything."""
    watched = Watched(lambda watched: ClosingIterator([bytes(size)], watched.close))
    bench = make_bench(watched, keepalive=5)
    client = bench.connect()
    client.send(GET)
    bench.poll()
    job = bench.take_up()
    bench.answer(job)
    assert watched.closed == 1
    assert not bench.thread.closes


def test_blocks_held_back_are_sent_before_body_is_closed(make_bench: MakeBench) -> None:
    """Without chunks, as for HTTP/1.0, nothing follows a last block to take it along."""
    sent: list[bytes] = []
    clients: list[Client] = []

    class Noting(Watched):
        def close(self) -> None:
            super().close()
            sent.append(clients[0].receive_all_there_is())

    watched = Noting(lambda watched: Iterable(iter([b"first", b"second", b"last"]), watched))
    bench = make_bench(watched)
    bench.server.pool.monitor.ticking = True
    clients.append(bench.connect())
    clients[0].send(b"GET / HTTP/1.0\r\n\r\n")
    bench.run()
    assert watched.closed == 1
    assert sent[0].endswith(b"firstsecondlast")


def test_body_is_closed_once_when_app_fails_within_it(make_bench: MakeBench) -> None:
    def blocks() -> Iterator[bytes]:
        yield bytes(LARGE)
        raise ValueError("in the middle")

    watched = Watched(lambda watched: Iterable(blocks(), watched))
    bench = make_bench(watched)
    client = bench.begin()
    assert watched.closed == 0  # what came before is still being sent
    received = b""
    while not client.is_in(LINGERING):
        received += client.receive_all_there_is()
        bench.run()
    assert watched.closed == 1
    assert bench.log.says("Error handling request GET /")


@pytest.mark.parametrize("make", [_list, _blocks, _file])
@pytest.mark.parametrize("request_line", ["HEAD / HTTP/1.1", "GET /204 HTTP/1.1"])
def test_body_that_is_not_sent_is_closed_at_once(
    make_bench: MakeBench, make: Any, request_line: str
) -> None:
    watched = Watched(make)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("204 No Content" if environ["PATH_INFO"] == "/204" else "200 OK", [])
        return make(watched)

    bench = make_bench(app, keepalive=5)
    client = bench.begin(f"{request_line}\r\nHost: a\r\n\r\n".encode())
    assert watched.closed == 1
    assert client.receive_all_there_is().startswith(b"HTTP/1.1 20")


def test_generator_that_has_ended_is_not_waited_for(make_bench: MakeBench) -> None:
    """Its close() does nothing, and would keep it, and wake its thread."""
    watched = Watched(_generator)
    bench = make_bench(watched, attributes={"output_ahead_bytes": 2 * LARGE})
    client = bench.begin()
    assert client.near.output.draining
    assert watched.closed == 1
    assert not bench.thread.closes


def test_generator_that_is_cut_off_is_closed_when_all_is_sent(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Length", str(LARGE // 2))])
        return _generator(watched)

    watched = Watched(_generator)
    bench = make_bench(app, attributes={"output_ahead_bytes": 2 * LARGE})
    client = bench.begin()
    assert watched.closed == 0
    received = b""
    while len(received.partition(b"\r\n\r\n")[2]) < LARGE // 2:
        bench.run()
        received += client.receive_all_there_is()
    bench.run()
    assert watched.closed == 1
    assert not watched.on_error


@pytest.mark.parametrize("size", [10, LARGE])
def test_close_that_fails_is_logged_with_its_request(make_bench: MakeBench, size: int) -> None:
    watched = Watched(lambda watched: ClosingIterator([bytes(size)], watched.close), fails=True)
    bench = make_bench(watched, keepalive=5)
    client = bench.begin(b"GET /path HTTP/1.1\r\nHost: a\r\n\r\n")
    received = receive_rest(bench, client)
    assert len(received) > size
    assert watched.closed == 1
    assert isinstance(bench.log.errors[0], ValueError)
    assert bench.log.says("GET /path") or bench.log.says("/path")
    assert not bench.thread.closes


def test_segments_are_closed_when_all_is_sent(make_bench: MakeBench) -> None:
    """Ranges of a file: a body of WSGIFast's own."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(LARGE))
        file.flush()

        def app(environ: dict[str, Any], start_response: Any) -> Any:
            from wsgifast.bodies.files import SegmentedBody

            start_response("200 OK", [])
            segment = FileSegment(file.fileno(), 0, LARGE)
            return SegmentedBody([b"head", segment], watched.close)

        watched = Watched(_list)
        bench = make_bench(app, keepalive=5)
        client = bench.begin()
        assert watched.closed == 0
        receive_rest(bench, client)
        assert watched.closed == 1
