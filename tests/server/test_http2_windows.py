"""HTTP/2: clients that receive little or nothing of their responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from h2.settings import SettingCodes

from tests.server.connections import responses
from tests.server.http2_peer import CANCEL, Begin, generator, large_file
from tests.workers.stepped_worker import LARGE
from wsgifast.server.backlog import Backlog
from wsgifast.server.http2 import connection, multiplexer
from wsgifast.server.http2.response import StreamOutput
from wsgifast.server.output import OutputQueue
from wsgifast.sockets.sending import FileSegment
from wsgifast.workers.gauges import gauges, slowest_clients
from wsgifast.workers.worker import FastWorker


@pytest.mark.parametrize("kind", ["list", "generator", "file"])
@pytest.mark.parametrize("window", [0, 1, 1000, 65_535])
def test_slow_reader_takes_no_thread(begin: Begin, tmp_path: Path, kind: str, window: int) -> None:
    """The app returns, or else the test would hang.

    The remaining bytes are sent as windows open.
    """
    bodies: dict[str, Callable[[], Iterable[bytes]]] = {
        "list": lambda: [bytes(LARGE)],
        "generator": generator,
        "file": large_file(tmp_path),
    }
    peer = begin(responses(bodies[kind]), window=window)
    response = peer.get()
    peer.wait_for_disk(lambda: len(response.body) == window)
    # Other streams of the same connection are served meanwhile.
    if window not in (0, 65_535):
        other = peer.ask()
        peer.wait_for_disk(lambda: len(peer.responses[other].body) == window)
        peer.state.reset_stream(other)
    peer.open(200_000)
    peer.open(150_000, 1)
    peer.wait_for_disk(lambda: len(response.body) == window + 150_000)
    peer.open_both(LARGE, 1)
    peer.wait_for_disk(lambda: response.ended)
    assert len(response.body) == LARGE
    assert not peer.streams
    assert peer.stepped.log.requests[-1][2] == LARGE


def test_end_of_stream_follows_temporary_file(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the writer is still writing a block, no part of the block waits in the queue."""
    spill = Backlog.spill

    def late(backlog: Backlog, buffers: list[memoryview]) -> FileSegment | None:
        peer.open_both(1000, 1)
        peer.serve_elsewhere()
        return spill(backlog, buffers)

    monkeypatch.setattr(Backlog, "spill", late)
    app = responses([bytes(200_000)], ("Content-Length", "200000"))
    peer = begin(app, window=1000, attributes={"output_memory_bytes": 1000})
    response = peer.get()
    peer.open_both(LARGE, 1)
    peer.wait_for_disk(lambda: response.ended)
    assert len(response.body) == 200_000


@pytest.mark.parametrize(("window", "blocks"), [(10, 200), (30_000, 60)])
def test_delayed_blocks_leave_full_memory_at_end(begin: Begin, window: int, blocks: int) -> None:
    """Whether an earlier block used up the window, or the last blocks do."""
    app = responses(lambda: (b"x" * 1000 for _ in range(blocks)))
    peer = begin(app, window=window, attributes={"output_memory_bytes": 1000})
    peer.stepped.hold_blocks_back()
    response = peer.get()
    memory = peer.stepped.server.output_rules.memory
    assert memory.used_bytes < 32 << 10
    assert memory.disk.used_bytes > 25_000
    peer.open_both(LARGE, 1)
    peer.wait_for_disk(lambda: response.ended)
    assert response.body == b"x" * blocks * 1000


