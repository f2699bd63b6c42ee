"""Both parsers give the same results and the same errors, for any split of the bytes.

If only one parser accepts some bytes, a request can be smuggled past the other. `make test-peers`
runs gunicorn's own test requests.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from hypothesis import given
from hypothesis import strategies as st

from tests.attacks.requests import SEEDS, cuts, mutated
from tests.support.effort import LONG, effort
from tests.support.programs import ProgramMissing
from tests.workers.serving import using
from tests.workers.stepped_worker import GET, MakeStepped, echo
from wsgifast.errors import RequestError
from wsgifast.hosts import GUNICORN
from wsgifast.server.receiving import COMPLETE, MORE, Parser, Receiver
from wsgifast.server.shared import Shared
from wsgifast.workers import FastWorker
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.httptools_parser import PlainRequest
from wsgifast.workers.options import options, parsers

TRUSTED, STRANGER = ("127.0.0.1", 4711), ("192.0.2.1", 4711)
# gunicorn's own two error pages, which have other texts.
HTTP_PARSERS = ["python", "fast"]
INSTALLED = [name for name in HTTP_PARSERS if name != "fast" or find_spec("gunicorn_h1c")]
# Options that change the parsing of headers.
SETTINGS: list[dict[str, Any]] = [
    {},
    {"header_map": "refuse"},
    {"header_map": "dangerous"},
    {"forwarder_headers": "X_A,SCRIPT_NAME"},
    {"secure_scheme_headers": {"X-A": "a", "X_B": "b", "x-c": "c"}},
    {"casefold_http_method": True, "permit_unconventional_http_method": True},
    {"permit_unconventional_http_version": True},
    {"permit_obsolete_folding": True, "strip_header_spaces": True},
    {"limit_request_line": 30, "limit_request_fields": 3, "limit_request_field_size": 40},
    {"limit_request_line": 0, "limit_request_fields": 0, "limit_request_field_size": 0},
    {"proxy_protocol": "auto"},
    {"http_protocols": "h2,h1", "http2_cleartext": "prior-knowledge"},
    {"http_protocols": "h2,h1", "http2_cleartext": "both"},
]


def configured(http_parser: str | None = None, **changed: Any) -> Config:
    if http_parser not in {None, *INSTALLED}:
        raise ProgramMissing(
            "gunicorn's C parser is not installed: make servers, then make -B .venv/.ready"
        )
    cfg = Config()
    if http_parser is not None:
        cfg.set("http_parser", http_parser)
    for name, value in changed.items():
        cfg.set(name, value)
    return cfg


class Side:
    """Return the requests of one connection, as one of the parsers reads them."""

    def __init__(self, parser: str, cfg: Config, peer: Any, check_host: bool) -> None:
        settings = Settings(cfg)
        worker = SimpleNamespace(check_host=check_host, head_limit_bytes=1 << 16)
        with using(parser):
            self.parser: Parser = parsers(worker, settings)(peer)
        self._options = options(FastWorker, settings)
        self._peer = peer

    def understood(self, packets: Sequence[bytes]) -> list[Any]:
        receiver = Receiver(self.parser, self._peer, Shared(self._options, None))
        found: list[Any] = []
        try:
            for packet in packets:
                step = receiver.feed(packet)
                while step is COMPLETE:
                    found.append(_request(receiver.exchange))
                    receiver.exchange = None
                    step = receiver.feed(b"") if receiver.unparsed else MORE
                found.append(step)
        except (ParseException, RequestError) as error:
            found.append((type(error), str(error)))
        return found


def _request(exchange: Any) -> Any:
    req = exchange.req
    return (
        *(req.method, req.uri, req.path, req.query, req.fragment, req.version, req.scheme),
        *(req.headers, req.peer_addr, req.remote_addr, req.should_close(), len(req.trailers)),
        *(exchange.length, exchange.unparsed, exchange.fields),
        *(exchange.script_name, exchange.proxy),
        *(exchange.expects_continue, exchange.body.read()),
    )


class Pair:
    """Return both parsers with the same settings."""

    def __init__(
        self, cfg: Config | None = None, peer: Any = TRUSTED, *, check_host: bool = False
    ) -> None:
        cfg = cfg or configured()
        self._gunicorn = Side("gunicorn", cfg, peer, check_host)
        self.httptools = Side("httptools", cfg, peer, check_host)

    def check(self, *packets: bytes) -> list[Any]:
        expected = self._gunicorn.understood(packets)
        found = self.httptools.understood(packets)
        assert found == expected, packets
        return found


def request(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


PLAIN = {
    "short": request(b"GET / HTTP/1.1", b"Host: a"),
    "usual": request(
        b"GET /a%20b/c?d=e&f=%26 HTTP/1.1", b"Host: a.test:81", b"User-Agent: x (y; z) w/1",
        b"Accept: */*;q=0.8", b"Connection: keep-alive", b"Cookie: a=b; c=\"d\"", b"X-Empty:",
        b"X-Spaces: \t a  b \t ", b"X-Latin: \xe9\xff", b"X-Forwarded-Proto: https",
    ),
    "old": request(b"GET /old HTTP/1.0"),
    "old, stays": request(b"GET /old HTTP/1.0", b"Connection: keep-alive"),
    "close": request(b"DELETE / HTTP/1.1", b"Host: a", b"Connection: Keep-Alive, close"),
    "body": request(b"POST /?a HTTP/1.1", b"Host: a", b"Content-Length: 5", b"Content-Type: b")
    + b"hello",
    "no body": request(b"PUT / HTTP/1.1", b"Host: a", b"content-length: 000"),
    "scheme": request(b"GET / HTTP/1.1", b"Host: a", b"X-Forwarded-Ssl: off"),
}  # fmt: skip
NOT_PLAIN = [
    request(b"QUERY / HTTP/1.1", b"Host: a"),
    request(b"OPTIONS * HTTP/1.1", b"Host: a"),
    request(b"CONNECT a:80 HTTP/1.1", b"Host: a"),
    request(b"GET http://a/ HTTP/1.1", b"Host: a"),
    request(b"GET //a HTTP/1.1", b"Host: a"),
    request(b"GET /a#b HTTP/1.1", b"Host: a"),
    request(b"GET / HTTP/1.1", b"Host: a", b"X-A: 1", b"x-a: 2"),
    request(b"GET / HTTP/1.1", b"Host: a", b"X_A: 1"),
    request(b"GET / HTTP/1.1", b"Host: a", b"X-Forwarded-Proto: https", b"X-Forwarded-Ssl: on"),
    request(b"GET / HTTP/1.1", b"Host: a", b"Connection: upgrade", b"Upgrade: websocket"),
    request(b"POST / HTTP/1.1", b"Host: a", b"Expect: 100-continue", b"Content-Length: 0"),
    request(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
]


@pytest.mark.parametrize("name", PLAIN)
def test_parsers_agree_on_plain_requests(name: str) -> None:
    pair = Pair(check_host=True)
    for data in (PLAIN[name], PLAIN[name] * 3, PLAIN[name] + PLAIN["body"], PLAIN[name][:-2]):
        for _ in range(2):  # a parser that has been used already
            pair.check(data)
    exchange = pair.httptools.parser.parse(PLAIN[name], TRUSTED, 1)
    assert exchange is not None
    assert isinstance(exchange.req, PlainRequest)


@pytest.mark.parametrize("data", NOT_PLAIN)
def test_requests_that_are_not_plain_go_to_gunicorn(data: bytes) -> None:
    pair = Pair()
    assert isinstance(pair.check(data, PLAIN["short"])[0], tuple)
    exchange = pair.httptools.parser.parse(data, TRUSTED, 1)
    assert exchange is not None
    assert not isinstance(exchange.req, PlainRequest)


def test_parsers_agree_on_any_byte_at_any_place() -> None:
    pair = Pair(configured(INSTALLED[0]))
    whole = PLAIN["body"]
    # Bytes in and between method, target, version, line ends, names and values.
    for place in (0, 1, 4, 6, 13, 15, 17, 20, 22, 24, 41):
        for byte in range(256):
            one = bytes([byte])
            pair.check(whole[:place] + one + whole[place + byte % 2 :])


LINES = [
    b"Content-Length: 5", b"content-length: 5", b"Content-Length: 5, 5", b"Content-Length: +5",
    b"Content-Length: 1_0", b"Content-Length: 0x5", b"Content-Length: 5 ", b"Content-Length:",
    b"Content-Length: \xb2", b"Content-Length: 9999999999999999999", b"Content-Length : 5",
    b"Content_Length: 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding:\x0bchunked", b"TE: trailers",
    b"transfer_encoding: chunked", b" Transfer-Encoding: chunked", b"Host: b", b"hOST: b",
    b"Content-Type: x", b"Expect: 200-ok", b"Upgrade: h2c", b"HTTP2-Settings: AAAA",
    b"Connection: close", b"Connection: ,close,", b"Connection: keep-alive", b"X-A: a",
    b"X-B: b", b"X_A: a", b"X_B: b", b"X-C: c", b"SCRIPT_NAME: /s", b"SCRIPT-NAME: /s",
    b"PATH_INFO: /p", b"X-Forwarded-Proto: https", b"X-Forwarded-Protocol: ssl",
    b"X_Forwarded_Proto: https", b"X-Forwarded-For: 192.0.2.7", b": x", b"x", b"a b: c",
    b"a(: b", b"a!: b", b"\xdf: b", b"\tx: y", b"x:y\tz", b"HTTP-HOST: x", b"HTTP_HOST: x",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_parsers_agree_on_lines_that_change_meaning(number: int) -> None:
    others = [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X-Forwarded-Ssl: on"]
    cfg = configured(**SETTINGS[number])
    body = b"0\r\n\r\nx"
    for peer, start in (
        (TRUSTED, (b"POST /s/x HTTP/1.1", b"Host: a")),
        (STRANGER, (b"POST /s/x HTTP/1.1", b"Host: a")),
        (TRUSTED, (b"POST /s/x HTTP/1.0",)),
    ):
        pair = Pair(cfg, peer)
        for line in LINES:
            pair.check(request(*start, line) + body)
            for other in others:
                pair.check(request(*start, line, other) + body)


@pytest.mark.parametrize("http_parser", HTTP_PARSERS)
def test_parsers_agree_on_limits(http_parser: str | None) -> None:
    for limit in (30, 0, 8190, 9000):
        cfg = configured(http_parser, limit_request_line=limit, limit_request_field_size=limit)
        pair = Pair(cfg)
        for size in (29, 30, 31, 8189, 8190, 8191, 9001):
            pair.check(request(b"GET /" + b"a" * (size - len("GET / HTTP/1.1")) + b" HTTP/1.1"))
            for spaces in (b"", b" ", b"  \t "):
                value = b"a" * (size - len("X:\r\n") - 2 * len(spaces))
                pair.check(request(b"GET / HTTP/1.1", b"X:" + spaces + value + spaces))
    for limit in (2, 0):
        pair = Pair(configured(http_parser, limit_request_fields=limit))
        for count in range(5):
            pair.check(request(b"GET / HTTP/1.1", *[b"X-%d: a" % n for n in range(count)]))


def test_parsers_agree_on_hosts() -> None:
    pair = Pair(check_host=True)
    for host in (b"a", b"a", b"", b"[::1]:80", b"a b", b"a/", b"a:x", b"a", b"a@b", b"\xe9"):
        for line in (b"GET / HTTP/1.1", b"GET / HTTP/1.0"):
            pair.check(request(line, b"Host: " + host))
            pair.check(request(line))
            pair.check(request(line, b"Host: a", b"host: " + host))


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_parsers_agree_on_mutated_requests(number: int) -> None:
    seed = random.randrange(2**32) if LONG else number
    chance = random.Random(seed)
    for http_parser in INSTALLED:
        if not _can(http_parser, SETTINGS[number]):
            continue
        cfg = configured(http_parser, **SETTINGS[number])
        for peer, check_host in ((TRUSTED, True), (STRANGER, False)):
            pair = Pair(cfg, peer, check_host=check_host)
            for data in [*SEEDS, *(mutated(chance) for _ in range(effort(150)))]:
                pair.check(data)
                pair.check(*cuts(data, chance))


def _can(http_parser: str | None, changed: Collection[str]) -> bool:
    """Return whether gunicorn's C parser supports these settings. The other parser supports all."""
    return http_parser != "fast" or not {"permit_obsolete_folding", "strip_header_spaces"} & {
        *changed
    }


