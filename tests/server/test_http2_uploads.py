"""HTTP/2: request bodies, buffered before the app runs, or read by the app."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from tests.server.connections import STREAMED
from tests.server.http2_peer import CANCEL, NO_ERROR, Begin
from wsgifast.server.http2.stream import StreamedUpload
from wsgifast.workers.worker import FastWorker


def test_buffered_upload_is_whole_before_the_app_runs(begin: Begin) -> None:
    peer = begin(attributes={"body_memory_bytes": 1000})
    stream = peer.ask(method="POST", body=b"a" * 30_000, trailers=[("x-sum", "1")])
    frames = peer.state.data_to_send()
    peer.socket.send(frames[:20_000])
    peer.stepped.run()
    assert not peer.stepped.log.environs
    peer.send_raw(frames[20_000:])
    assert peer.responses[stream].body == b"a" * 30_000
    assert peer.stepped.server.shared.bodies_on_disk.used_bytes == 0


def test_uploads_of_a_connection_share_memory(begin: Begin) -> None:
    peer = begin(attributes={"body_memory_bytes": 100_000})
    for _ in range(100):
        peer.ask(method="POST", body=bytes(10_000), ends=False)
        peer.run()
    assert peer.streams == 100
    # All bytes except those in memory.
    assert 800_000 < peer.stepped.server.shared.bodies_on_disk.used_bytes < 1_000_000


def test_large_upload_gets_windows(begin: Begin) -> None:
    peer = begin()
    stream = peer.ask(method="POST", ends=False)
    left = 500_000
    while left:
        room = min(peer.state.local_flow_control_window(stream), 16_384, left)
        if room:
            left -= room
            peer.state.send_data(stream, bytes(room), end_stream=not left, pad_length=None)
        else:
            peer.run()
    peer.run()
    assert len(peer.responses[stream].body) == 500_000


@pytest.mark.parametrize("declared", [True, False])
def test_too_large_upload_is_413(begin: Begin, declared: bool) -> None:
    peer = begin(attributes={"body_limit_bytes": 1000})
    headers = [("content-length", "2000")] if declared else []
    response = peer.get(method="POST", headers=headers, body=bytes(2000))
    assert (response.status, response.ended) == (413, True)
    assert peer.get(method="POST", body=b"ok").body == b"ok"
    assert not peer.streams
    assert not peer.goaways


def test_refused_upload_is_logged_and_not_recorded(begin: Begin) -> None:
    peer = begin(attributes={"body_limit_bytes": 1000})
    environs: list[Any] = []
    peer.stepped.server.application.on_answered = lambda _, exchange, __: environs.append(
        exchange.environ
    )
    peer.get(method="POST", body=bytes(2000))
    ((_, status, _),) = peer.stepped.log.requests
    assert status == "413 Content Too Large"
    peer.get(method="POST", body=b"ok")
    refused, answered = environs
    assert refused is None
    assert answered is not None


def test_upload_that_does_not_come_is_408(begin: Begin) -> None:
    peer = begin()
    response = peer.get(method="POST", body=b"begun", ends=False)
    peer.stepped.pass_time(FastWorker.body_timeout_s + 1)
    peer.receive()
    assert (response.status, response.reset) == (408, NO_ERROR)
    assert not peer.streams


@pytest.mark.parametrize(("each", "status"), [(10_000, 200), (10, 408)])
def test_upload_waits_for_another_that_is_quick(begin: Begin, each: int, status: int) -> None:
    peer = begin()
    waiting = peer.ask(method="POST", body=b"begun", ends=False)
    sending = peer.ask(method="POST", body=b"", ends=False)
    for _ in range(6):
        peer.run()
        peer.stepped.pass_time(FastWorker.body_timeout_s / 3)
        peer.receive()
        if status == 200 or peer.streams:
            peer.state.send_data(sending, bytes(each))
    peer.run()
    if status == 200:
        peer.state.send_data(waiting, b", sent", end_stream=True)
        peer.run()
        assert peer.responses[waiting].body == b"begun, sent"
        peer.stepped.pass_time(FastWorker.body_timeout_s + 1)  # and then no more bytes
        peer.receive()
        assert peer.responses[sending].status == 408
    else:
        assert [peer.responses[each].status for each in (waiting, sending)] == [408, 408]
    assert not peer.streams


def test_response_not_taken_ends_during_another_body(begin: Begin) -> None:
    peer = begin(window=0, reads=True, attributes={"body_limit_bytes": 50_000})
    refused = peer.get(method="POST", body=bytes(50_001), ends=False)
    sending = peer.ask(method="POST", body=b"", ends=False)
    for _ in range(9):
        peer.run()
        peer.stepped.pass_time(FastWorker.send_timeout_s / 6)
        peer.receive()
        peer.state.send_data(sending, bytes(5_500))
    assert (refused.status, refused.reset) == (413, CANCEL)
    assert peer.streams == 1


def test_expect_gets_100(begin: Begin) -> None:
    peer = begin()
    response = peer.get(method="POST", headers=[("expect", "100-continue")], ends=False)
    assert response.early == [{":status": "100"}]
    peer.state.send_data(1, b"body", end_stream=True)
    peer.run()
    assert response.body == b"body"


def test_trailers_of_the_request_reach_the_app(begin: Begin) -> None:
    seen: list[Any] = []
    peer = begin(post_request=lambda worker, req, environ, resp: seen.append(req))
    response = peer.get(method="POST", body=b"a", trailers=[("x-sum", "1")])
    assert response.body == b"a"
    assert ("X-SUM", "1") in seen[0].trailers
    response = peer.get(method="POST", body=b"a", trailers=[("x-sum", "a" * 9000)])
    assert (response.status, len(seen)) == (431, 1)
    response = peer.get(method="POST", body=b"a", trailers=[("x-sum", "a\rb")])
    assert peer.goaways or response.reset is not None or response.status == 400


def test_streamed_body_is_read_as_it_comes(begin: Begin) -> None:
    parts: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"]
        parts.append(body.read(5))
        peer.state.send_data(1, b" and second", end_stream=True, pad_length=10)
        peer.serve_elsewhere()
        parts.append(body.read())
        start_response("200 OK", [])
        return [b"read"]

    peer = begin(app, attributes=STREAMED)
    expects = [("expect", "100-continue")]
    response = peer.get(method="POST", body=b"first", headers=expects, ends=False)
    assert parts == [b"first", b" and second"]
    assert (response.body, response.ended, response.early) == (b"read", True, [{":status": "100"}])
    # Both windows are opened again by the number of received bytes.
    assert peer.state.outbound_flow_control_window == 65_535


def test_small_parts_take_little_more_than_their_bytes(begin: Begin) -> None:
    upload = StreamedUpload(begin().near.mux, 1)
    tracemalloc.start()
    for number in range(20_000):
        upload.feed(bytes((number % 251,)), 3)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1_000_000
    upload.end()
    body = io.BufferedReader(upload).read()
    assert body == bytes(number % 251 for number in range(20_000))


def test_window_opens_as_the_app_reads(begin: Begin) -> None:
    seen: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.append(peer.state.local_flow_control_window(1))
        for _ in range(5):  # one receive each
            peer.serve_elsewhere()
        for size in (0, 30_000, 35_535):
            assert len(environ["wsgi.input"].read(size)) == size
            peer.receive()
            seen.append(peer.state.local_flow_control_window(1))
        start_response("200 OK", [])
        return []

    peer = begin(app, attributes=STREAMED)
    response = peer.get(method="POST", body=bytes(65_535), ends=False)
    assert seen[:2] == [0, 0]
    assert 0 < seen[2] < seen[3] == 65_535
    # The app has not read to the end, so the client is to stop sending.
    assert (response.status, response.ended, response.reset) == (200, True, NO_ERROR)


@pytest.mark.parametrize(("each", "status"), [(10_000, 200), (0, 408)])
def test_reading_app_waits_while_another_body_comes(begin: Begin, each: int, status: int) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        """Let time pass while another body arrives, and then send this body."""
        peer.stepped.clock.now += seconds / 2
        waits.append(seconds)
        is_last = len(waits) == 6
        peer.state.send_data(3, bytes(each))
        if is_last:
            peer.state.send_data(1, b"second", end_stream=True)
        peer.send_only()
        server = peer.stepped.server
        server.pool.poll_events(0)
        while server.pool.work:
            peer.stepped.take_up()  # no thread is free for the other app
        peer.stepped.clock.now += seconds / 2
        return is_last

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"]
        body.raw._arrived.wait = wait
        data = body.read()
        start_response("200 OK", [])
        return [data]

    peer = begin(app, attributes=STREAMED)
    first = peer.ask(method="POST", body=b"first, ", ends=False)
    peer.send_only()
    peer.stepped.poll()
    job = peer.stepped.take_up()
    peer.ask(method="POST", body=b"", ends=False)
    peer.stepped.response(job)
    peer.stepped.server.output_rules.tick()  # the other app has not been called
    peer.receive()
    assert peer.responses[first].status == status
    if status == 200:
        assert peer.responses[first].body == b"first, second"
        assert sum(waits) > 2 * FastWorker.body_timeout_s
    else:
        assert len(waits) < 4


@pytest.mark.parametrize("end", ["reset", "silence", "leaves"])
def test_streamed_body_that_stops_is_an_error(begin: Begin, end: str) -> None:
    errors: list[BaseException] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"]
        assert body.read(5) == b"begun"
        if end == "reset":
            peer.state.reset_stream(1)
        if end != "silence":
            peer.send_only()
            if end == "leaves":
                peer.socket.close()
            peer.serve_elsewhere()
        try:
            body.read()
        except OSError as error:
            errors.append(error)
            raise
        raise AssertionError("it looks whole")

    peer = begin(app, attributes={**STREAMED, "body_timeout_s": 0.01})
    peer.ask(method="POST", body=b"begun", ends=False)
    if end == "leaves":
        peer.send_only()
        peer.stepped.run()
    else:
        peer.run()
    assert len(errors) == 1
    if end == "silence":
        assert peer.responses[1].status == 408
    assert not peer.streams
    assert not peer.stepped.log.errors


@pytest.mark.parametrize("timeout_s", [1e300, float("inf")])
def test_reading_app_waits_with_any_timeout(begin: Begin, timeout_s: float) -> None:
    """A lock accepts no timeout as long as that."""
    read: list[bytes] = []
    sender: list[threading.Timer] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raw = environ["wsgi.input"].raw
        sender.append(threading.Timer(0.05, raw.feed, [b"body", 4]))
        sender[0].start()
        read.append(environ["wsgi.input"].read1(4))
        start_response("200 OK", [])
        return []

    peer = begin(app, attributes={**STREAMED, "body_timeout_s": timeout_s})
    peer.ask(method="POST", body=b"", ends=False)
    peer.run()
    sender[0].join()
    assert read == [b"body"]
