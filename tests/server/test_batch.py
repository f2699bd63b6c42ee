"""Whole responses that wait for each other, and are sent together."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterable
from typing import Any

import pytest
from werkzeug.wsgi import ClosingIterator

from tests.server.connections import MakeBench
from tests.server.monitored import Monitored, monitored
from tests.support.http import Connection
from tests.workers.bench import GET, LARGE, Bench, Client, echo, large, make_bench
from tests.workers.serving import fast_worker, stats
from wsgifast.server import batch as module
from wsgifast.server.batch import Batch
from wsgifast.server.states import RUNNING, SENDING

__all__ = ["make_bench", "monitored"]

MANY = 15
ANSWER = b"HTTP/1.1 200 OK"


def asked_at_once(bench: Bench, count: int = MANY) -> list[Client]:
    """Clients whose requests one poll has returned."""
    clients = [bench.connect() for _ in range(count)]
    for client in clients:
        client.send(GET)
    bench.poll()
    assert len(bench.server.pool.work) == len(clients)
    return clients


def serve(bench: Bench, times: int = 1) -> None:
    """Answer the next requests."""
    for _ in range(times):
        bench.answer(bench.take_up())


def test_a_few_responses_are_sent_at_once(make_bench: MakeBench) -> None:
    bench = make_bench(echo)
    for client in asked_at_once(bench, module._LEAST_WORK):
        serve(bench)
        assert client.receive_all_there_is().startswith(ANSWER)


def test_many_are_sent_together_when_no_work_is_left(make_bench: MakeBench) -> None:
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    serve(bench, MANY - 1)
    assert not any(client.receive_all_there_is() for client in clients)
    assert all(client.is_in(SENDING) for client in clients[:-1])
    serve(bench)
    assert all(client.receive_all_there_is().startswith(ANSWER) for client in clients)
    bench.run()
    assert len(bench.log.requests) == MANY
    for client in clients:  # each goes on with its next request
        client.send(GET)
    bench.run()
    assert all(client.receive_all_there_is().startswith(ANSWER) for client in clients)


def test_a_batch_has_its_most(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_RESPONSES", 4)
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    serve(bench, 4)
    answered = [bool(client.receive_all_there_is()) for client in clients]
    assert answered == [True] * 4 + [False] * (MANY - 4)


def test_a_long_turn_does_not_hold_up_what_waits(make_bench: MakeBench) -> None:
    """The monitor sends it; a thread of the pool goes on with the connections."""
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    serve(bench, 3)
    assert bench.server.on_tick()
    assert [bool(client.receive_all_there_is()) for client in clients[:4]] == [True] * 3 + [False]
    assert all(client.is_in(SENDING) for client in clients[:3])
    assert not bench.server.on_tick()
    bench.run()
    assert len(bench.log.requests) == MANY
    assert not any(client.is_in(SENDING) for client in clients)


def test_a_tick_waits_for_no_lock(make_bench: MakeBench) -> None:
    bench = make_bench(echo)
    first, *_ = asked_at_once(bench)
    serve(bench)
    with first.near.output.lock:
        assert bench.server.on_tick()
    assert not first.receive_all_there_is()
    assert bench.server.on_tick()
    assert first.receive_all_there_is().startswith(ANSWER)


@pytest.mark.parametrize("by", ["tick", "batch"])
def test_a_response_may_be_sent_before_its_app_is_done(make_bench: MakeBench, by: str) -> None:
    """Its thread then finishes it."""
    seen: list[str] = []

    def on_close() -> None:
        if seen:
            return
        assert not clients[0].receive_all_there_is()
        if by == "tick":
            bench.server.on_tick()
        else:
            bench.server.batch.send()
        seen.append(clients[0].near.state)
        assert clients[0].receive_all_there_is().endswith(b"body")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "4")])
        return ClosingIterator([b"body"], on_close)

    bench = make_bench(app)
    clients = asked_at_once(bench)
    serve(bench)
    assert seen == [RUNNING]
    assert not clients[0].is_in(RUNNING)
    clients[0].send(GET)
    bench.run()
    assert all(client.receive_all_there_is().endswith(b"body") for client in clients)


def test_what_a_client_does_not_take_at_once_is_sent_by_its_events(make_bench: MakeBench) -> None:
    size = 48 * 1024  # as much as may wait

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", str(size))])
        return [bytes(size)]

    bench = make_bench(app)
    clients = [bench.connect() for _ in range(MANY)]
    clients[0].near.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for client in clients:
        client.send(GET)
    bench.poll()
    serve(bench, MANY)
    received = b""
    while len(received.partition(b"\r\n\r\n")[2]) < size:
        received += clients[0].receive_all_there_is()
        bench.run()
    assert bench.log.requests.count(("GET /", "200 OK", size)) == MANY


def test_a_large_response_does_not_wait(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    clients = asked_at_once(bench)
    serve(bench)
    assert clients[0].receive_all_there_is()
    assert LARGE > 64 * 1024


@pytest.mark.parametrize("end", ["batch", "tick"])
def test_a_client_that_has_gone_loses_nobody_elses(make_bench: MakeBench, end: str) -> None:
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    serve(bench, 3)
    clients[1].close()
    if end == "tick":
        bench.server.on_tick()
    bench.run()
    assert clients[1].near.sock.fileno() == -1
    for client in [clients[0], *clients[2:]]:
        assert client.receive_all_there_is().startswith(ANSWER)
    lengths = [size for _, _, size in bench.log.requests]
    assert lengths == [0] * MANY


def test_the_access_log_tells_what_was_not_sent(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "4")])
        return [b"body"]

    bench = make_bench(app)
    clients = asked_at_once(bench)
    serve(bench, 2)
    assert clients[0].near.output.bytes_left() == clients[0].near.output.bytes_queued > 4
    clients[0].near.output.fail(ConnectionError("gone"))
    bench.run()
    assert sorted(size for _, _, size in bench.log.requests) == [0] + [4] * (MANY - 1)


def test_what_follows_all_the_same_keeps_its_place(make_bench: MakeBench) -> None:
    """An app may call write() after what it has declared; that is not sent, but must not pass."""
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    job = bench.take_up()
    output = job.output
    output.write_whole(b"first")
    output.write(b"second")
    output.write_all([b"third"])
    bench.server.batch.send()
    assert clients[0].receive_all_there_is() == b"firstsecondthird"


def test_where_a_batch_was_late_nothing_waits_for_a_while(make_bench: MakeBench) -> None:
    bench = make_bench(echo)
    clients = asked_at_once(bench)
    serve(bench)
    bench.clock.now += 0.01
    bench.server.batch.send()
    assert clients[0].receive_all_there_is()
    serve(bench)
    assert clients[1].receive_all_there_is()
    bench.clock.now += 1
    serve(bench)
    assert not clients[2].receive_all_there_is()


def test_the_pool_sends_before_it_polls(monitored: Monitored) -> None:
    pool = monitored.pool
    pool.work.extend([lambda: None] * module._LEAST_WORK)
    assert pool.batch.accepts()
    pool.batch.add("response")  # type: ignore[arg-type]
    pool.work.clear()
    monitored.at_poll = lambda: [] if monitored.responses else pytest.fail("it has polled")
    monitored.serve(monitored.first)
    assert monitored.responses == ["response"]
    assert monitored.polls


@pytest.mark.parametrize("late", [False, True])
def test_the_pool_sends_before_a_turn_if_time_is_up(monitored: Monitored, late: bool) -> None:
    pool = monitored.pool
    pool.work.extend([lambda: None] * 2 * module._LEAST_WORK)
    assert pool.batch.accepts()
    pool.batch.add("response")  # type: ignore[arg-type]
    monitored.now += module._HOLD_S * (1.1 if late else 0.5)
    monitored.serve(monitored.first)
    assert bool(monitored.responses) is late


def test_the_pool_sends_before_what_was_deferred(monitored: Monitored) -> None:
    pool = monitored.pool
    pool.work.extend([lambda: None] * module._LEAST_WORK)
    assert pool.batch.accepts()
    pool.batch.add("response")  # type: ignore[arg-type]
    pool._take_deferred()
    assert monitored.responses == ["response"]


def test_a_response_that_comes_after_the_last_work_is_sent_by_its_thread() -> None:
    work = [None] * module._LEAST_WORK
    sent: list[Any] = []
    batch = Batch(work, sent.append)
    assert batch.accepts()
    work.clear()
    batch.add("late")  # type: ignore[arg-type]
    assert sent == ["late"]
    assert not batch
    assert not batch.accepts()


@pytest.mark.parametrize("slow", ["/sleep/1.0", "/compute/1.0"])
def test_quick_responses_do_not_wait_for_a_slow_app(slow: str) -> None:
    with fast_worker("--threads=1", "--keep-alive=60") as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(server.address)) for _ in range(20)]
        for connection in connections:
            assert connection.request("/small").status == 200
        pid = stats(server)["pid"]
        os.kill(pid, signal.SIGSTOP)  # so that one poll returns them all
        try:
            for number, connection in enumerate(connections):
                connection.send_request(slow if number == 9 else "/small")
        finally:
            os.kill(pid, signal.SIGCONT)
        for connection in connections[:9]:
            assert connection.read_response().status == 200
        assert not select.select([connections[9].sock], [], [], 0)[0]
        for connection in connections[9:]:
            assert connection.read_response().status == 200
