"""HTTP/2: streams that clients reset, and frames that a client must not send too often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from h2.settings import SettingCodes
from hpack.huffman import HuffmanEncoder
from hyperframe.frame import PingFrame, SettingsFrame

from tests.server.connections import responses
from tests.server.http2_peer import ENHANCE_YOUR_CALM, REFUSED, Begin, Peer, raw_frame, raw_headers
from tests.support.calls import recorded
from tests.support.wsgi import Closing
from tests.workers.stepped_worker import LARGE, echo
from wsgifast.server import output


def many(peer: Peer, count: int, make: Callable[[], object]) -> None:
    for _ in range(count):
        make()
    peer.run()


def test_stream_reset_before_its_turn_runs_no_app(begin: Begin) -> None:
    called: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        called.append(environ["PATH_INFO"])
        return echo(environ, start_response)

    peer = begin(app)
    peer.ask("/1")
    peer.state.reset_stream(1)
    peer.ask("/3")
    peer.ask("/5")
    peer.run()
    assert called == ["/3", "/5"]
    # A stream that waits for a thread when the client resets it.
    peer.ask("/7")
    peer.ask("/9")
    peer.send_only()
    peer.stepped.poll()
    job = peer.stepped.take_up()
    assert job is not None
    peer.state.reset_stream(7)
    peer.send_only()
    peer.stepped.run()
    peer.stepped.response(job)
    peer.run()
    assert called == ["/3", "/5", "/9"]
    assert not peer.streams


def test_stream_reset_while_sending_ends(begin: Begin) -> None:
    body = Closing([bytes(LARGE)])
    peer = begin(responses(body), window=10)
    assert len(peer.get().body) == 10
    peer.state.reset_stream(1)
    peer.run()
    assert body.closed == 1
    assert not peer.streams
    assert peer.stepped.log.requests == [("GET /", "200 OK", 10)]
    assert peer.stepped.server.output_rules.memory.used_bytes == 0


def test_app_of_reset_stream_gets_an_error(begin: Begin) -> None:
    steps: list[str] = []

    def body() -> Iterator[bytes]:
        try:
            yield b"a"
            peer.state.reset_stream(1)
            peer.serve_elsewhere()
            steps.append("reset")
            yield b"b"
            steps.append("not reached")
        finally:
            steps.append("closed")

    peer = begin(responses(body))
    peer.get()
    assert steps == ["reset", "closed"]
    assert not peer.streams
    assert not peer.stepped.log.errors


FLOODS: dict[str, tuple[Callable[[Peer], object], int]] = {
    "requests that are reset": (lambda peer: peer.state.reset_stream(peer.ask()), 150),
    "DATA without data": (lambda peer: peer.state.send_data(1, b""), 900),
    "PING": (lambda peer: peer.state.ping(b"12345678"), 900),
    "SETTINGS": (lambda peer: peer.state.update_settings({4: 65_535}), 900),
    "PRIORITY": (lambda peer: peer.state.prioritize(1, weight=5), 900),
    "answers to no SETTINGS": (
        lambda peer: peer.state._prepare_for_sending([SettingsFrame(0, flags=["ACK"])]), 900
    ),
    "answers to no PING": (
        lambda peer: peer.state._prepare_for_sending([PingFrame(0, b"12345678", flags=["ACK"])]),
        900,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_ends_the_connection(begin: Begin, kind: str) -> None:
    make, calm = FLOODS[kind]
    peer = begin()
    peer.ask(method="POST", ends=False)
    many(peer, calm, lambda: make(peer))
    assert not peer.goaways
    assert peer.get().status == 200
    peer.stepped.pass_time(3)
    many(peer, 1000, lambda: make(peer))
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert peer.has_ended


def without_limit(peer: Peer) -> Peer:
    """A client that opens streams without regard to the limit."""
    settings = peer.state.remote_settings
    settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2**31 - 1
    settings.acknowledge()
    return peer


def test_stream_beyond_the_limit_alone_is_refused(begin: Begin) -> None:
    """The limit of streams (RFC 9113, section 5.1.2)."""
    peer = without_limit(begin(http2_max_concurrent_streams=2))
    first, second = (peer.ask("/", "POST", ends=False) for _ in range(2))
    peer.run()
    refused = [peer.ask("/", headers=[("x-a", str(n))]) for n in range(3)]
    with_body = peer.ask("/", "POST", body=b"dropped")
    peer.run()
    assert [peer.responses[n].reset for n in (*refused, with_body)] == [REFUSED] * 4
    for stream in (first, second):
        peer.state.send_data(stream, b"whole", end_stream=True)
    peer.run()
    assert [peer.responses[n].body for n in (first, second)] == [b"whole", b"whole"]
    # The headers of refused streams have changed the HPACK table, and later headers are decoded
    # with it.
    assert peer.get(headers=[("x-a", "1")]).status == 200
    assert peer.stepped.log.environs[-1]["HTTP_X_A"] == "1"
    assert not peer.goaways
    assert not peer.streams


def test_bodies_of_refused_streams_are_dropped(begin: Begin) -> None:
    peer = without_limit(begin(http2_max_concurrent_streams=1))
    first = peer.ask("/", "POST", ends=False)
    refused = [peer.ask("/", "POST", ends=False) for _ in range(150)]
    for stream in (*refused, first):
        peer.state.send_data(stream, b"body", end_stream=True)
    peer.run()
    assert {peer.responses[stream].reset for stream in refused} == {REFUSED}
    assert peer.responses[first].body == b"body"
    assert not peer.goaways


def test_repeated_streams_beyond_limit_end_connection(begin: Begin) -> None:
    peer = without_limit(begin(http2_max_concurrent_streams=1))
    peer.ask("/", "POST", ends=False)
    many(peer, 300, peer.ask)
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert not peer.streams


def test_window_updates_by_the_byte_end_the_connection(begin: Begin) -> None:
    peer = begin(responses([bytes(LARGE)]), window=0)
    peer.get()
    for _ in range(3000):
        if peer.goaways:
            break
        peer.open(1, 1)
        peer.run()
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM


def test_window_updates_for_small_frames_are_no_flood(begin: Begin) -> None:

    def body() -> Iterator[bytes]:
        for _ in range(3000):
            yield b"a"
            peer.receive()
            if peer.responses[1].body:
                peer.open_both(1, 1)
                peer.serve_elsewhere()

    peer = begin(responses(body), reads=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_COALESCE_S", 0.0)  # each block is a frame
        assert peer.get().ended
    assert len(peer.responses[1].body) == 3000
    assert not peer.goaways


UNKNOWN_SETTINGS = b"".join(code.to_bytes(2, "big") + bytes(4) for code in range(1000, 3700))


@pytest.mark.parametrize(
    ("frame", "calm"),
    [
        (raw_frame(4, 0, UNKNOWN_SETTINGS), 4),
        (raw_frame(4, 0, b"\0\4\0\0\xff\xff" * 2700), 4),
        (raw_frame(10, 0, b"\0\1ax"), 900),
        (raw_frame(3, 1, b"\0\0\0\x08"), 900),
        (raw_frame(0, 3, b"\0", flags=8), 900),
        (raw_frame(8, 1, b"\0\0\0\1"), 1900),
    ],
    ids=["unknown settings", "a known one", "ALTSVC", "reset of none", "padding", "window of none"],
)
def test_costly_frames_count_for_more(begin: Begin, frame: bytes, calm: int) -> None:
    """One SETTINGS frame may have 2,700 values. h2 has no event for some frames."""
    peer = begin()
    assert peer.get().status == 200
    peer.ask("/", "POST", ends=False)
    peer.run()
    peer.send_raw(frame * calm)
    assert not peer.goaways
    assert peer.get().status == 200
    peer.send_raw(frame * calm)
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM


def test_priorities_of_requests_are_no_flood(begin: Begin) -> None:
    """PRIORITY frames are deprecated (RFC 9113, section 5.3.2).

    Browsers still send one with each request.
    """
    peer = begin()
    for number in range(1100):
        peer.socket.send(raw_headers(peer, priority=b"\0\0\0\0\x10"))
        if number % 50 == 0:
            peer.run()
    peer.run()
    assert not peer.goaways
    assert len(peer.stepped.log.environs) == 1100


@pytest.mark.parametrize("field", [b"\x95", b"\0\1a\0", b"\x60\0"])
def test_headers_of_many_tiny_fields_end_connection(begin: Begin, field: bytes) -> None:
    peer = begin()
    peer.send_raw(raw_headers(peer, more=field * 1800))
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert not peer.stepped.log.environs


def test_cookies_in_many_fields_are_joined(begin: Begin) -> None:
    peer = begin()
    crumbs = [("cookie", f"c{number}=1") for number in range(150)]
    assert peer.get(headers=crumbs).status == 200
    assert peer.stepped.log.environs[0]["HTTP_COOKIE"] == "; ".join(value for _, value in crumbs)


def test_many_table_size_changes_end_the_connection(begin: Begin) -> None:
    peer = begin()
    peer.send_raw(raw_headers(peer, before=b"\x3f\xe1\x1f" * 2))
    assert peer.stepped.log.environs
    peer.send_raw(raw_headers(peer, before=b"\x20" * 1000))
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert len(peer.stepped.log.environs) == 1


def test_client_cannot_enlarge_the_encoders_table(begin: Begin) -> None:
    unique = iter(range(1000))

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("X-Unique", f"{next(unique):0100d}")])
        return []

    peer = begin(app)
    peer.state.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**31})
    for _ in range(100):
        assert peer.get().status == 200
    assert len(peer.near.mux.frames.encoder._entries) < 40


def test_long_headers_are_not_huffman_encoded(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hpack's Huffman decoder takes quadratic time."""
    compressed = recorded(monkeypatch, HuffmanEncoder, "encode", lambda _, data: len(data))
    value = "a" * 60_000
    peer = begin(responses(list, ("X-Long", value), ("X-Short", "short")))
    compressed.clear()
    assert peer.get().headers["x-long"] == value
    assert max(compressed) < 1000


