"""After the end of a request nothing of it is reachable, whichever way it ended."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.connections import MakeBench
from tests.server.http2_bench import Peer
from tests.server.http2_streams import Begin, begin
from tests.support.servers import wait_for
from tests.workers.bench import GET, LARGE, Bench, Client, make_bench

__all__ = ["begin", "make_bench"]

POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


class Marker:
    """What hangs on a request."""


class App:
    """An app, and what it has seen of its requests, by weak references.

    :ivar seen: of all requests.
    """

    def __init__(self, answer: Callable[[App, dict[str, Any], Any], Any]) -> None:
        self.seen: list[weakref.ref[Any]] = []
        self.keep: Callable[[Any], Any] = self._keep
        self._answer = answer

    def _keep(self, thing: Any) -> Any:
        self.seen.append(weakref.ref(thing))
        return thing

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        environ["marker"] = self.keep(Marker())
        self.keep(environ["wsgi.input"])
        self.keep(start_response.__self__)
        return self._answer(self, environ, start_response)

    @property
    def alive(self) -> list[Any]:
        """Where a test fails, what still refers to it can be looked up from here."""
        return [thing for ref in self.seen if (thing := ref()) is not None]


class Body:
    """A body that holds much, as an export does, and its environ.

    :param fails_after: after so many blocks, it raises.
    """

    def __init__(self, environ: dict[str, Any], *, blocks: int = 3, size: int = 10) -> None:
        self.environ = environ
        self.blocks = blocks
        self.size = size
        self.fails_after = -1

    def __iter__(self) -> Iterator[bytes]:
        own = Marker()
        for number in range(self.blocks):
            if number == self.fails_after:
                raise ValueError(f"in the middle of {own}")
            yield bytes(self.size)
        if self.blocks == self.fails_after:
            raise ValueError("at the end")

    def close(self) -> None:
        self.environ["closed"] = True


def small(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    environ["wsgi.input"].read()
    start_response("200 OK", [])
    return app.keep(Body(environ))


def large(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    return app.keep(Body(environ, blocks=64, size=LARGE // 16))


def events(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    return app.keep(Body(environ, blocks=64, size=LARGE // 16))


def generator(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])

    def blocks() -> Iterator[bytes]:
        yield from Body(environ, blocks=64, size=LARGE // 16)

    return app.keep(blocks())


def whole(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    return [bytes(LARGE)]


def written(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    write = start_response("200 OK", [])
    for _ in range(16):
        write(bytes(LARGE // 16))
    return app.keep(Body(environ))


def raises_at_once(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    own = app.keep(Marker())
    raise ValueError(f"before the head: {own}")


def exits(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    raise SystemExit


def raises_first(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    body = Body(environ)
    body.fails_after = 0
    return app.keep(body)


def raises_in_the_middle(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    body = Body(environ)
    body.fails_after = 2
    return app.keep(body)


def raises_in_the_middle_of_much(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    body = Body(environ, blocks=64, size=LARGE // 16)
    body.fails_after = 64
    return app.keep(body)


def raises_in_close(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    class Closing(Body):
        def close(self) -> None:
            raise ValueError("in close()")

    start_response("200 OK", [])
    return app.keep(Closing(environ))


def raises_at_second_start(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    start_response("200 OK", [])


def is_too_short(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "1000")])
    return app.keep(Body(environ))


def is_too_long(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "15")])
    return app.keep(Body(environ))


def has_no_content(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("204 No Content", [])
    return app.keep(Body(environ))


def is_not_bytes(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    return app.keep(iter_of_str())


def iter_of_str() -> Iterator[Any]:
    yield b"first"
    yield "second"


def sends_file(path: Path) -> Any:
    def answer(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return app.keep(FileWrapper(app.keep(path.open("rb"))))

    return answer


ENDS_BY_ITSELF = [
    small, raises_at_once, exits, raises_first, raises_in_the_middle, raises_in_close,
    raises_at_second_start, is_too_short, is_too_long, has_no_content, is_not_bytes,
]  # fmt: skip
LEFT_MIDWAY = [large, events, generator, whole, written, raises_in_the_middle_of_much]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What only the collector of cycles frees may stay for long: an app may switch it off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def forget_log(bench: Bench) -> None:
    """The bench's log keeps errors and environs."""
    bench.log.errors.clear()
    bench.log.environs.clear()
    bench.log.failures.clear()


