"""HTTP/2: which response is sent first (RFC 9218), and how many bytes of others precede it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server import output_harness
from tests.server.connections import responses
from tests.server.http2_peer import PROTOCOL_ERROR, Begin, Peer, raw_frame
from tests.workers.stepped_worker import LARGE
from wsgifast.http.stream_headers import NO_PRIORITY, Priority, parse_priority
from wsgifast.server import sending
from wsgifast.server.sending import MultiplexedSender

ROOT = Path(__file__).parents[2]
PRIORITY_UPDATE = 0x10
STEP = 10_000  # sizes in bytes by which a window is opened
NEEDS_NOTSENT = pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no TCP_NOTSENT_LOWAT"
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", (3, False)),
        ("u=0", (0, False)),
        ("u=7, i", (7, True)),
        ("i,u=1", (1, True)),
        ("i=?0, u=2;a=b", (2, False)),
        ("i=?1", (3, True)),
        ("u=8", (3, False)),
        ("u=-1, i=1", (3, False)),
        ("u=1, u=2", (2, False)),
        ("U=1,,=, x=y, u", (3, False)),
        ("u=\xb2", (3, False)),
    ],
)
def test_priority_field_is_parsed(value: str, expected: tuple[int, bool]) -> None:
    assert parse_priority(value) == Priority(*expected)


def blocked(begin: Begin, *priorities: str | None) -> Peer:
    """A client that has requested large responses. The window of its connection is used up."""
    peer = begin(responses([bytes(LARGE)]), window=LARGE, reads=False)
    for each in priorities:
        peer.ask(headers=[] if each is None else [("priority", each)])
    peer.run()
    return peer


def next_turns(peer: Peer, count: int) -> list[int]:
    """Open the connection's window several times. Return the streams that get the bytes."""
    got: list[int] = []
    for _ in range(count):
        before = {number: len(response.body) for number, response in peer.responses.items()}
        peer.open(STEP)
        peer.run()
        got += [
            n for n, response in peer.responses.items() if len(response.body) - before[n] == STEP
        ]
    return got


def test_most_urgent_response_is_sent_first(begin: Begin) -> None:
    peer = blocked(begin, None, "u=5", "u=1, i", "u=2")
    turns = next_turns(peer, 16)
    assert turns.count(5) >= 12
    assert turns[0] == 5
    assert set(turns) - {5}  # each of the other streams continues, too


def test_responses_in_parts_take_turns(begin: Begin) -> None:
    peer = blocked(begin, None, "u=3, i", None)
    turns = next_turns(peer, 12)
    assert [turns.count(number) for number in (1, 3, 5)] == [4, 4, 4]


def test_whole_responses_are_sent_in_their_order(begin: Begin) -> None:
    peer = blocked(begin, "u=3", "u=3")
    assert next_turns(peer, 5) == [1] * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_priority_update_reorders_responses(begin: Begin, when: str) -> None:
    peer = begin(responses([bytes(LARGE)]), window=LARGE, reads=False)
    update = raw_frame(PRIORITY_UPDATE, 0, (5).to_bytes(4, "big") + b"u=0")
    if when == "before":
        peer.send_raw(update)
    for _ in range(3):
        peer.ask()
    peer.run()
    if when == "after":
        peer.send_raw(update)
    assert next_turns(peer, 3) == [5] * 3


@pytest.mark.parametrize(
    ("stream", "payload"), [(1, b"\0\0\0\1u=0"), (0, b"\0\0\1"), (0, b"\0\0\0\0u=0")]
)
def test_malformed_priority_update_ends_connection(
    begin: Begin, stream: int, payload: bytes
) -> None:
    peer = begin()
    peer.get()
    peer.send_raw(raw_frame(PRIORITY_UPDATE, stream, payload))
    assert peer.goaways[-1][1] == PROTOCOL_ERROR


def test_priorities_of_streams_to_come_are_bounded(begin: Begin) -> None:
    peer = begin()
    numbers = [number.to_bytes(4, "big") for number in range(1, 801, 2)]
    value = b"u=0" + b", a" * 30
    peer.send_raw(b"".join(raw_frame(PRIORITY_UPDATE, 0, each + value) for each in numbers))
    assert [*peer.near.mux.priorities.values()] == [Priority(0, False)] * 100  # not the values
    assert peer.get().status == 200
    assert len(peer.near.mux.priorities) == 99


def test_default_priority_shares_the_connection() -> None:
    assert NO_PRIORITY == (3, True)


# The kernel's queue


@pytest.fixture
def pair() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
        with far, near:
            near.setblocking(False)
            yield near, far


def receive_exactly(sock: socket.socket, size: int) -> None:
    while size:
        size -= len(sock.recv(size))


@NEEDS_NOTSENT
def test_slow_client_gets_little_after_each_event(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    monkeypatch.setattr(sending, "_FAST_S", -1)
    monkeypatch.setattr(sending, "smoothed_round_trip_us", lambda sock: 50_000)
    sender = MultiplexedSender(near, output_harness.rules())
    assert sender.send(bytes(100_000)) == 100_000
    receive_exactly(far, 100_000)
    for _ in range(3):
        sender._on_writable()
        assert sender.is_paced
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 16_384
        assert sender.send(bytes(10_000)) == 10_000
        assert sender.send(bytes(10_000)) == 6_384
        with pytest.raises(BlockingIOError):
            sender.send(b"more")
        receive_exactly(far, 16_384)


@NEEDS_NOTSENT
def test_client_that_becomes_fast_gets_all(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    monkeypatch.setattr(sending, "smoothed_round_trip_us", lambda sock: 50_000)
    sender = MultiplexedSender(near, output_harness.rules())
    sender._on_writable()  # long after the last one
    assert sender.is_paced
    monkeypatch.setattr(sending, "_FAST_S", 1e9)
    for _ in range(5):
        sender._on_writable()
    assert not sender.is_paced
    assert sender.send(bytes(100_000)) == 100_000
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) in (0, 2**32 - 1, -1)


def test_near_client_is_not_paced(pair: tuple[socket.socket, socket.socket]) -> None:
    sender = MultiplexedSender(pair[0], output_harness.rules())
    sender._on_writable()
    assert not sender.is_paced


# A slow link

_SLOW_LINK = (
    "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 20mbit burst 32k latency 30ms"
)


def test_small_response_overtakes_a_download() -> None:
    """A link of 20 Mbit/s in a separate network namespace."""
    try:
        made = subprocess.run(
            ["unshare", "-rn", "sh", "-c", _SLOW_LINK], capture_output=True, text=True
        )
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    if made.returncode:
        pytest.skip(f"no slow link can be made here: {made.stderr.strip()}")
    program = [sys.executable, "-m", "tests.server.slow_link"]
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", f'{_SLOW_LINK} && exec "$@"', "sh", *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # The bytes of the download in the link's own queue, and in the kernel.
    between = sorted(int(line) for line in done.stdout.split())
    assert between[len(between) // 2] < 120_000, between
