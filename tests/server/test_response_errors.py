"""What an app gets to read when its response is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast import BodyError
from wsgifast.server.response import Response


def _response() -> Any:
    req = SimpleNamespace(method="GET", version=(1, 1), should_close=lambda: False)
    output: Any = None
    return Response(req, output, SimpleNamespace(server_name="server", sends_chunks=True))


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (200, [], r"status is 200; give a str such as '200 OK'"),
        ("103 Early Hints", [], r"give a final status"),
        ("200 OK", [("X-A", 42)], r"X-A has a value of type int; give a str"),
        ("200 OK", [("Content-Length", "1"), ("Content-Length", "2")], r"set to 1 and to '2'"),
    ],
)
def test_a_head_that_cannot_be_sent(status: Any, headers: Any, says: str) -> None:
    with pytest.raises(BodyError, match=says):
        _response().start_response(status, headers)


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