def assert_nothing_is_left(app: App, bench: Bench) -> None:
    forget_log(bench)

    assert app.seen
    for _ in range(500):  # a disk thread may be about to end; the bench has the clock
        bench.run()
        if not app.alive:
            return
        time.sleep(0.01)
    pytest.fail(f"{app.alive} are left")


@pytest.mark.parametrize("answer", ENDS_BY_ITSELF)
@pytest.mark.parametrize("sent", [GET, POST, CHUNKED, GET.replace(b"GET", b"HEAD")])
@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_is_left_of_a_request_that_has_ended(
    make_bench: MakeBench, answer: Any, sent: bytes, streamed: bool
) -> None:
    app = App(answer)
    bench = make_bench(app, keepalive=5, attributes={"buffer_bodies": not streamed})
    client = bench.begin(sent)
    assert client.receive_all_there_is()
    assert_nothing_is_left(app, bench)


@pytest.mark.parametrize("answer", LEFT_MIDWAY)
@pytest.mark.parametrize("end", ["leaves", "resets", "slow", "cut off", "read"])
def test_nothing_is_left_of_a_response_whose_client_leaves(
    make_bench: MakeBench, answer: Any, end: str
) -> None:
    app = App(answer)
    # It may run ahead of its client by all that it has, as no other thread sends here.
    bench = make_bench(app, keepalive=5, attributes={"output_ahead_bytes": 64 * LARGE})
    client = bench.begin()
    assert client.near.output.draining
    end_client(bench, client, end)
    assert_nothing_is_left(app, bench)


@pytest.mark.parametrize("end", ["leaves", "slow", "cut off", "read"])
@pytest.mark.parametrize("sendfile", [True, False])
def test_nothing_is_left_of_a_file_whose_client_leaves(
    make_bench: MakeBench, tmp_path: Path, end: str, sendfile: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * LARGE))
    app = App(sends_file(path))
    bench = make_bench(app, keepalive=5, sendfile=sendfile)
    client = bench.begin()
    assert client.near.output.draining
    end_client(bench, client, end)
    assert_nothing_is_left(app, bench)


def end_client(bench: Bench, client: Client, end: str) -> None:
    if end in ("leaves", "resets"):
        client.close()
    elif end == "slow":
        bench.pass_time(100)
    elif end == "cut off":
        client.near.cut_off()
    else:

        def all_is_read() -> bool:
            bench.run()
            client.receive_all_there_is()
            return not (client.is_in("sending") or client.is_in("running"))

        wait_for(all_is_read, "all is read")
    bench.run()


