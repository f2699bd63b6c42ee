"""HTTP/2: a malformed request resets only its own stream (RFC 9113, section 8.1.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.server.http2_peer import PROTOCOL_ERROR, Begin, raw_frame, raw_headers
from tests.support.effort import effort
from wsgifast.errors import BodyError
from wsgifast.http.fields import HOP_BY_HOP, NO_TRAILERS, interim_fields, trailer_fields

Fields = list[tuple[str, str]]

GET = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
POST = [(":method", "POST"), *GET[1:]]


class Recording:
    """An app that records its requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.errors: list[BaseException] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            body = environ["wsgi.input"].read()
        except Exception as error:
            self.errors.append(error)
            raise
        declared = environ.get("CONTENT_LENGTH")
        assert declared is None or int(declared) == len(body)
        self.bodies.append(body)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]


def data(number: int, body: bytes, *, ends: bool = True) -> bytes:
    return raw_frame(0, number, body, flags=1 if ends else 0)


def trailers(number: int, fields: Fields, *, ends: bool = True) -> bytes:
    block = b"".join(b"\0%c%b%c%b" % (len(n), n.encode(), len(v), v.encode()) for n, v in fields)
    return raw_frame(1, number, block, flags=5 if ends else 4)


def without(name: str, fields: Fields = GET) -> Fields:
    return [field for field in fields if field[0] != name]


@pytest.mark.parametrize(
    "fields",
    [
        [*POST, ("content-length", "5")],
        [*GET, ("content-length", "5")],
        [(":method", "HEAD"), *GET[1:], ("content-length", "1")],
        [*POST, ("content-length", "0"), ("content-length", "5")],
        [*POST, ("content-length", "5, 5")],
        [*POST, ("content-length", "+0")],
        [*POST, ("content-length", "")],
        [*GET, ("connection", "close")],
        [*GET, ("transfer-encoding", "chunked")],
        [*GET, ("keep-alive", "timeout=5")],
        [*GET, ("proxy-connection", "keep-alive")],
        [*GET, ("upgrade", "h2c")],
        [*GET, ("te", "gzip")],
        without(":method"),
        without(":scheme"),
        without(":path"),
        without(":authority"),
        [*GET, (":path", "/other")],
        [*GET, (":status", "200")],
        [*GET, (":own", "x")],
        [*GET[:3], ("x-a", "b"), GET[3]],
        [*without(":path"), (":path", "")],
        [*GET, ("host", "b")],
        [*GET, ("X-Upper", "b")],
        [*GET, ("x a", "b")],
        [*GET, ("", "b")],
        [*GET, ("x-a", "b\r\nc: d")],
        [*GET, ("x-a", "b\0")],
        [*GET, ("x-a", " b")],
    ],
    ids=lambda fields: repr(fields[-1]),
)
def test_malformed_headers_reset_stream_before_app(begin: Begin, fields: Fields) -> None:
    app = Recording()
    peer = begin(app)
    peer.send_raw(raw_headers(peer, fields))
    assert peer.responses[1].reset == PROTOCOL_ERROR
    assert not app.bodies
    assert not peer.streams
    assert peer.get().body == b"ok"  # the connection continues
    assert not peer.goaways
    assert peer.stepped.server.shared.counters.refused == {400: 1}
    assert peer.stepped.log.says("Invalid request from ")


@pytest.mark.parametrize("buffer_bodies", [True, False])
@pytest.mark.parametrize(
    ("declared", "frames"),
    [
        ("5", [data(1, b"abc")]),
        ("5", [data(1, b"abc", ends=False), data(1, b"defg", ends=False)]),
        ("0", [data(1, b"abc")]),
        ("5", [data(1, b"abc", ends=False), trailers(1, [("x-a", "b")])]),
        ("5", [trailers(1, [("x-a", "b")])]),
        ("3", [data(1, b"abc", ends=False), trailers(1, [(":path", "/")])]),
        ("3", [data(1, b"abc", ends=False), trailers(1, [("connection", "close")])]),
        ("3", [data(1, b"abc", ends=False), trailers(1, [("x-a", "b")], ends=False)]),
    ],
)
def test_malformed_body_resets_stream_before_app(
    begin: Begin, declared: str, frames: list[bytes], buffer_bodies: bool
) -> None:
    app = Recording()
    peer = begin(app, attributes={"buffer_bodies": buffer_bodies})
    peer.socket.send(raw_headers(peer, [*POST, ("content-length", declared)], ends=False))
    peer.send_raw(b"".join(frames))
    assert peer.responses[1].reset == PROTOCOL_ERROR
    assert not app.bodies
    assert not peer.streams
    assert peer.get().body == b"ok"
    assert not peer.goaways


