"""Who is the slowest of a worker's clients."""

from __future__ import annotations

from tests.workers.bench import LARGE, PEER, MakeBench, large
from wsgifast.server.counters import slowest_clients


def download(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def test_slowest_clients_of_worker_come_first(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    idle = bench.connect()
    stopped = bench.begin(download("/stopped?secret=1"))
    slow = bench.begin(download("/slow"), peer=("2001:db8::1", 5, 0, 0))
    bench.clock.now += 10
    taken = len(slow.receive_all_there_is())
    bench.run()
    found = slowest_clients(bench.server.connections, bench.clock.now, most=10)
    assert [(each.client, each.path) for each in found] == [
        (f"{PEER[0]}:{PEER[1]}", "/stopped"),
        ("[2001:db8::1]:5", "/slow"),
    ]
    first, second = found
    assert first.bytes_per_s == 0
    assert 0 < first.queued_bytes < LARGE
    assert first.waited_s == second.waited_s == 10
    assert 0 < second.bytes_per_s <= taken / 10
    assert slowest_clients(bench.server.connections, bench.clock.now, most=1) == [first]
    assert idle.is_in("idle")
    assert stopped.is_in("sending")


def test_client_that_took_all_is_not_slow(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.begin(download("/"))
    assert len(slowest_clients(bench.server.connections, bench.clock.now, most=10)) == 1
    while len(client.receive_all_there_is()):
        bench.run()
    assert slowest_clients(bench.server.connections, bench.clock.now, most=10) == []
    bench.begin(download("/"), peer="")
    (other,) = slowest_clients(bench.server.connections, bench.clock.now, most=10)
    assert other.client == "unix"
