"""Connections under a kernel that cannot watch them, or that takes nothing."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.workers.bench import LARGE, Bench, large, make_bench
from wsgifast.server.endpoint import CLOSED, RECEIVING
from wsgifast.server.poller import WRITE
from wsgifast.workers.worker import FastWorker

__all__ = ["make_bench"]

MakeBench = Callable[..., Bench]


def refuse(fd: int, events: int = 0) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_a_kernel_that_cannot_watch_it(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    poller = bench.server.poller
    add, poller.add = poller.add, refuse
    assert bench.connect().is_in(CLOSED)
    poller.add = add
    poller.arm = refuse
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    client.sock.shutdown(socket.SHUT_WR)
    bench.run()
    assert client.is_in(CLOSED)
    assert not bench.server.registry.waiting
    assert bench.log.says("Cannot allocate memory")


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_kernel_that_cannot_watch_it_while_the_app_runs(
    make_bench: MakeBench, asked_again: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        if not asked_again:
            bench.server.poller.arm = refuse
        yield bytes(LARGE)
        if asked_again:
            bench.server.pool.push((client.near.fd, WRITE))
            bench.run()
            assert client.near.retries
            bench.server.poller.arm = refuse
            bench.pass_time(1)
        # It has not been closed under the app, and is not waited for.
        assert client.near.sock.fileno() >= 0
        assert client.near.fd not in bench.server.registry.waiting
        yield b"more"
        pytest.fail("the app gets no error")

    bench = make_bench(app)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert client.is_in(CLOSED)


def test_the_sweep_takes_it_while_the_kernel_refuses(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    """Then it is no longer ours to close."""

    def lose(fd: int, events: int) -> None:
        del bench.server.registry.waiting[fd]
        refuse(fd, events)

    client = bench.connect()
    bench.server.poller.arm = lose
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    assert client.is_in(RECEIVING)


def test_a_kernel_without_memory_is_asked_again_by_the_sweep(make_bench: MakeBench) -> None:
    """It says writable and takes nothing: waiting for that would spin."""
    bench = make_bench(large, keepalive=60)
    client = bench.begin()
    received = 0
    while client.near.output.draining:
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        assert client.near.retries
        received += len(client.receive_all_there_is())
        bench.run()  # not by an event
        assert client.receive_all_there_is() == b""
        bench.pass_time(1)  # but by the sweep
    received += len(client.receive_all_there_is())
    assert received > LARGE
    assert bench.log.requests == [("GET /", "200 OK", LARGE)]
    assert not client.near.retries
    # And that has an end.
    client.send_request()
    bench.run()
    for _ in range(int(FastWorker.send_timeout_s)):
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        bench.clock.now += 1
    bench.pass_time(1)
    assert client.is_in(CLOSED)


def test_its_time_is_set_before_the_sweep_can_look(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    arm = bench.server.poller.arm
    deadlines = []

    def look(fd: int, events: int) -> None:
        deadlines.append((events, client.near.deadline - bench.clock.now))
        arm(fd, events)

    client.send_request()
    bench.poll()
    bench.clock.now += 10
    bench.server.poller.arm = look
    bench.run()
    assert deadlines == [(WRITE, FastWorker.send_timeout_s)]
