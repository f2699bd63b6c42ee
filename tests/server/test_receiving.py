"""The receiver parses requests in any pieces. It returns the next step and the bytes to store."""

from __future__ import annotations

import dataclasses
import errno
from typing import Any

import pytest
from gunicorn.config import Config
from hypothesis import given
from hypothesis import strategies as st

from tests.server.connections import CHUNKED, EXPECTS, HEAD, KNOWN, STREAMED
from tests.support.calls import raising
from tests.support.process import open_descriptors
from tests.workers.serving import split_options
from wsgifast.errors import BodyTooLarge, RequestError
from wsgifast.server.receiving import COMPLETE, MORE, WANTS_CONTINUE, Receiver
from wsgifast.server.shared import Shared
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.options import options, parsers
from wsgifast.workers.worker import FastWorker

PEER = ("192.0.2.1", 4711)
PYTHON_PARSER: dict[str, Any] = {"http_parser": "python"}


def receivers(*, attributes: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Make receivers like FastWorker, with gunicorn's parser."""
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    own, fixed = split_options(attributes or {})
    worker = type("Configured", (FastWorker,), own)
    chosen = dataclasses.replace(options(worker, Settings(cfg)), **fixed)
    parser = parsers(worker, Settings(cfg))(PEER)
    shared = Shared(chosen, None)
    return lambda: Receiver(parser, PEER, shared)


def receiver(**more: Any) -> Any:
    return receivers(**more)()


def next_request(receiver: Receiver) -> tuple[str, bytes]:
    """Return the target and the body of a complete request, and begin the next one."""
    exchange = receiver.exchange
    assert exchange is not None
    receiver.exchange = None
    with exchange.body as body:
        return exchange.req.uri, body.read()


STREAM = (
    b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n"
    b"POST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"
    b"POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nX-Trailer: 1\r\n\r\n"
    b"GET /four HTTP/1.1\r\nHost: a\r\n\r\n"
)


MAKE = receivers(**PYTHON_PARSER)


@given(st.lists(st.integers(1, 60), max_size=200))
def test_requests_in_any_pieces_are_the_same(sizes: list[int]) -> None:
    taking = MAKE()
    data, requests = STREAM, []
    while data or taking.has_more_to_do():
        piece = b""
        if not taking.has_more_to_do():
            size = sizes.pop() if sizes else len(data)
            piece, data = data[:size], data[size:]
        step = taking.feed(piece)
        assert step in (MORE, COMPLETE)
        if step is COMPLETE:
            requests.append(next_request(taking))
    assert requests == [("/one", b""), ("/two", b"0123456789"), ("/three", b"abcd"), ("/four", b"")]
    assert taking.unparsed == b""


def test_headers_in_pieces_are_parsed_a_few_times_only() -> None:
    taking = receiver()
    sizes: list[int] = []
    parser = taking.parser

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(parser, name)

        def parse(self, data: bytes, peer: Any, number: int) -> Any:
            sizes.append(len(data))
            return parser.parse(data, peer, number)

    taking.parser = Counting()
    headers = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: %b\r\n" % (b"a" * 93) * 90 + b"\r\n"
    for _ in range(2):  # nor those of the next request
        steps = [taking.feed(headers[start : start + 50]) for start in range(0, len(headers), 50)]
        assert steps == [MORE] * (len(steps) - 1) + [COMPLETE]
    assert len(sizes) == 6
    assert sizes[:3] == sizes[3:]


def test_headers_over_every_limit_are_refused_early() -> None:
    limits: dict[str, Any] = {"limit_request_fields": 10, "limit_request_field_size": 1000}
    taking = receiver(**limits, **PYTHON_PARSER)
    taking.feed(b"GET / HTTP/1.1\r\nHost: a\r\n")
    for _ in range(17):
        assert taking.feed(b"X: " + 1000 * b"a") is MORE
    with pytest.raises(RequestError) as raised:
        taking.feed(b"X: " + 2000 * b"a")
    assert raised.value.status == 431


def test_line_ending_with_lf_alone_is_refused_at_once() -> None:
    with pytest.raises(Exception, match="Invalid"):
        receiver(**PYTHON_PARSER).feed(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\n")


def test_full_disk_fails_a_body_beyond_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tempfile.TemporaryFile", raising(OSError, errno.ENOSPC, "No space left on device")
    )
    taking = receiver(attributes={"body_memory_bytes": 10})
    assert taking.feed(KNOWN + b"0123456789") is COMPLETE  # needs no disk
    taking = receiver(attributes={"body_memory_bytes": 10})
    with pytest.raises(OSError, match="No space left"):
        taking.feed(CHUNKED + b"b\r\n0123456789a\r\n")
    taking.close()


def test_only_a_waiting_client_gets_100_continue() -> None:
    for framing, body in ((b"Content-Length: 4\r\n", b"body"), (b"", b"")):
        headers = HEAD + framing + b"Expect: 100-continue\r\n\r\n"
        assert receiver().feed(headers + body) is COMPLETE
    taking = receiver()
    assert taking.feed(EXPECTS + b"b") is WANTS_CONTINUE
    assert taking.feed(b"o") is MORE  # once
    assert taking.feed(b"dy") is COMPLETE
    assert receiver().feed(KNOWN + b"b") is MORE


@pytest.mark.parametrize("in_memory", [0, 1_000_000])
def test_body_over_the_limit_leaves_no_temporary_file(in_memory: int) -> None:
    limits = {"body_limit_bytes": 100, "body_memory_bytes": in_memory}
    with pytest.raises(BodyTooLarge):  # at its headers
        receiver(attributes=limits).feed(HEAD + b"Content-Length: 101\r\n\r\n")
    assert receiver(attributes=limits).feed(HEAD + b"Content-Length: 100\r\n\r\n") is MORE
    taking = receiver(attributes=limits)
    descriptors = open_descriptors()
    taking.feed(CHUNKED + b"50\r\n" + bytes(80))
    with pytest.raises(BodyTooLarge):
        taking.feed(b"\r\n50\r\n")
    taking.close()
    assert open_descriptors() <= descriptors  # its temporary file is closed


def test_body_that_app_reads_is_left_to_it() -> None:
    for headers in (KNOWN, CHUNKED):
        taking = receiver(attributes=STREAMED)
        assert taking.feed(headers + b"beginning") is COMPLETE
        assert taking.exchange.body is None
        assert taking.exchange.unparsed == b"beginning"
        assert taking.unparsed == b""


def test_deadline_of_a_body_grows_with_its_bytes() -> None:
    taking = receiver(attributes={"body_timeout_s": 30.0})
    taking.feed(HEAD)
    taking.feed(b"Content-Length: 100000\r\n\r\n")
    began = taking.exchange.started
    assert taking.deadline(began) == began + 30.0
    taking.feed(bytes(5000))
    # For the next byte, 500 bytes earn one second. Every body has some time in addition.
    assert taking.deadline(began + 5.0) == began + 35.0
    assert taking.deadline(began + 30.0) == began + 40.0