_names = st.sampled_from([b"Host", b"Content-Length", b"Connection", b"X-A", b"x-a", b"X_A"])
_text = st.binary(max_size=6) | st.sampled_from(
    [b"a", b" a", b"a ", b"5", b"0", b"close", b"https", b"\r\n b", b"\n", b"\r", b"a\r\nX-B: c"]
)
_lines = st.lists(
    st.builds(
        lambda name, colon, value: name + colon + value,
        _names | _text, st.sampled_from([b": ", b":", b" :", b"", b":\t"]), _text,
    ),
    max_size=5,
)  # fmt: skip
_starts = st.builds(
    lambda method, target, version, space: space.join([method, target, version]),
    st.sampled_from([b"GET", b"POST", b"get", b"M-SEARCH", b"G@T", b""]) | _text,
    st.sampled_from([b"/", b"/a?b", b"//a", b"*", b"a:1", b"http://a/b", b"/a#b", b""]) | _text,
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"RTSP/1.0", b"http/1.1"]),
    st.sampled_from([b" ", b" ", b" ", b"  ", b"\t"]),
)
_pairs = [Pair(configured(http_parser)) for http_parser in INSTALLED]


@given(st.lists(st.tuples(_starts, _lines), min_size=1, max_size=3), st.randoms())
def test_parsers_agree_on_generated_requests(
    requests: list[tuple[bytes, list[bytes]]], chance: random.Random
) -> None:
    data = b"".join(request(start, *lines) for start, lines in requests)
    for pair in _pairs:
        pair.check(data)
        pair.check(*cuts(data, chance))


