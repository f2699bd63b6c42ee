"""HTTP/2: responses to requests that arrived together are sent together, after a tick at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.server.http2_peer import Begin, Peer
from wsgifast.server.monitor import TICK_S


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return blocks(path) if path == "/stream" else [path.encode() * 100]


def blocks(path: str) -> Iterator[bytes]:
    yield b"first"
    yield b"second"


def waiting(peer: Peer, *paths: str) -> tuple[list[int], Any]:
    """Send several requests at once. Return the streams, and the first job."""
    streams = [peer.ask(path) for path in paths]
    peer.send_only()
    peer.stepped.poll()
    return streams, peer.stepped.take_up()


def test_responses_of_one_receive_leave_together(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = begin(app)
    sent = peer.sends(monkeypatch)
    streams = [peer.ask(f"/{number}") for number in range(10)]
    peer.run()
    assert [peer.responses[stream].ended for stream in streams] == [True] * 10
    assert len(sent) == 1
    peer.get("/alone")
    assert len(sent) == 2


def test_large_responses_do_not_wait(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = begin(app)
    peer.open(1 << 20)
    peer.run()
    sent = peer.sends(monkeypatch)
    for _ in range(8):
        peer.ask("/" + "a" * 160)  # 16 KB
    peer.run()
    assert len(sent) == 2


@pytest.mark.parametrize("how", ["tick", "time", "reset"])
def test_response_waits_no_longer_than(begin: Begin, how: str) -> None:
    peer = begin(app)
    (first, second, last), job = waiting(peer, "/a", "/b", "/c")
    peer.stepped.response(job)
    peer.receive()
    assert not peer.responses[first].ended
    if how == "tick":
        peer.stepped.server.output_rules.tick()
    elif how == "time":
        peer.stepped.clock.now += 2 * TICK_S
        peer.stepped.poll()
        peer.stepped.response(peer.stepped.take_up())
    else:
        for stream in (second, last):
            peer.state.reset_stream(stream)
        peer.serve_elsewhere()
    peer.receive()
    assert peer.responses[first].body == b"/a" * 100
    assert not peer.stepped.server.output_rules.to_flush
    peer.run()
    assert not peer.streams


def test_streamed_block_does_not_wait_for_others(begin: Begin) -> None:
    peer = begin(app)
    seen: list[Callable[[], object]] = []
    (first, _), job = waiting(peer, "/stream", "/b")
    peer.stepped.server.output_rules.flush_soon = lambda queue, flush: seen.append(flush)
    peer.stepped.response(job)
    peer.receive()
    assert peer.responses[first].body.startswith(b"first")
    peer.run()
    assert peer.responses[first].body == b"firstsecond"
