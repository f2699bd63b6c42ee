"""The environ of FastWorker equals gunicorn's own, key by key, for any request and connection."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.errors import ConfigurationProblem, ParseException
from gunicorn.http.message import Request

from tests.workers.serving import using
from wsgifast.errors import MalformedRequest
from wsgifast.http import request_headers
from wsgifast.server.receiving import Exchange
from wsgifast.workers import gunicorn_support, httptools_parser
from wsgifast.workers.environ import EnvironFactory
from wsgifast.workers.gunicorn_parser import Unreader
from wsgifast.workers.gunicorn_support import Settings, worker_environ
from wsgifast.workers.options import parsers

PEER = ("127.0.0.1", 4711)
SERVER = ("192.0.2.2", 8080)
# Keys whose values differ in each environ.
OWN = {
    "gunicorn.socket", "wsgi.errors", "wsgi.input", "wsgi.early_hints", "wsgi.file_wrapper",
}  # fmt: skip

HEADERS = {
    "plain": b"GET /a/b?c=d HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "1.0, no host": b"GET / HTTP/1.0\r\n\r\n",
    "escapes": b"GET /a%20b%2Fc/%C3%BC%FF HTTP/1.1\r\nHost: a.test:81\r\n\r\n",
    "absolute": b"GET http://b.test/a HTTP/1.1\r\nHost: b.test\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "types": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/x\r\nContent-Length: 2\r\n\r\nok",
    "repeated": b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-B: 2\r\nX-A: 3\r\nx-a: 4\r\n\r\n",
    "repeated type": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n",
    "cookies": b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1\r\nCookie: b=2\r\n\r\n",
    "scheme": b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n",
    "script name": b"GET /app/x HTTP/1.1\r\nHost: a\r\nSCRIPT_NAME: /app\r\n\r\n",
    "script name of its own": b"GET /other/x HTTP/1.1\r\nHost: a\r\nSCRIPT_NAME: /other\r\n\r\n",
    "inside": b"GET /inside/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "just inside": b"GET /inside HTTP/1.1\r\nHost: a\r\n\r\n",
    "outside": b"GET /outside HTTP/1.1\r\nHost: a\r\n\r\n",
    "latin": b"GET /\xc3\xbc HTTP/1.1\r\nHost: a\r\nX: \xfc\r\n\r\n",
}
SOCKETS: list[tuple[object, object]] = [
    (PEER, SERVER), ("", "/run/socket"), (b"", "/run/socket"), ("peer", SERVER),
    (b"peer", "/run/socket"), (PEER, "/run/socket"), (("::1", 4711, 0, 0), ("::1", 80, 0, 0)),
]  # fmt: skip


def settings(**options: Any) -> Any:
    cfg = Config()
    for name, value in options.items():
        cfg.set(name, value)
    return Settings(cfg)


def parse(cfg: Any, headers: bytes, peer: object) -> Any:
    return Request(cfg, Unreader(headers), peer, 1)


def made_by_gunicorn(cfg: Any, headers: bytes, peer: object, server: object) -> Any:
    request = parse(cfg, headers, peer)
    sock: Any = io.BytesIO()
    return wsgi.create(request, sock, peer, server, cfg)[1]


def exchanged(cfg: Any, headers: bytes, peer: object, parser: str = "gunicorn") -> Exchange:
    worker = SimpleNamespace(check_host=False, head_limit_bytes=1 << 16)
    with using(parser):
        exchange = parsers(worker, cfg)(peer).parse(headers, peer, 1)
    assert exchange is not None
    return exchange


def connected(sock: object, peer: object, address: object) -> Any:
    return SimpleNamespace(app_socket=sock, peer=peer, address=address, proxy=None)


def made(
    cfg: Any, headers: bytes, peer: object, server: object, parser: str = "gunicorn"
) -> dict[str, Any]:
    factory = EnvironFactory(worker_environ(cfg))
    # The environ is made twice, like on one connection. The caches of the first time change
    # nothing.
    connection = connected("a socket", peer, server)
    first = factory.make(exchanged(cfg, headers, peer, parser), connection)
    assert factory.make(exchanged(cfg, headers, peer, parser), connection) == first
    return first


@pytest.mark.parametrize("parser", ["gunicorn", "httptools"])
@pytest.mark.parametrize("script_name", ["", "/inside"])
def test_environ_equals_gunicorns(
    script_name: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_NAME", script_name)
    for options in ({}, {"workers": 2}, {"header_map": "dangerous"}):
        cfg = settings(threads=4, **options)
        for headers, (peer, server) in itertools.product(HEADERS, SOCKETS):
            try:
                expected = made_by_gunicorn(cfg, HEADERS[headers], peer, server)
            except ConfigurationProblem:
                with pytest.raises(MalformedRequest):
                    made(cfg, HEADERS[headers], peer, server, parser)
                continue
            except ParseException:  # the parser is the same
                continue
            found = made(cfg, HEADERS[headers], peer, server, parser)
            for key in OWN:
                expected.pop(key, None)
                found.pop(key, None)
            expected["wsgi.multithread"] = True  # gunicorn checks its worker class
            if isinstance(server, str) and "HTTP_HOST" not in expected:
                expected["SERVER_NAME"] = ""  # on a Unix socket it is the path
            assert found == expected, (headers, options)


def test_unconventional_version_is_reported() -> None:
    cfg = settings(permit_unconventional_http_version=True)
    headers = b"GET / HTTP/1.7\r\nHost: a\r\n\r\n"
    assert made(cfg, headers, PEER, SERVER)["SERVER_PROTOCOL"] == "HTTP/1.7"


@pytest.mark.parametrize("parser", ["gunicorn", "httptools"])
def test_remembered_header_names_are_limited(parser: str) -> None:
    """The client chooses these headers."""
    cfg = settings()
    for start in range(0, 2000, 50):
        fields = b"".join(b"X-%d: 1\r\n" % (start + number) for number in range(50))
        headers = b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n"
        assert made(cfg, headers, PEER, SERVER, parser)[f"HTTP_X_{start + 49}"] == "1"
    keys = request_headers._keys if parser == "gunicorn" else httptools_parser._keys
    assert 100 < len(keys) < 1000


def test_environs_share_nothing() -> None:
    cfg = settings()
    factory = EnvironFactory(worker_environ(cfg))
    exchange = exchanged(cfg, HEADERS["plain"], PEER)
    exchange.req.body = "body"
    exchange.proxy = {"PROXY_ADDR": "192.0.2.4"}
    first = factory.make(exchange, connected("first", PEER, SERVER))
    assert (first["gunicorn.socket"], first["REMOTE_ADDR"]) == ("first", PEER[0])
    assert (first["wsgi.input"], first["PROXY_ADDR"]) == ("body", "192.0.2.4")
    first["what the app adds"] = True
    second = factory.make(exchanged(cfg, HEADERS["plain"], PEER), connected("second", "", SERVER))
    assert (second["gunicorn.socket"], second["REMOTE_ADDR"]) == ("second", "")
    assert second["wsgi.input"] is None
    assert second.keys().isdisjoint({"REMOTE_PORT", "PROXY_ADDR", "what the app adds"})


def test_wsgi_errors_are_written_to_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []

    class Wrapper:
        def __init__(self, cfg: Any) -> None:
            assert cfg is settings_

        def write(self, text: str) -> None:
            written.append(text)

    monkeypatch.setattr(gunicorn_support, "WSGIErrorsWrapper", Wrapper)
    settings_ = settings()
    factory = EnvironFactory(worker_environ(settings_))
    exchange = exchanged(settings(), HEADERS["plain"], PEER)
    errors = factory.make(exchange, connected("", PEER, SERVER))["wsgi.errors"]
    errors.write("one\n")
    errors.writelines(iter(["two\n", "three\n"]))
    errors.flush()
    assert written == ["one\n", "two\n", "three\n"]


def test_peer_is_trusted_as_by_gunicorn() -> None:
    for allowed, peer, trusted in (
        ("127.0.0.1", PEER, True),
        ("127.0.0.1", ("192.0.2.1", 1), False),
        ("*", ("192.0.2.1", 1), True),
        ("192.0.2.0/24", ("192.0.2.1", 1), True),
        ("", PEER, False),
        ("", "", True),
        ("", b"", True),
    ):
        cfg = settings(forwarded_allow_ips=allowed)
        assert cfg.trusts(peer) is trusted, (allowed, peer)


@pytest.mark.parametrize(
    ("host", "name", "port"),
    [("[::1]", "[::1]", "80"), ("[::1]:81", "[::1]", "81"), ("a:81", "a", "81"), ("a", "a", "80")],
)
def test_host_names_the_server_on_a_unix_socket(host: str, name: str, port: str) -> None:
    headers = b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode()
    environ = made(settings(), headers, "", "/run/socket")
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == (name, port)