def test_header_block_beyond_limit_ends_connection(begin: Begin) -> None:
    peer = begin(http2_max_header_list_size=10_000)
    response = peer.get(headers=[("x-a", "a" * 8000), ("x-b", "b" * 8000)])
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert not response.headers
    # The limit applies before the end of the headers, too: a HEADERS frame, and CONTINUATION frames
    # without end.
    peer = begin(http2_max_header_list_size=10_000)
    frame = b"\0\x10\0%c\0\0\0\0\1" + bytes(4096)
    for kind in (1, 9, 9, 9):
        peer.socket.send(frame % kind)
        peer.stepped.run()
    peer.receive()
    assert peer.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert peer.has_ended


def test_unknown_settings_are_not_stored(begin: Begin) -> None:
    peer = begin()
    known = len(peer.near.mux.frames.remote_settings)
    peer.send_raw(raw_frame(4, 0, UNKNOWN_SETTINGS))
    assert len(peer.near.mux.frames.remote_settings) == known
    assert peer.get().status == 200


def test_too_long_frame_is_refused_at_its_header(begin: Begin) -> None:
    peer = begin()
    peer.send_raw(b"\xff\xff\xff\0\0")
    assert peer.goaways[-1][1] == 6  # FRAME_SIZE_ERROR
    assert peer.has_ended
