"""What an app gets to read when its response is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast import BodyError
from wsgifast.server.response import InvalidResponseHeader, Response


def _response() -> Any:
    req = SimpleNamespace(method="GET", version=(1, 1), should_close=lambda: False)
    connection: Any = SimpleNamespace(error_socket=None, output=None)
    return Response(req, connection, SimpleNamespace(uses_uwsgi=False, sendfile=None))


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (200, [], r"status 200; give a str such as '200 OK'"),
        ("OK", [], r"status 'OK'; give"),
        ("200 OK\r\nX: y", [], r"status '200 OK\\r\\nX: y'"),
        ("200 OK", [(b"X-A", "b")], r"a header whose name is b'X-A': give a str"),
        ("200 OK", [("X-A", 42)], r"the header X-A with a value of type int: give a str"),
        ("200 OK", [("Connection", b"close")], r"the header Connection with a value of type bytes"),
        ("200 OK", [("Content-Length", "+5")], r"Content-Length to '\+5'; give a number of bytes"),
    ],
)
def test_a_head_that_cannot_be_sent(status: Any, headers: Any, says: str) -> None:
    with pytest.raises(BodyError, match=says):
        _response().start_response(status, headers)


def test_a_value_that_cannot_be_sent_is_not_told() -> None:
    with pytest.raises(InvalidResponseHeader) as caught:
        _response().start_response("200 OK", [("X-Token", "secret\r\n")])
    assert "secret" not in str(caught.value)


def test_calls_in_the_wrong_order() -> None:
    response = _response()
    with pytest.raises(BodyError, match="a body before it called start_response"):
        response.write(b"x")
    with pytest.raises(BodyError, match="without calling start_response"):
        response.write_all([b"x"])
    with pytest.raises(BodyError, match="without calling start_response"):
        response.close()
    response.start_response("200 OK", [])
    with pytest.raises(BodyError, match="start_response twice without exc_info"):
        response.start_response("200 OK", [])


@pytest.mark.parametrize("block", ["text", 1, None])
def test_a_block_that_is_no_bytes(block: Any) -> None:
    response = _response()
    response.start_response("200 OK", [])
    with pytest.raises(BodyError, match=rf"a {type(block).__name__} in it: yield bytes, or wrap"):
        response.write(block)
