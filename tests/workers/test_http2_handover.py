"""How a connection without TLS changes to HTTP/2, for each of gunicorn's settings."""

from __future__ import annotations

import pytest
from gunicorn.config import Config

from tests.workers.stepped_worker import MakeStepped, echo, hello
from wsgifast.server.endpoint import IDLE, STREAMS
from wsgifast.workers import FastWorker
from wsgifast.workers.options import InvalidWorkerOption

ALLOWED = {"http_protocols": "h2,h1", "forwarded_allow_ips": "*"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A SETTINGS frame without settings (RFC 9113, section 6.5).
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
UPGRADE = (
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 4\r\n\r\n"
)


@pytest.mark.parametrize("mode", ["prior-knowledge", "both"])
@pytest.mark.parametrize("step", [1, 1000])
def test_preface_in_any_packets_begins_http2(
    make_stepped: MakeStepped, mode: str, step: int
) -> None:
    stepped = make_stepped(hello, **ALLOWED, http2_cleartext=mode)
    client = stepped.connect()
    data = PREFACE + SETTINGS
    for start in range(0, len(data), step):
        assert client.is_in(STREAMS) is (0 < len(PREFACE) <= start)
        client.run(data[start : start + step])
    # Our settings, and the acknowledgement of the client's, which came with the preface.
    assert client.receive_all_there_is()[3:4] == b"\4"
    client.close()
    stepped.run()
    assert not stepped.server.registry.connections
    assert not stepped.log.requests


def test_preface_after_request_is_refused(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, **ALLOWED, http2_cleartext="both", keepalive=5)
    client = stepped.begin()
    assert client.read_response().body == b"hello"
    client.run(PREFACE + SETTINGS)
    assert client.read_response().status >= 400


@pytest.mark.parametrize("mode", ["prior-knowledge", "both"])
def test_untrusted_peer_cannot_begin_http2(make_stepped: MakeStepped, mode: str) -> None:
    options = {**ALLOWED, "forwarded_allow_ips": "192.0.2.9"}
    stepped = make_stepped(hello, http2_cleartext=mode, **options)
    client = stepped.begin(PREFACE)
    assert client.read_response().status >= 400
    client = stepped.begin(UPGRADE + b"body")
    assert client.read_response().body == b"hello"


def test_wrong_preface_is_refused_at_first_byte(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, **ALLOWED, http2_cleartext="prior-knowledge")
    client = stepped.begin(b"GE")
    assert client.read_response().status == 400
    assert client.read_to_end() == b""
    # If HTTP/1 is allowed too, these bytes are the beginning of a request.
    stepped = make_stepped(hello, **ALLOWED, http2_cleartext="both")
    client = stepped.begin(b"GE")
    client.run(b"T / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.read_response().body == b"hello"


def test_upgrade_is_answered_in_http_1(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(echo, **ALLOWED, http2_cleartext="both", keepalive=5)
    client = stepped.begin(UPGRADE + b"body")
    response = client.read_response()
    assert (response.status, response.body) == (200, b"body")
    assert client.is_in(IDLE)


def test_upgrade_alone_is_refused_at_the_start() -> None:
    cfg = Config()
    cfg.set("http2_cleartext", "upgrade")
    with pytest.raises(InvalidWorkerOption, match="'prior-knowledge'"):
        FastWorker.check_config(cfg, None)
