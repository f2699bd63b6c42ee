"""Many clients do everything at once. The test checks every body by its hash.

It takes one second for each poller. Set WSGIFAST_RACE_SECONDS=60 for a thorough run.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time

import pytest

from tests.support.http import Address, Connection
from tests.support.servers import wait_for
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import POLLERS, fast_worker, stats

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("WSGIFAST_RACE_SECONDS", "1"))
CLIENTS = 16

_file = block(FILE_BYTES)
_expected_segments = b"--a\r\n" + _file[100:1100] + b"--b\r\n" + _file[4096:2_004_096] + b"--end"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _one_request(connection: Connection, chance: random.Random) -> None:
    kind = chance.randrange(8)
    if kind == 0:
        size = chance.choice([0, 1, 1024, 50_000, 400_000])
        body, expected = connection.request(f"/small/{size}").body, block(size)
    elif kind == 1:
        count, size = chance.randrange(1, 50), chance.choice([1, 100, 10_000])
        body = connection.request(f"/chunks/{count}-{size}").body
        expected = b"".join(block(size, i) for i in range(count))
    elif kind == 2:
        offset = chance.randrange(FILE_BYTES)
        body, expected = connection.request(f"/file/{offset}").body, _file[offset:]
    elif kind == 3:
        body, expected = connection.request("/segments").body, _expected_segments
    elif kind == 4:
        data = chance.randbytes(chance.choice([1, 1000, 70_000, 700_000]))
        body = connection.request("/digest", method="POST", body=data).body
        expected = json.dumps(_digest(data)).encode()
    elif kind == 5:
        data = chance.randbytes(100_000)
        body = connection.request("/digest", method="POST", body=[data]).body
        expected = json.dumps(_digest(data)).encode()
    elif kind == 6:
        body, expected = connection.request("/sleep/0.005").body, b"ok"
    else:
        sizes = [chance.randrange(5000) for _ in range(5)]
        for size in sizes:
            connection.send_request(f"/small/{size}")
        body = b"".join(connection.read_response().body for _ in sizes)
        expected = b"".join(block(size) for size in sizes)
    assert _digest(body) == _digest(expected), f"kind {kind}: {len(body)} of {len(expected)} bytes"


def _client(address: Address, seed: int, end: float, failures: list[str], done: list[int]) -> None:
    chance = random.Random(seed)
    try:
        while True:
            buffer = chance.choice([None, 4096, 65_536])
            with Connection(address, receive_buffer=buffer) as connection:
                for _ in range(chance.randrange(1, 8)):
                    _one_request(connection, chance)
                    done.append(1)
                if chance.random() < 0.3:  # sometimes the client leaves in the middle
                    connection.send_request(chance.choice(["/file", "/chunks/100-10000", "/small"]))
            if time.monotonic() > end:
                return
    except Exception as error:  # noqa: BLE001 - the test reports it with the client's seed
        failures.append(f"client {seed}: {error!r}")


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("poller", POLLERS)
def test_bodies_are_right_with_many_clients_at_once(poller: str) -> None:
    with fast_worker("--keep-alive=60", attributes={"poller": poller}) as server:
        before = stats(server)
        failures: list[str] = []
        done: list[int] = []
        end = time.monotonic() + SECONDS
        clients = [
            threading.Thread(target=_client, args=(server.address, seed, end, failures, done))
            for seed in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert not failures, "\n".join(failures)
        assert len(done) >= CLIENTS
        after = stats(server)

        def all_is_closed() -> bool:
            # A connection lingers until its client has closed it too, also that of this request. A
            # disk thread ends a moment after its last read.
            after.update(stats(server))
            return all(after[what] <= before[what] for what in ("fds", "threads"))

        wait_for(all_is_closed, "no more descriptors and threads are there", interval=0.1)
        assert after["pid"] == before["pid"]
        assert "Error in a connection" not in server.log()
        assert "Traceback" not in server.log()
