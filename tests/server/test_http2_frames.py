"""The parts of HTTP/2 that need no connection: headers, limits, and arbitrary bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.http2_peer import HTTP2, Peer, Stalled, raw_frame
from tests.server.output_harness import OPTIONS
from tests.support import http2
from tests.support.effort import effort
from tests.workers.stepped_worker import SteppedWorker, echo
from wsgifast.errors import MalformedRequest
from wsgifast.http.stream_headers import http1_headers, trailer_lines
from wsgifast.server.http2.floods import PERIOD_S, RESETS, WINDOWS, Flood, Floods
from wsgifast.server.http2.frames import Frames

GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]


def test_headers_of_a_stream_become_those_of_http_1() -> None:
    headers, scheme = http1_headers([*GET, (b"x-a", b"1"), (b"host", b"a"), (b"x-a", b"")])
    assert headers == b"GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\nx-a: \r\n\r\n"
    assert scheme == "https"


def test_host_without_an_authority_stays() -> None:
    fields = [each for each in GET if each[0] != b":authority"]
    assert http1_headers([*fields, (b"host", b"b")])[0] == b"GET / HTTP/1.1\r\nhost: b\r\n\r\n"
    assert http1_headers(fields)[0] == b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "path", "line"),
    [
        (b"OPTIONS", b"*", b"OPTIONS * HTTP/1.1\r\n"),
        (b"CONNECT", b"", b"CONNECT a HTTP/1.1\r\n"),
        (b"GET", "/é?%20é".encode(), b"GET /%C3%A9?%20%C3%A9 HTTP/1.1\r\n"),
        (b"GET", b"//x?a=b#c", b"GET //x?a=b#c HTTP/1.1\r\n"),
    ],
)
def test_target_of_a_stream_becomes_one_of_http_1(method: bytes, path: bytes, line: bytes) -> None:
    fields = [(b":method", method), (b":authority", b"a"), (b":path", path)]
    assert http1_headers(fields)[0].startswith(line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b":method", b""),
        (b":method", b"GET /x HTTP/1.1\r\n"),
        (b":method", b"G T"),
        (b":path", b""),
        (b":path", b"x"),
        (b":path", b"/ x"),
        (b":path", b"/\r\n\r\n"),
        (b":path", b"/\0"),
        (b":authority", b"a\r\nx: y"),
        (b"x-a", b"a\rb"),
        (b"x-a", b"a\nb"),
        (b"x-a", b"a\0b"),
        (b"x a", b"b"),
        (b"", b"b"),
        (b"x:a", b"b"),
    ],
)
def test_field_that_http_1_cannot_say_is_refused(name: bytes, value: bytes) -> None:
    fields = [each for each in GET if each[0] != name]
    with pytest.raises(MalformedRequest):
        http1_headers([*fields, (name, value)])


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=5))
def test_headers_of_a_stream_have_a_line_each(fields: list[tuple[bytes, bytes]]) -> None:
    joined = (b"host", b"cookie")
    fields = [each for each in fields if not each[0].startswith(b":") and each[0] not in joined]
    try:
        headers, _ = http1_headers([*GET, *fields])
    except MalformedRequest:
        return
    assert headers.count(b"\r\n") == len(fields) + 3
    assert headers.count(b"\n") == headers.count(b"\r") == len(fields) + 3
    assert headers.endswith(b"\r\n\r\n")


def test_trailers_become_lines_of_http_1() -> None:
    assert trailer_lines([(b"x-a", b"1"), (b"x-b", b"")]) == [b"x-a: 1", b"x-b: "]
    with pytest.raises(MalformedRequest):
        trailer_lines([(b":path", b"/")])


def test_flood_counts_leak_away() -> None:
    floods = Floods(0.0)
    for now in (0.0, PERIOD_S, 2.5 * PERIOD_S):
        for _ in range(RESETS):
            floods.count("resets", now)
    with pytest.raises(Flood, match="reset"):
        floods.count("resets", 2.5 * PERIOD_S)


def test_sent_data_earns_window_updates() -> None:
    floods = Floods(0.0)
    for _ in range(2000):
        floods.earn_windows(10, frames=1)
    for _ in range(4000 + WINDOWS):
        floods.count("windows", 0.0)
    # Frames of 10 bytes earn a little more.
    for _ in range(39):
        floods.count("windows", 0.0)
    with pytest.raises(Flood):
        floods.count("windows", 0.0)


def test_frame_cut_by_a_window_earns_no_window_updates() -> None:
    floods = Floods(0.0)
    for _ in range(WINDOWS):
        floods.count("windows", 0.0)
        floods.earn_windows(1, frames=0)
    for _ in range(int(WINDOWS * 2 / 1024)):
        floods.count("windows", 0.0)
    with pytest.raises(Flood):
        floods.count("windows", 0.0)


def frames_of(window: int, frame_bytes: int) -> Frames:
    """The frames of a connection on which a client has sent a request and gets a response."""
    client = http2.Client(window=window)
    client.begin()
    client.state.update_settings({SettingCodes.MAX_FRAME_SIZE: frame_bytes})
    client.ask()
    frames = Frames(OPTIONS, lambda frame: None)
    frames.begin()
    frames.receive(client.state.data_to_send())
    frames.data_to_send()
    frames.send_headers(1, [(b":status", b"200")])
    return frames


@given(
    bodies=st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=4),
    frame_bytes=st.sampled_from([16_384, 20_000, 1 << 20]),
    ends=st.booleans(),
)
@settings(max_examples=effort(60))
def test_body_is_framed_as_by_h2(
    bodies: list[tuple[int, bool]], frame_bytes: int, ends: bool
) -> None:
    """The bytes are the same, in the same order, and the windows are the same afterwards."""
    ours, theirs = frames_of(1 << 20, frame_bytes), frames_of(1 << 20, frame_bytes)
    for each in (ours, theirs):
        each.outbound_flow_control_window = 1 << 20
    sent = [b"", b""]
    for number, (size, pings) in enumerate(bodies):
        last = ends and number == len(bodies) - 1
        data = memoryview(bytes([number]) * size)
        frames = ours.send_body(1, data, end_stream=last)
        most = min(frame_bytes, 1 << 16)
        parts = [data[start : start + most] for start in range(0, size or 1, most)]
        assert frames == len(parts)
        for part in parts:
            theirs.send_data(1, part, end_stream=last and part is parts[-1])
        for side, each in enumerate((ours, theirs)):
            if pings:
                each.ping(b"12345678")
            else:
                sent[side] += each.data_to_send()
    sent[0] += ours.data_to_send()
    sent[1] += theirs.data_to_send()
    assert sent[0] == sent[1]
    assert ours.outbound_flow_control_window == theirs.outbound_flow_control_window
    assert ours.stream_window(1) == theirs.stream_window(1)
    assert ours.is_open(1) == theirs.is_open(1)
    assert ours.data_to_send() == b""


def test_body_after_the_end_of_its_stream_is_refused() -> None:
    frames = frames_of(100, 16_384)
    frames.data_to_send()
    frames.send_body(1, bytes(100), end_stream=True)
    frames.data_to_send()
    for number in (1, 3):
        with pytest.raises(ProtocolError):
            frames.send_body(number, b"", end_stream=False)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/large":
        start_response("200 OK", [])
        return iter([bytes(40_000), bytes(40_000)])
    return echo(environ, start_response)


Step = Callable[[Peer], object]
_STREAMS = st.integers(min_value=0, max_value=5).map(lambda n: 2 * n + 1)
_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from(["/", "/large"]).map(lambda path: lambda peer: peer.ask(path)),
    st.binary(max_size=2000).map(lambda body: lambda peer: peer.ask(method="POST", body=body)),
    st.just(lambda peer: peer.ask(method="POST", ends=False)),
    _STREAMS.map(lambda n: lambda peer: peer.state.reset_stream(n)),
    st.tuples(st.integers(1, 100_000), _STREAMS).map(lambda to: lambda peer: peer.open(*to)),
    st.integers(1, 100_000).map(lambda size: lambda peer: peer.open(size)),
    st.just(lambda peer: peer.state.ping(b"12345678")),
    st.integers(0, 70_000).map(lambda size: lambda peer: peer.state.update_settings({4: size})),
    st.just(lambda peer: peer.run()),
    st.floats(0.1, 30).map(lambda seconds: lambda peer: peer.stepped.pass_time(seconds)),
    # Frames of any kind.
    st.builds(
        lambda kind, number, payload, flags: (
            lambda peer: peer.socket.send(raw_frame(kind, number, payload, flags=flags))
        ),
        st.integers(0, 10),
        st.integers(0, 12),
        st.binary(max_size=20),
        st.integers(0, 255),
    ),
    st.just(lambda peer: peer.socket.close()),
)


@settings(deadline=None, max_examples=effort(60))
@given(st.lists(_STEPS, max_size=25))
def test_any_frames_are_answered_or_end_the_connection(steps: list[Step]) -> None:
    """Our code does not fail, no object remains, and other clients are served."""
    options: dict[str, Any] = {"keepalive": 5, "worker_connections": 100, **HTTP2}
    stepped = SteppedWorker(app, **options)
    try:
        peer = Peer(stepped, reads=False)
        for step in [*steps, Peer.run]:
            try:
                step(peer)
            except Exception as error:
                if isinstance(error, AssertionError) and not isinstance(error, Stalled):
                    raise
        other = Peer(stepped)
        assert other.get(method="POST", body=b"other").body == b"other"
        peer.socket.close()
        other.socket.close()
        stepped.run()
        stepped.pass_time(3)
        assert not stepped.server.connections
        assert not stepped.log.errors
        assert not stepped.log.says("Error in a connection")
        assert not stepped.server.output_rules.memory.used_bytes
    finally:
        stepped.close()
