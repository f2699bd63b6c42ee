"""The ways of a connection to gunicorn's HTTP/2 code, which is a stand-in here, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.workers.gthread import ThreadWorker

from tests.workers.bench import Bench, make_bench
from tests.workers.serving import has_setting
from wsgifast.server.streamed_body import receive_blocking
from wsgifast.workers import http2

__all__ = ["make_bench"]

pytestmark = pytest.mark.skipif(
    not has_setting("http2_cleartext"), reason="came with gunicorn 26.2"
)

MakeBench = Callable[..., Bench]

ALLOWED = {"http_protocols": "h2,h1", "forwarded_allow_ips": "*"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A SETTINGS frame without settings (RFC 9113 section 6.5).
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
UPGRADE = (
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 4\r\n\r\n"
)


def hello(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


class Served:
    """What has come to gunicorn's code.

    :param error: raised there.
    """

    def __init__(self, bench: Bench, error: Exception | None = None) -> None:
        self.connections: list[Any] = []
        self.upgrades: list[tuple[bytes, bytes, bytes]] = []
        self._error = error
        bench.worker.handle_http2 = self._serve
        bench.worker.handle_h2c_upgrade = self._upgrade

    def _serve(self, conn: Any) -> None:
        assert conn.is_http2
        assert conn.sock.getblocking()
        self.connections.append(conn)
        if self._error is not None:
            raise self._error

    def _upgrade(self, conn: Any, req: Any, settings: bytes) -> None:
        assert conn.sock.getblocking()
        body = req.body.read()
        self.upgrades.append((settings, body, conn.parser.unreader.take_buffered()))
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("mode", ["prior-knowledge", "both"])
@pytest.mark.parametrize("step", [1, 1000])
def test_prior_knowledge(make_bench: MakeBench, mode: str, step: int) -> None:
    bench = make_bench(hello, **ALLOWED, http2_cleartext=mode)
    served = Served(bench)
    client = bench.connect()
    data = PREFACE + SETTINGS
    for start in range(0, len(data), step):
        assert not served.connections or start >= len(PREFACE)
        client.send(data[start : start + step])
        bench.run()
    assert len(served.connections) == 1
    # What came with the preface has been taken note of: our settings, and the answer to theirs.
    assert client.receive_all_there_is()[3:4] == b"\4"
    client.close()
    bench.run()
    assert not bench.server.registry.connections
    assert not bench.log.requests


def test_only_a_connection_s_first_bytes_are_its_preface(make_bench: MakeBench) -> None:
    bench = make_bench(hello, **ALLOWED, http2_cleartext="both", keepalive=5)
    served = Served(bench)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert client.read_response().body == b"hello"
    client.send(PREFACE + SETTINGS)
    bench.run()
    assert not served.connections
    assert client.read_response().status >= 400


@pytest.mark.parametrize("mode", ["prior-knowledge", "upgrade", "both"])
def test_peers_that_are_not_trusted_speak_http_1(make_bench: MakeBench, mode: str) -> None:
    options = {**ALLOWED, "forwarded_allow_ips": "192.0.2.9"}
    bench = make_bench(hello, http2_cleartext=mode, **options)
    served = Served(bench)
    client = bench.connect()
    client.send(PREFACE)
    bench.run()
    assert client.read_response().status >= 400
    client = bench.connect()
    client.send(UPGRADE + b"body")
    bench.run()
    assert client.read_response().body == b"hello"
    assert not served.connections
    assert not served.upgrades


def test_what_is_no_preface_is_refused_at_once(make_bench: MakeBench) -> None:
    bench = make_bench(hello, **ALLOWED, http2_cleartext="prior-knowledge")
    client = bench.connect()
    client.send(b"GE")
    bench.run()
    assert client.read_response().status == 400
    assert client.read_to_end() == b""
    # Where an upgrade may come, it is the beginning of a request.
    bench = make_bench(hello, **ALLOWED, http2_cleartext="both")
    client = bench.connect()
    client.send(b"GE")
    bench.run()
    client.send(b"T / HTTP/1.1\r\nHost: a\r\n\r\n")
    bench.run()
    assert client.read_response().body == b"hello"


@pytest.mark.parametrize("mode", ["upgrade", "both"])
@pytest.mark.parametrize("early", [0, 2, 4])
def test_upgrade(make_bench: MakeBench, mode: str, early: int) -> None:
    """gunicorn's code reads the body, and finds what came behind it."""
    bench = make_bench(hello, **ALLOWED, http2_cleartext=mode)
    served = Served(bench)
    client = bench.connect()
    behind = PREFACE if early == 4 else b""
    connection = client.near

    def late(*args: Any) -> bytes:
        client.send(b"body"[early:])
        return receive_blocking(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http2, "receive_blocking", late)
        client.send(UPGRADE + b"body"[:early] + behind)
        bench.run()
    ((settings, body, rest),) = served.upgrades
    assert settings == b"AAMAAABkAARAAAAAAAIAAAAA"
    assert body == b"body"
    assert rest == behind
    assert bench.worker.nr == 0  # it was not for the app as well
    assert connection.hijacked


@pytest.mark.parametrize("way", ["prior-knowledge", "upgrade"])
@pytest.mark.parametrize(
    ("error", "said"),
    [(BrokenPipeError("gone"), "connection lost: gone"), (ValueError("ours"), "connection error")],
)
def test_an_error_there_ends_the_connection_only(
    make_bench: MakeBench, way: str, error: Exception, said: str
) -> None:
    bench = make_bench(hello, **ALLOWED, http2_cleartext=way)
    Served(bench, error)
    client = bench.connect()
    client.send(PREFACE if way == "prior-knowledge" else UPGRADE + b"body")
    bench.run()
    client.receive_all_there_is()
    client.close()
    bench.run()
    assert not bench.server.registry.connections
    assert bench.log.says(f"HTTP/2 {said}")
    assert not bench.log.says("Error in a connection")


@pytest.mark.parametrize("error", [ValueError, SystemExit, None])
def test_streams_that_came_with_the_preface(
    make_bench: MakeBench, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an app has raised is not for its client."""
    bench = make_bench(hello, **ALLOWED, http2_cleartext="prior-knowledge")
    served = Served(bench)
    calls: list[tuple[Any, ...]] = []

    class Parser:
        """gunicorn's, to which two requests have come."""

        def initiate_connection(self) -> None:
            calls.append(("begin",))

        def receive_data(self, data: bytes) -> list[Any]:
            assert data == PREFACE + b"two requests"
            return [SimpleNamespace(stream=SimpleNamespace(stream_id=n)) for n in (1, 3)]

        def send_error(self, stream: int, status: int, message: str) -> None:
            calls.append(("error", stream, status))
            assert "secret" not in message

        def cleanup_stream(self, stream: int) -> None:
            calls.append(("end", stream))

    def answer(req: Any, conn: Any, parser: Any) -> None:
        calls.append(("request", req.stream.stream_id))
        if error is not None and req.stream.stream_id == 1:
            raise error("a secret of the app")

    parser = Parser()
    monkeypatch.setattr("gunicorn.http.get_parser", lambda *args, **options: parser)
    monkeypatch.setattr(ThreadWorker, "handle_http2_request", lambda worker, *args: answer(*args))
    client = bench.connect()
    client.send(PREFACE + b"two requests")
    bench.run()
    answered = [("error", 1, 500)] if error else []
    assert calls == [("begin",), ("request", 1), *answered, ("end", 1), ("request", 3), ("end", 3)]
    assert len(served.connections) == 1  # and then the others are waited for
    assert bench.log.says("Error handling HTTP/2 request") is (error is not None)