def test_parser_is_chosen_by_settings_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**changed: Any) -> str:
        settings = Settings(configured(**changed))
        worker = SimpleNamespace(check_host=True, head_limit_bytes=1 << 16)
        return type(parsers(worker, settings)(TRUSTED)).__name__

    monkeypatch.setattr("gunicorn.__version__", GUNICORN.newest)  # a tested version
    assert found() == "HttptoolsParser"
    # A choice between gunicorn's own parsers
    assert found(http_parser="python") == "GunicornParser"
    assert found(protocol="uwsgi") == "GunicornParser"
    monkeypatch.setitem(sys.modules, "httptools", None)  # as if it were not installed
    assert found() == "GunicornParser"


# In a worker: trusted headers and their senders, and uwsgi


PROXY_HEADERS = {
    "text": b"PROXY TCP4 192.0.2.77 192.0.2.2 4712 80\r\n",
    "binary": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x4d\xc0\0\x02\x02\x12\x68\0\x50",
}


@pytest.mark.parametrize("header", PROXY_HEADERS.values(), ids=[*PROXY_HEADERS])
def test_proxy_header_applies_to_its_connection_only(
    make_stepped: MakeStepped, header: bytes
) -> None:
    addresses: list[tuple[str, str]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        addresses.append((environ["REMOTE_ADDR"], environ["REMOTE_PORT"]))
        return echo(environ, start_response)

    stepped = make_stepped(app, proxy_protocol="auto", proxy_allow_ips="*")
    proxied, plain = stepped.connect(), stepped.connect()
    for byte in header:
        proxied.run(bytes([byte]))
    for client in (proxied, plain, proxied):
        client.run_request()
        assert client.read_response().status == 200
    assert addresses == [("192.0.2.77", "4712"), ("192.0.2.1", "4711"), ("192.0.2.77", "4712")]
    # A proxy that sends its own request, for instance as a health check, names no client.
    local = stepped.connect()
    local.send(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")
    local.run_request()
    assert local.read_response().status == 200
    assert addresses[3:] == [("192.0.2.1", "4711")]
    # In the middle of a connection it is not a PROXY header, whoever sends it.
    proxied.run(b"PROXY TCP4 192.0.2.88 192.0.2.2 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert proxied.read_response().status == 400
    assert len(addresses) == 4


def test_proxy_header_of_other_peer_is_refused(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(echo, proxy_protocol="auto", proxy_allow_ips="192.0.2.9")
    client = stepped.begin(PROXY_HEADERS["text"] + GET)
    assert client.read_response().status == 403
    assert client.read_to_end() == b""


@pytest.mark.parametrize(("allowed", "scheme"), [("192.0.2.1", "https"), ("192.0.2.3", "http")])
def test_forwarded_headers_need_allowed_peers(
    make_stepped: MakeStepped, allowed: str, scheme: str
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        said = environ["wsgi.url_scheme"].encode()
        start_response("200 OK", [("Content-Length", str(len(said)))])
        return [said]

    stepped = make_stepped(app, forwarded_allow_ips=allowed)
    client = stepped.connect()
    client.run_request(headers=[("X-Forwarded-Proto", "https")])
    assert client.read_response().body == scheme.encode()


def uwsgi(body: bytes = b"", **variables: str) -> bytes:
    """Return a request as nginx's uwsgi_pass sends it."""
    variables.setdefault("REQUEST_METHOD", "POST" if body else "GET")
    variables["CONTENT_LENGTH"] = str(len(body)) if body else ""
    block = b""
    for name, value in variables.items():
        for text in (name, value):
            block += len(text).to_bytes(2, "little") + text.encode()
    return b"\0" + len(block).to_bytes(2, "little") + b"\0" + block + body


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_uwsgi_requests_in_any_packets_are_answered(make_stepped: MakeStepped, step: int) -> None:
    paths: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        paths.append(environ["PATH_INFO"])
        data = environ["wsgi.input"].read()
        start_response("200 OK", [] if not data else [("Content-Length", str(len(data)))])
        return [data or b"until the end"]

    stepped = make_stepped(app, protocol="uwsgi", uwsgi_allow_ips="*", keepalive=5)
    client = stepped.connect()
    data = uwsgi(b"body", PATH_INFO="/one") + uwsgi(PATH_INFO="/two")
    for start in range(0, len(data), step):
        client.run(data[start : start + step])
    assert client.read_response().body == b"body"
    # No server behind uwsgi_pass supports chunked coding.
    response = client.read_response()
    assert response.header("Transfer-Encoding") is None
    assert response.body == b"until the end"
    assert paths == ["/one", "/two"]