def test_stream_sent_whole_as_app_ends_is_not_lost(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_buffers(output: StreamOutput, buffers: Sequence[bytes | memoryview]) -> None:
        if not buffers:  # the delayed bytes at the end
            peer.open(LARGE, 1)
            peer.serve_elsewhere()
        OutputQueue.write_buffers(output, buffers)

    monkeypatch.setattr(StreamOutput, "write_buffers", write_buffers)
    peer = begin(responses([b"a" * 20], status="200 OK"), window=10)
    response = peer.get()
    assert (response.body, response.ended) == (b"a" * 20, True)
    assert not peer.stepped.log.says("lost connection")


def test_streams_take_turns_in_sending(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=LARGE)
    streams = [peer.ask() for _ in range(4)]
    peer.run()
    assert sum(len(peer.responses[each].body) for each in streams) == 65_535
    before = {each: len(peer.responses[each].body) for each in streams}
    peer.open(4 * 64 * 1024)
    peer.run()
    assert all(len(peer.responses[each].body) > before[each] for each in streams[1:])
    peer.open(4 * LARGE)
    peer.run()
    assert all(peer.responses[each].ended for each in streams)


def test_ends_of_streams_are_one_send(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = begin(responses([bytes(100)]), window=10)
    streams = [peer.ask() for _ in range(3)]
    peer.run()
    sent = peer.sends(monkeypatch)
    for each in streams:
        peer.open(90, each)
    peer.run()
    assert all(peer.responses[each].ended for each in streams)
    assert len(sent) == 1


def test_stream_whose_window_stays_shut_is_given_up(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=1000)
    slow, other = peer.ask(), peer.ask()
    peer.run()
    peer.stepped.pass_time(FastWorker.send_timeout_s - 1)
    peer.open(1000, other)
    peer.run()
    peer.stepped.pass_time(2)
    peer.run()
    assert peer.responses[slow].reset == CANCEL
    assert peer.responses[other].reset is None
    assert len(peer.responses[other].body) == 2000
    # A client that takes too little is treated like one that takes nothing.
    for _ in range(4):
        peer.stepped.pass_time(20)
        peer.run()
        if peer.responses[other].reset is None:
            peer.open(100, other)
    assert peer.responses[other].reset == CANCEL
    assert not peer.streams
    assert len(peer.stepped.log.requests) == 2


def test_client_taking_least_of_a_stream_is_reported(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=1000)
    _, slow = peer.ask(path="/stopped"), peer.ask(path="/slow")
    peer.run()
    peer.stepped.clock.now += 10
    peer.open(1000, slow)
    peer.run()
    connections, now = peer.stepped.server.connections, peer.stepped.clock.now
    first, second = slowest_clients(connections, now, limit=10)
    assert (first.path, first.bytes_per_s, first.waited_s) == ("/stopped", 0, 10)
    assert (second.path, second.bytes_per_s) == ("/slow", 100)
    assert first.queued_bytes == LARGE - 1000
    counts = {metric.name: value for metric, _, value in gauges(peer.stepped.server)}
    assert counts["wsgifast_slow_clients"] == 1


def test_window_that_stays_shut_is_given_up(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=LARGE)
    assert len(peer.get().body) == 65_535
    peer.stepped.pass_time(FastWorker.send_timeout_s + 1)
    assert peer.has_ended
    assert peer.stepped.log.requests == [("GET /", "200 OK", 65_535)]


def test_opened_window_is_waited_for_no_more(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=LARGE)
    stream = peer.ask()
    for _ in range(8):
        peer.run()
        peer.stepped.pass_time(50)
        peer.open(LARGE // 8)
    peer.run()
    assert peer.responses[stream].ended


def test_full_socket_delays_streams(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=2 * LARGE)
    peer.open(8 * LARGE)
    streams = [peer.ask() for _ in range(3)]
    peer.run_unread()
    assert peer.near.output.is_waiting
    assert peer.near.output.bytes_queued <= 2 * multiplexer._QUANTUM_BYTES
    assert peer.streams == 3
    peer.run()
    assert all(len(peer.responses[each].body) == LARGE for each in streams)


def test_full_socket_is_given_up_in_time(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=2 * LARGE)
    peer.open(8 * LARGE)
    peer.ask()
    peer.run_unread()
    peer.stepped.pass_time(FastWorker.send_timeout_s + 1)
    assert peer.has_ended
    assert len(peer.stepped.log.requests) == 1


def test_client_taking_no_responses_is_not_read(begin: Begin) -> None:
    peer = begin()
    for _ in range(700):  # below the limit for floods
        peer.state.ping(b"12345678")
    peer.near.output.is_waiting = True  # nothing is sent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_MAX_UNSENT_BYTES", 1000)
        armed = peer.stepped.armed()
        peer.run_unread()
        assert armed[-1] & 1 == 0


def test_shrunken_window_is_respected(begin: Begin) -> None:
    """A window may become negative (RFC 9113, section 6.9.2)."""
    peer = begin(responses([bytes(LARGE)]), window=10_000)
    response = peer.get()
    peer.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    peer.run()
    for size in (10_000, 10_100):
        peer.open(5000, 1)
        peer.run()
        assert len(response.body) == size
    peer.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    peer.run()
    assert len(response.body) == 11_000


def test_write_into_a_negative_window_waits(begin: Begin) -> None:
    """A client may shrink its windows while an app runs (RFC 9113, section 6.9.2)."""

    def body() -> Iterator[bytes]:
        yield bytes(1000)
        peer.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        peer.serve_elsewhere()
        peer.stepped.clock.now += 1  # or it would wait for the next block
        yield bytes(2000)

    peer = begin(responses(body), window=10_000)
    response = peer.get()
    assert (len(response.body), response.reset) == (1000, None)
    peer.open(10_000, 1)
    peer.run()
    assert (len(response.body), response.ended) == (3000, True)


def test_stream_with_opened_window_is_not_waited_for(begin: Begin) -> None:
    def body() -> Iterator[bytes]:
        yield bytes(2000)
        peer.open(5000, 1)
        peer.serve_elsewhere()
        peer.stepped.clock.now += FastWorker.send_timeout_s + 5
        peer.stepped.sweep()
        yield b"later"

    peer = begin(responses(body), window=1000)
    response = peer.get()
    assert (len(response.body), response.ended, response.reset) == (2005, True, None)


def test_wait_for_window_ends_with_its_last_stream(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return events() if environ["PATH_INFO"] == "/events" else [bytes(LARGE)]

    def events() -> Iterator[bytes]:
        large = peer.ask("/large")
        peer.serve_elsewhere()
        peer.serve_elsewhere()  # the turn of the stream after its first turn
        assert peer.near.streams[large].is_blocked
        peer.state.reset_stream(large)
        peer.serve_elsewhere()
        peer.stepped.clock.now += FastWorker.send_timeout_s + 5
        peer.stepped.sweep()
        peer.open(100)
        peer.serve_elsewhere()
        yield b"later"

    peer = begin(app, window=LARGE)
    response = peer.get("/events")
    assert (response.body, response.ended, response.reset) == (b"later", True, None)
