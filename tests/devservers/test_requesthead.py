"""Heads that two recipients could read differently are refused."""

from __future__ import annotations

import io
from http import HTTPStatus
from http.client import parse_headers
from typing import Any, cast

import pytest

from wsgifast.devservers.requesthead import BodyFraming, CheckedLines, check_head
from wsgifast.errors import RequestError


def checked(head: bytes, line: str = "POST / HTTP/1.1") -> BodyFraming:
    lines = cast(Any, CheckedLines(io.BytesIO(head + b"\r\n")))
    return check_head(line, parse_headers(lines))


@pytest.mark.parametrize(
    ("head", "framing"),
    [
        (b"Host: a\r\n", BodyFraming(0, False)),
        (b"Host: a\r\nContent-Length: 12\r\n", BodyFraming(12, False)),
        (b"Host: a\r\nTransfer-Encoding: Chunked\r\n", BodyFraming(None, False)),
        (b"Host: a\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n", BodyFraming(1, True)),
        (b"Host: a\r\nExpect: 100-continue\r\n", BodyFraming(0, False)),
        (b"Host: a\nContent-Length: 7\n", BodyFraming(7, False)),
        # To a parser of mail these two announce parts that a request's head does not have.
        (
            b"Host: a\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 7\r\n",
            BodyFraming(7, False),
        ),
        (b"Host: a\r\nContent-Type: message/http\r\nContent-Length: 7\r\n", BodyFraming(7, False)),
    ],
)
def test_the_end_of_the_body_is_told_by_the_head(head: bytes, framing: BodyFraming) -> None:
    assert checked(head) == framing


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Host: a\r\nHost: b\r\n",
        b"Host: a/b\r\n",
        b"Host: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
        b"Host: a\r\nContent-Length: 1, 1\r\n",
        b"Host: a\r\nContent-Length: +1\r\n",
        b"Host: a\r\nContent-Length: 1_0\r\n",
        b"Host: a\r\nContent-Length: -1\r\n",
        b"Host: a\r\nContent-Length:\r\n",
        b"Host: a\r\nContent-Length: \xb2\r\n",
        b"Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length : 1\r\n",
        b"Host: a\r\nno header at all\r\nContent-Length: 1\r\n",
        b"Host: a\r\n: nameless\r\n",
        b"From here\r\nHost: a\r\n",
        b"Host: a\r\nFrom here\r\n",
        b"Host: a\r\nX: 1\rContent-Length: 5\r\n",
        b"Host: a\r\nX: 1\0\r\n",
        b"Host: a\r\nX: 1\r\n folded\r\n",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        checked(head)
    assert caught.value.status is HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("codings", [b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity"])
def test_only_chunked_is_decoded(codings: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        checked(b"Host: a\r\nTransfer-Encoding: " + codings + b"\r\n")
    assert caught.value.status is HTTPStatus.NOT_IMPLEMENTED


def test_an_old_client_sends_no_chunks_and_expects_nothing() -> None:
    with pytest.raises(RequestError):
        checked(b"Transfer-Encoding: chunked\r\n", "POST / HTTP/1.0")
    head = b"Content-Length: 1\r\nExpect: 100-continue\r\n"
    assert checked(head, "POST / HTTP/1.0") == BodyFraming(1, False)


def test_another_expectation_fails() -> None:
    with pytest.raises(RequestError) as caught:
        checked(b"Host: a\r\nExpect: tea\r\n")
    assert caught.value.status is HTTPStatus.EXPECTATION_FAILED


@pytest.mark.parametrize(
    "line", ["GET /", "GET  / HTTP/1.1", "GET /\x0bHTTP/1.1", "G(T / HTTP/1.1", "GET / HTTP/1.11"]
)
def test_a_request_line_has_three_parts(line: str) -> None:
    with pytest.raises(RequestError):
        checked(b"Host: a\r\n", line)


def test_a_head_that_is_cut_off_is_none() -> None:
    lines = CheckedLines(io.BytesIO(b"Host: a\r\nContent-Le"))
    assert lines.readline() == b"Host: a\r\n"
    with pytest.raises(EOFError):
        lines.readline()


def test_names_with_an_underscore_cannot_pose_as_others() -> None:
    lines = cast(Any, CheckedLines(io.BytesIO(b"Host: a\r\nX_Real_Ip: 1\r\nX-A: 2\r\n\r\n")))
    headers = parse_headers(lines)
    check_head("GET / HTTP/1.1", headers)
    assert headers.keys() == ["Host", "X-A"]
