"""What gunicorn's parsers make of a connection: of whom they believe what, and uwsgi."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.workers.bench import MakeBench, echo
from tests.workers.serving import has_setting


def test_proxy_header_applies_to_its_connection_only(make_bench: MakeBench) -> None:
    addresses: list[tuple[str, str]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        addresses.append((environ["REMOTE_ADDR"], environ["REMOTE_PORT"]))
        return echo(environ, start_response)

    bench = make_bench(app, proxy_protocol="auto", proxy_allow_ips="*")
    proxied, plain = bench.connect(), bench.connect()
    header = b"PROXY TCP4 192.0.2.77 192.0.2.2 4712 80\r\n"
    proxied.send(header)
    for client in (proxied, plain, proxied):
        client.send_request()
        bench.run()
        assert client.read_response().status == 200
    assert addresses == [("192.0.2.77", "4712"), ("192.0.2.1", "4711"), ("192.0.2.77", "4712")]
    # A proxy that asks for itself, as to see whether the worker is alive, names no client.
    local = bench.connect()
    local.send(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")
    local.send_request()
    bench.run()
    assert local.read_response().status == 200
    assert addresses[3:] == [("192.0.2.1", "4711")]
    # On a connection that is under way it is no PROXY header, whoever slips it in.
    proxied.send(b"PROXY TCP4 192.0.2.88 192.0.2.2 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    bench.run()
    assert proxied.read_response().status == 400
    assert len(addresses) == 4


@pytest.mark.parametrize(("allowed", "scheme"), [("192.0.2.1", "https"), ("192.0.2.3", "http")])
def test_forwarded_headers_are_trusted_from_allowed_peers_only(
    make_bench: MakeBench, allowed: str, scheme: str
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        said = environ["wsgi.url_scheme"].encode()
        start_response("200 OK", [("Content-Length", str(len(said)))])
        return [said]

    bench = make_bench(app, forwarded_allow_ips=allowed)
    client = bench.connect()
    client.send_request(headers=[("X-Forwarded-Proto", "https")])
    bench.run()
    assert client.read_response().body == scheme.encode()


def uwsgi(body: bytes = b"", **variables: str) -> bytes:
    """A request as nginx's uwsgi_pass sends it."""
    variables.setdefault("REQUEST_METHOD", "POST" if body else "GET")
    variables["CONTENT_LENGTH"] = str(len(body)) if body else ""
    block = b""
    for name, value in variables.items():
        for text in (name, value):
            block += len(text).to_bytes(2, "little") + text.encode()
    return b"\0" + len(block).to_bytes(2, "little") + b"\0" + block + body


@pytest.mark.skipif(not has_setting("protocol"), reason="this gunicorn speaks HTTP only")
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_uwsgi_requests_in_any_packets_are_answered(make_bench: MakeBench, step: int) -> None:
    paths: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        paths.append(environ["PATH_INFO"])
        data = environ["wsgi.input"].read()
        start_response("200 OK", [] if not data else [("Content-Length", str(len(data)))])
        return [data or b"until the end"]

    bench = make_bench(app, protocol="uwsgi", uwsgi_allow_ips="*", keepalive=5)
    client = bench.connect()
    data = uwsgi(b"body", PATH_INFO="/one") + uwsgi(PATH_INFO="/two")
    for start in range(0, len(data), step):
        client.send(data[start : start + step])
        bench.run()
    assert client.read_response().body == b"body"
    # Nobody behind uwsgi_pass knows of chunks.
    response = client.read_response()
    assert response.header("Transfer-Encoding") is None
    assert response.body == b"until the end"
    assert paths == ["/one", "/two"]