def test_app_reading_another_length_gets_an_error(begin: Begin) -> None:
    read = Recording()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/":
            peer.socket.send(data(1, b"abc"))
            peer.serve_elsewhere()
        return read(environ, start_response)

    peer = begin(app, attributes={"buffer_bodies": False})
    peer.send_raw(raw_headers(peer, [*POST, ("content-length", "5")], ends=False))
    assert peer.responses[1].reset == PROTOCOL_ERROR
    assert read.errors
    assert not read.bodies
    assert not peer.streams
    assert peer.get("/other").body == b"ok"


def test_trailers_that_may_only_be_headers_are_refused(begin: Begin) -> None:
    app = Recording()
    for name in NO_TRAILERS - {"te", "transfer-encoding"}:  # HTTP/2 forbids these fields
        peer = begin(app)
        peer.socket.send(raw_headers(peer, POST, ends=False))
        peer.send_raw(data(1, b"abc", ends=False) + trailers(1, [(name, "3")]))
        assert peer.responses[1].status == 400, name
        assert not app.bodies


def test_reset_body_gives_its_window_back(begin: Begin) -> None:
    peer = begin(Recording())
    for _ in range(20):  # 20 * 10,000 bytes are more than the connection's window
        headers = raw_headers(peer, [*POST, ("content-length", "9999")], ends=False)
        number = max(peer.responses)
        peer.send_raw(headers + data(number, bytes(10_000)))
        assert peer.responses[number].reset == PROTOCOL_ERROR
    assert not peer.goaways
    frames = peer.near.mux.frames
    assert frames._inbound_flow_control_window_manager.current_window_size > 10_000


_parts = st.lists(st.binary(max_size=6), max_size=3)


@given(
    declared=st.none() | st.integers(0, 12),
    parts=_parts,
    with_trailers=st.booleans(),
    ends_with_headers=st.booleans(),
)
@example(declared=0, parts=[], with_trailers=False, ends_with_headers=True)
@example(declared=3, parts=[b"abc"], with_trailers=False, ends_with_headers=False)
@example(declared=3, parts=[b"abc"], with_trailers=True, ends_with_headers=False)
@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_app_sees_the_declared_body_or_none(
    begin: Begin,
    declared: int | None,
    parts: list[bytes],
    with_trailers: bool,
    ends_with_headers: bool,
) -> None:
    app = Recording()
    peer = begin(app)
    length = [] if declared is None else [("content-length", str(declared))]
    if ends_with_headers:
        parts, with_trailers = [], False
    elif not parts and not with_trailers:
        parts = [b""]
    peer.socket.send(raw_headers(peer, [*POST, *length], ends=ends_with_headers))
    for number, part in enumerate(parts):
        peer.socket.send(data(1, part, ends=not with_trailers and number == len(parts) - 1))
    if with_trailers:
        peer.socket.send(trailers(1, [("x-a", "b")]))
    peer.run()
    body = b"".join(parts)
    if declared in (None, len(body)):
        assert app.bodies == [body]
        assert peer.responses[1].status == 200
    else:
        assert not app.bodies
        assert peer.responses[1].reset == PROTOCOL_ERROR
    assert not peer.goaways
    assert not peer.streams


# Responses of apps.


def test_early_hints_and_trailers_have_no_framing(begin: Begin) -> None:
    given_ones = [(name.title(), "5") for name in (*HOP_BY_HOP, "content-length")]

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["wsgi.early_hints"](given_ones)
        environ["wsgi.early_hints"]([("Link", "</a>"), (b"X-B", b"c"), *given_ones])
        start_response("200 OK", [])
        named = [(name, "5") for name in NO_TRAILERS]
        environ["gunicorn.http2.send_trailers"]([("X-A", "b"), *given_ones, *named])
        return iter([b"a", b"b"])

    response = begin(app).get()
    assert response.early == [{":status": "103", "link": "</a>", "x-b": "c"}]
    assert (response.body, response.trailers) == (b"ab", {"x-a": "b"})


@pytest.mark.parametrize("check", [interim_fields, trailer_fields])
@pytest.mark.parametrize(
    "field",
    [
        (":status", "200"),
        ("a b", "c"),
        ("", "c"),
        ("a\r\nb", "c"),
        ("a:b", "c"),
        ("a", "b\r\nc: d"),
        ("a", "b\nc"),
        ("a", "b\0"),
        (b"a", b"b\r"),
        ("a", 5),
        (5, "a"),
        ("a", "\u20ac"),
        "abc",
        5,
    ],
    ids=repr,
)
def test_unsendable_fields_are_errors(check: Any, field: Any) -> None:
    with pytest.raises(BodyError):
        check([field])
