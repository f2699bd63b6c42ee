"""The Content-Length of a body that passes through WSGIFast."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wsgi import Closing, Server, new_environ, returning, serve
from wsgifast import BodyError, WSGIFast, middleware
from wsgifast.bodies.body import Body
from wsgifast.errors import BodyTooShort

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def test_length_is_added_where_it_is_known_and_legal() -> None:
    assert serve("é").header("Content-Length") == "2"
    assert serve([b"a", b"b"]).header("Content-Length") == "2"
    assert serve([]).header("Content-Length") == "0"
    assert serve(iter([b"a"])).header("Content-Length") is None
    assert serve([b"a"], status="304 Not Modified").header("Content-Length") is None
    chunked, kind = ("Transfer-Encoding", "chunked"), ("Content-Type", "text/plain")
    for headers in ([chunked], [kind, chunked], [chunked, kind]):
        assert serve([b"a"], *headers).header("Content-Length") is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", ["101 Switching", "204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("make", [list, iter, lambda chunks: io.BytesIO(b"".join(chunks))])
def test_status_without_a_body_has_no_length_either(
    status: str, make: Callable[[list[bytes]], object], method: str
) -> None:
    server = serve(make([b"body"]), ("Content-Length", "4"), status=status, method=method)
    assert server.header("Content-Length") is None
    assert server.finish() == b""
    assert not hasattr(server.result, "__len__"), "wsgiref would make a Content-Length of it"


class Repeated(Body):
    """A kind of body that WSGIFast does not know: the same line over and over."""

    @property
    def length(self) -> int:
        return len(self.content) * 1000

    def __iter__(self) -> Iterator[bytes]:
        return (self.content for _ in range(1000))


@pytest.mark.parametrize("compress", [False, True])
def test_new_kind_of_body_has_length_and_is_closed(
    compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Closing([])
    monkeypatch.setattr(middleware, "classify", lambda body, wrapper: Repeated(b"a line\n", body))
    server = Server(WSGIFast(returning(owner), compress=compress), new_environ())
    assert server.header("Content-Length") == "7000"
    assert server.finish() == b"a line\n" * 1000
    assert owner.closed == 1


def test_wrong_length_of_a_whole_body_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    server = serve(["é", "é"], ("content-length", "2"))
    assert server.header("Content-Length") == "4"
    assert server.finish() == "éé".encode()
    assert "declared a Content-Length of 2 for a body of 4 bytes" in caplog.text


@pytest.mark.parametrize("value", ["+5", "5 6", "-5", "5_0", "\u0665", "", " ", "five", 5, None])
def test_length_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(BodyError, match="Content-Length"):
        serve([b"12345"], ("Content-Length", value))


def test_same_length_twice_is_sent_once() -> None:
    server = serve([b"12345"], ("Content-Length", "5"), ("content-length", "5"))
    assert server.finish() == b"12345"


@given(st.lists(st.binary(max_size=10), max_size=8), st.one_of(st.none(), st.integers(0, 60)))
def test_stream_sends_its_length_and_reports_less(
    chunks: list[bytes], declared: int | None
) -> None:
    whole = b"".join(chunks)
    headers = [] if declared is None else [("Content-Length", str(declared))]
    server = serve(iter(chunks), *headers)
    if declared is not None and declared > len(whole):
        with pytest.raises(BodyTooShort, match=rf"\b{declared - len(whole)} bytes"):
            server.finish()
        assert b"".join(server.sent) == whole
    else:
        assert server.finish() == whole[:declared]


@pytest.mark.parametrize("chunks", [[], [b""], [b"", b""]])
def test_response_to_head_may_be_shorter_than_declared(chunks: list[bytes]) -> None:
    """In response to HEAD, many apps declare the length of GET and return no body."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Length", "10")])
        yield from chunks

    server = Server(WSGIFast(app), new_environ("HEAD"))
    assert server.finish() == b""
    assert server.header("Content-Length") == "10"
