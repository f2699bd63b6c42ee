"""The headers of an HTTP/2 request give the same result with and without gunicorn's parser.

Headers that need no parser pass all checks of h2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import h2.config
import h2.connection
import h2.events
import hpack
import pytest
from gunicorn.http.errors import ParseException
from h2.exceptions import ProtocolError

from tests.server.http2_peer import raw_frame
from tests.support.effort import LONG, effort
from tests.workers.serving import using
from tests.workers.test_parsers import SETTINGS, STRANGER, TRUSTED, configured
from wsgifast.errors import RequestError
from wsgifast.http.stream_headers import Field, plain_headers
from wsgifast.server.receiving import Parser
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.httptools_parser import PlainRequest
from wsgifast.workers.options import parsers

GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]


def request(method: bytes = b"GET", path: bytes = b"/", *fields: Field) -> list[Field]:
    return [(b":method", method), *GET[1:3], (b":path", path), *fields]


BROWSER = request(
    b"GET",
    b"/a%20b/c?d=e&f=%26;[x]\"'",
    (b"user-agent", b"x (y; z) w/1"),
    (b"accept", b"*/*;q=0.8"),
    (b"accept-encoding", b"gzip, br"),
    (b"cookie", b'a=b; c="d"'),
    (b"cookie", b""),
    (b"cookie", b"e=f"),
    (b"x-empty", b""),
    (b"x-latin", b"\xe9\xff"),
    (b"x-tab", b"a\tb"),
    (b"x-forwarded-proto", b"https"),
    (b"sec-ch-ua-mobile", b"?0"),
    (b"priority", b"u=1, i"),
)
PLAIN = {
    "short": request(),
    "browser": BROWSER,
    "body": request(b"POST", b"/?a", (b"content-length", b"5"), (b"content-type", b"b")),
    "no body": request(b"PUT", b"/", (b"content-length", b"000")),
    "host": request(b"GET", b"/", (b"host", b"a")),
    "http": [GET[0], (b":scheme", b"http"), *GET[2:]],
    "other order": [*reversed(GET), (b"x-a", b"1")],
    "digits": request(b"GET", b"/", (b"1", b"2"), (b"-a", b"3")),
}
NOT_PLAIN = {
    "method": request(b"QUERY"),
    "connect": [(b":method", b"CONNECT"), (b":authority", b"a:1")],
    "asterisk": request(b"OPTIONS", b"*"),
    "fragment": request(b"GET", b"/a#b"),
    "slashes": request(b"GET", b"//a"),
    "path beyond ASCII": request(b"GET", "/é".encode()),
    "no host": [*GET[:2], GET[3]],
    "host alone": [*GET[:2], GET[3], (b"host", b"a")],
    "other host": request(b"GET", b"/", (b"host", b"b")),
    "twice": request(b"GET", b"/", (b"x-a", b"1"), (b"x-a", b"2")),
    "underscore": request(b"GET", b"/", (b"x_a", b"1")),
    "token": request(b"GET", b"/", (b"x!a", b"1")),
    "upper case": request(b"GET", b"/", (b"X-A", b"1")),
    "expect": request(b"POST", b"/", (b"expect", b"100-continue"), (b"content-length", b"1")),
    "te": request(b"GET", b"/", (b"te", b"trailers")),
    "connection": request(b"GET", b"/", (b"connection", b"close")),
    "transfer-encoding": request(b"POST", b"/", (b"transfer-encoding", b"chunked")),
    "two schemes": request(
        b"GET", b"/", (b"x-forwarded-proto", b"https"), (b"x-forwarded-ssl", b"on")
    ),
    "length": request(b"POST", b"/", (b"content-length", b"+5")),
    "space": request(b"GET", b"/", (b"x-a", b" 1")),
    "line end": request(b"GET", b"/", (b"x-a", b"1\r\nx-b: 2")),
    "NUL": request(b"GET", b"/", (b"x-a", b"\0")),
    "pseudo last": [*GET[:3], (b"x-a", b"1"), GET[3]],
    "pseudo twice": [*GET, GET[3]],
    "other pseudo": [*GET, (b":protocol", b"websocket")],
    "empty path": request(b"GET", b""),
    "empty cookie": [*BROWSER, (b"cookie", b"")],
    "no name": request(b"GET", b"/", (b"", b"1")),
}


def understood(parser: Parser, received: list[Field], peer: Any) -> Any:
    """Return the result of a parser for headers, or its error."""
    try:
        exchange = parser.parse_stream(received, plain_headers(received), peer, 3)
    except (ParseException, RequestError) as error:
        return type(error), str(error)
    req = exchange.req
    return (
        *(req.method, req.uri, req.path, req.query, req.fragment, req.version, req.scheme),
        *(sorted(req.headers), req.peer_addr, req.remote_addr, req.should_close(), req.req_number),
        *(exchange.length, exchange.unparsed, exchange.fields),
        *(exchange.script_name, exchange.proxy),
        exchange.expects_continue,
    )


class Pair:
    """Return both parsers with the same settings."""

    def __init__(self, peer: Any = TRUSTED, *, checks_host: bool = True, **changed: Any) -> None:
        worker = SimpleNamespace(check_host=checks_host, head_limit_bytes=1 << 14)
        settings = Settings(configured(**changed))
        self.peer = peer
        self.sides: list[Parser] = []
        for name in ("gunicorn", "httptools"):
            with using(name):
                self.sides.append(parsers(worker, settings)(peer))

    def check(self, received: list[Field]) -> None:
        gunicorn, httptools = self.sides
        expected = understood(gunicorn, received, self.peer)
        assert understood(httptools, received, self.peer) == expected, received


def is_accepted_by_h2(received: Sequence[Field]) -> bool:
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    server = h2.connection.H2Connection(config)
    block = hpack.Encoder().encode(received)
    flags = 4 if dict(received)[b":method"] == b"POST" else 5  # END_HEADERS, END_STREAM
    data = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4, 0) + raw_frame(1, 1, block, flags=flags)
    )
    try:
        events = server.receive_data(data)
    except ProtocolError:
        return False
    return any(isinstance(event, h2.events.RequestReceived) for event in events)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_headers_are_taken_from_the_header_list(name: str) -> None:
    pair = Pair()
    pair.check(PLAIN[name])
    headers = plain_headers(PLAIN[name])
    assert headers is not None
    assert isinstance(
        pair.sides[1].parse_stream(PLAIN[name], headers, TRUSTED, 1).req, PlainRequest
    )
    assert is_accepted_by_h2(PLAIN[name])


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_other_headers_are_parsed_by_gunicorn(name: str) -> None:
    pair = Pair()
    pair.check(NOT_PLAIN[name])
    try:
        exchange = pair.sides[1].parse_stream(
            NOT_PLAIN[name], plain_headers(NOT_PLAIN[name]), TRUSTED, 1
        )
    except (ParseException, RequestError):
        return  # gunicorn's parser rejects it
    assert not isinstance(exchange.req, PlainRequest)


@pytest.mark.parametrize("limit", ["limit_request_line", "limit_request_field_size"])
def test_stream_headers_agree_on_limits(limit: str) -> None:
    for size in (30, 0, 8190):
        changed: dict[str, Any] = {limit: size}
        pair = Pair(**changed)
        for length in range(size - 30, size + 5):
            pair.check(request(b"GET", b"/" + b"a" * max(0, length)))
            pair.check(request(b"GET", b"/", (b"x-a", b"b" * max(0, length))))
    for most in (1, 2, 0):
        for count in range(5):
            fields = [(b"x-%d" % number, b"a") for number in range(count)]
            Pair(limit_request_fields=most).check(request(b"GET", b"/", *fields))
    for length in range((1 << 14) - 100, (1 << 14) + 10):
        Pair().check(
            request(b"GET", b"/", *[(b"x-%d" % n, b"a" * (length // 4)) for n in range(4)])
        )


NAMES = [
    b":method",
    b":path",
    b":authority",
    b":scheme",
    b"host",
    b"content-length",
    b"cookie",
    b"x-a",
    b"x-forwarded-proto",
    b"x-forwarded-protocol",
    b"x-forwarded-ssl",
    b"x-b",
    b"x-c",
    b"script-name",
    b"script_name",
    b"expect",
    b"upgrade",
    b"te",
    b"content-type",
    b"x_a",
    b"X-A",
    b"\xdf",
    b"",
]
VALUES = [
    b"a",
    b"",
    b"5",
    b"0",
    b"/",
    b"/?",
    b"/%",
    b"//",
    b"*",
    b"https",
    b"http",
    b"GET",
    b"POST",
    b"b:80",
    b"a b",
    b" a",
    b"a\t",
    b"a\0",
    b"a\n",
    b"\x7f",
    b"\x01",
    b"\xff",
    b"100-continue",
    b"trailers",
    b"on",
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_stream_headers_agree_however_they_are_changed(number: int) -> None:
    chance = random.Random(random.randrange(2**32) if LONG else number)
    pairs = [
        Pair(TRUSTED, **SETTINGS[number]),
        Pair(STRANGER, checks_host=False, **SETTINGS[number]),
    ]
    for _ in range(effort(400)):
        received = list(chance.choice([*PLAIN.values(), *NOT_PLAIN.values()]))
        for _ in range(chance.randrange(3)):
            field = chance.choice(NAMES), chance.choice(VALUES)
            at = chance.randrange(len(received) + 1)
            received[at : at + chance.randrange(2)] = [field]
        for pair in pairs:
            pair.check(received)
        if plain_headers(received) is not None:
            assert is_accepted_by_h2(received), received


def test_trailers_are_read_by_the_rules_of_gunicorn() -> None:
    for parser in Pair().sides:
        req = parser.parse_stream(PLAIN["body"], plain_headers(PLAIN["body"]), TRUSTED, 1).req
        parser.add_trailers(req, [b"x-a: 1", b"x-b:  2 "])
        assert req.trailers == [("X-A", "1"), ("X-B", "2")]
        with pytest.raises(Exception, match="CONTENT-LENGTH"):
            parser.add_trailers(req, [b"content-length: 1"])