def test_nothing_is_left_of_an_app_that_writes_to_a_client_that_has_left(
    make_bench: MakeBench,
) -> None:
    clients: list[Client] = []

    def answer(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        clients[0].close()
        return app.keep(Body(environ, blocks=1000, size=10_000))

    app = App(answer)
    bench = make_bench(app)
    clients.append(bench.connect())
    clients[0].send(GET)
    bench.run()
    assert_nothing_is_left(app, bench)


@pytest.mark.parametrize("end", ["leaves", "malformed"])
def test_nothing_is_left_of_an_app_whose_upload_breaks_off(make_bench: MakeBench, end: str) -> None:
    clients: list[Client] = []

    def answer(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        app.keep(own := Marker())
        if end == "leaves":
            clients[0].close()
        else:
            clients[0].send(b"no chunk\r\n")
        environ["own"] = own
        environ["wsgi.input"].read()

    app = App(answer)
    bench = make_bench(app, attributes={"buffer_bodies": False})
    clients.append(bench.connect())
    clients[0].send(CHUNKED[: CHUNKED.index(b"5\r\n")])
    bench.run()
    assert_nothing_is_left(app, bench)


def test_nothing_is_left_of_a_request_that_is_refused(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(small)
    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    parser = client.near._receiver.parser
    parse = parser.parse

    def noting(*args: Any, **more: Any) -> Any:
        exchange = parse(*args, **more)
        app.keep(exchange.req)
        return exchange

    monkeypatch.setattr(parser, "parse", noting)
    client.send(CHUNKED[: CHUNKED.index(b"5\r\n")])
    bench.run()
    client.send(b"no chunk\r\n")
    bench.run()
    assert b" 400 " in client.receive_all_there_is()
    assert_nothing_is_left(app, bench)


def test_nothing_is_left_of_requests_before_on_an_idle_connection(make_bench: MakeBench) -> None:
    app = App(small)
    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    for _ in range(3):
        client.send(POST)
        bench.run()
    assert client.is_in("idle")
    assert len(app.seen) >= 12
    assert_nothing_is_left(app, bench)


# HTTP/2


@pytest.mark.parametrize("answer", ENDS_BY_ITSELF)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_is_left_of_a_stream_that_has_ended(
    begin: Begin, answer: Any, method: str, streamed: bool
) -> None:
    app = App(answer)
    peer = begin(app, attributes={"buffer_bodies": not streamed})
    peer.ask(method=method, body=b"hello" if method == "POST" else None)
    peer.run()
    assert not peer.has_ended
    assert_nothing_is_left(app, peer.bench)


@pytest.mark.parametrize("answer", [large, generator, whole, written, raises_in_the_middle_of_much])
@pytest.mark.parametrize("end", ["reset", "leaves", "slow", "cut off", "goaway", "malformed"])
def test_nothing_is_left_of_a_stream_whose_client_leaves(
    begin: Begin, answer: Any, end: str
) -> None:
    app = App(answer)
    peer = begin(
        app,
        client={"window": 1000, "reads": False},
        attributes={"output_ahead_bytes": 64 * LARGE},
    )
    end_stream(peer, peer.ask(), end)
    assert_nothing_is_left(app, peer.bench)


@pytest.mark.parametrize("end", ["reset", "leaves", "slow", "cut off"])
def test_nothing_is_left_of_a_file_on_a_stream_whose_client_leaves(
    begin: Begin, tmp_path: Path, end: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))
    app = App(sends_file(path))
    peer = begin(app, client={"window": 1000, "reads": False})
    end_stream(peer, peer.ask(), end)
    assert_nothing_is_left(app, peer.bench)


def end_stream(peer: Peer, stream: int, end: str) -> None:
    peer.run()
    if end == "reset":
        peer.state.reset_stream(stream)
        peer.run()
        assert not peer.has_ended
    elif end == "leaves":
        peer.socket.close()
    elif end == "slow":
        peer.bench.pass_time(100)
    elif end == "cut off":
        peer.near.cut_off()
    elif end == "goaway":
        peer.state.close_connection(error_code=2)
        peer.run()
    else:
        peer.socket.send(b"\0\0\1\0\0\0\0\0\0x")  # DATA on stream 0
    peer.bench.run()


@pytest.mark.parametrize("end", ["reset", "leaves"])
def test_nothing_is_left_of_a_stream_whose_upload_breaks_off(begin: Begin, end: str) -> None:
    def answer(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        app.keep(own := Marker())
        if end == "leaves":
            peers[0].socket.close()
        else:
            peers[0].state.reset_stream(1)
            peers[0].send_only()
        server = peers[0].bench.server
        server.pool.poll_events(0)
        while server.pool.work:
            assert peers[0].bench.take_up() is None
        environ["own"] = own
        environ["wsgi.input"].read()

    app = App(answer)
    peers = [begin(app, attributes={"buffer_bodies": False})]
    peers[0].ask(method="POST", body=b"begun", ends=False)
    peers[0].send_only()
    peers[0].bench.run()
    assert_nothing_is_left(app, peers[0].bench)


def test_nothing_is_left_of_a_stream_that_is_refused_in_its_body(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(small)
    peer = begin(app, attributes={"body_limit_bytes": 10})
    parser = peer.near._parser
    parse = parser.parse_stream

    def noting(*args: Any, **more: Any) -> Any:
        exchange = parse(*args, **more)
        app.keep(exchange.req)
        return exchange

    monkeypatch.setattr(parser, "parse_stream", noting)
    assert peer.get("/", "POST", body=bytes(20)).status == 413
    assert_nothing_is_left(app, peer.bench)
