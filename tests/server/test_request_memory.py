"""After the end of a request none of its objects is reachable, whichever way it ended."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.connections import CHUNKED, CLIENT_ENDS, HEAD, STREAMED, MakeStepped, end_client
from tests.server.http2_peer import STREAM_ENDS, Begin
from tests.workers.stepped_worker import GET, LARGE, SteppedWorker

POST = HEAD + b"Content-Length: 5\r\n\r\nhello"
POST_IN_CHUNKS = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"


class Marker:
    """An object that belongs to a request."""


Response = Callable[["App", dict[str, Any], Any], Any]


class App:
    """An app, and weak references to the objects of its requests.

    :ivar seen: of all requests.
    """

    def __init__(self, response: Response) -> None:
        self.seen: list[weakref.ref[Any]] = []
        self._answer = response

    def keep(self, thing: Any) -> Any:
        self.seen.append(weakref.ref(thing))
        return thing

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        environ["marker"] = self.keep(Marker())
        self.keep(environ["wsgi.input"])
        self.keep(start_response.__self__)
        return self._answer(self, environ, start_response)

    @property
    def alive(self) -> list[Any]:
        """If a test fails, this function shows the remaining references."""
        return [thing for ref in self.seen if (thing := ref()) is not None]


class Body:
    """A body that holds much, as an export does, and its environ.

    :param fails_after: after so many blocks, it raises.
    """

    def __init__(
        self, environ: dict[str, Any], *, blocks: int = 3, size: int = 10, fails_after: int = -1
    ) -> None:
        self.environ = environ
        self.blocks = blocks
        self.size = size
        self.fails_after = fails_after

    def __iter__(self) -> Iterator[bytes]:
        own = Marker()
        for number in range(self.blocks + 1):
            if number == self.fails_after:
                raise ValueError(f"after {number} blocks, in {own}")
            if number < self.blocks:
                yield bytes(self.size)

    def close(self) -> None:
        self.environ["closed"] = True


class ClosingBadly(Body):
    def close(self) -> None:
        raise ValueError("in close()")


def body(
    *headers: tuple[str, str], status: str = "200 OK", kind: Any = Body, **options: Any
) -> Response:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        start_response(status, list(headers))
        return app.keep(kind(environ, **options))

    return response


def blocks_of(environ: dict[str, Any], **options: int) -> Iterator[bytes]:
    yield from Body(environ, **options)


def no_bytes(environ: dict[str, Any]) -> Iterator[Any]:
    yield b"first"
    yield "second"


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


def starts_twice(app: App, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [])
    start_response("200 OK", [])


def sends_file(path: Path) -> Response:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return app.keep(FileWrapper(app.keep(path.open("rb"))))

    return response


small = body()
MUCH: dict[str, Any] = {"blocks": 64, "size": LARGE // 16}
ENDS_BY_ITSELF: dict[str, Response] = {
    "small": small,
    "raises at once": raises_at_once,
    "exits": exits,
    "raises first": body(fails_after=0),
    "raises in the middle": body(fails_after=2),
    "raises in close": body(kind=ClosingBadly),
    "starts twice": starts_twice,
    "too short": body(("Content-Length", "1000")),
    "too long": body(("Content-Length", "15")),
    "no content": body(status="204 No Content"),
    "no bytes": body(kind=no_bytes),
}
LEFT_MIDWAY: dict[str, Response] = {
    "large": body(**MUCH),
    "events": body(("Content-Type", "text/event-stream"), **MUCH),
    "generator": body(kind=blocks_of, **MUCH),
    "whole": whole,
    "written": written,
    "raises at its end": body(**MUCH, fails_after=64),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Objects that only the cycle collector frees may stay for long: an app may switch it off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def assert_nothing_is_left(app: App, stepped: SteppedWorker) -> None:
    # The test worker's log stores errors and environs.
    for recorded in (stepped.log.errors, stepped.log.environs, stepped.log.failures):
        recorded.clear()
    assert app.seen
    for _ in range(500):  # a disk thread may be about to end, and the test has the clock
        stepped.run()
        if not app.alive:
            return
        time.sleep(0.01)
    pytest.fail(f"{app.alive} are left")


@pytest.mark.parametrize("response", ENDS_BY_ITSELF.values(), ids=ENDS_BY_ITSELF)
@pytest.mark.parametrize("sent", [GET, POST, POST_IN_CHUNKS, GET.replace(b"GET", b"HEAD")])
@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_is_left_of_a_whole_request(
    make_stepped: MakeStepped, response: Any, sent: bytes, streamed: bool
) -> None:
    app = App(response)
    stepped = make_stepped(app, keepalive=5, attributes={"buffer_bodies": not streamed})
    client = stepped.begin(sent)
    assert client.receive_all_there_is()
    assert_nothing_is_left(app, stepped)


@pytest.mark.parametrize("response", LEFT_MIDWAY.values(), ids=LEFT_MIDWAY)
@pytest.mark.parametrize("end", CLIENT_ENDS)
def test_nothing_is_left_of_a_response_at_its_end(
    make_stepped: MakeStepped, response: Any, end: str
) -> None:
    app = App(response)
    # The writer may be ahead of its client by the whole body, as no other thread sends here.
    stepped = make_stepped(app, keepalive=5, attributes={"output_ahead_bytes": 64 * LARGE})
    client = stepped.begin()
    assert client.near.output.is_waiting
    end_client(stepped, client, end)
    assert_nothing_is_left(app, stepped)


@pytest.mark.parametrize("end", CLIENT_ENDS)
@pytest.mark.parametrize("sendfile", [True, False])
def test_nothing_is_left_of_a_file_at_its_end(
    make_stepped: MakeStepped, tmp_path: Path, end: str, sendfile: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * LARGE))
    app = App(sends_file(path))
    stepped = make_stepped(app, keepalive=5, sendfile=sendfile)
    client = stepped.begin()
    assert client.near.output.is_waiting
    end_client(stepped, client, end)
    assert_nothing_is_left(app, stepped)


def test_nothing_is_left_of_app_whose_client_left(make_stepped: MakeStepped) -> None:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        client.close()
        return app.keep(Body(environ, blocks=1000, size=10_000))

    app = App(response)
    stepped = make_stepped(app)
    client = stepped.connect()
    client.run(GET)
    assert_nothing_is_left(app, stepped)


@pytest.mark.parametrize("end", ["leaves", "malformed"])
def test_nothing_is_left_of_app_whose_upload_broke(make_stepped: MakeStepped, end: str) -> None:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        app.keep(own := Marker())
        if end == "leaves":
            client.close()
        else:
            client.send(b"no chunk\r\n")
        environ["own"] = own
        environ["wsgi.input"].read()

    app = App(response)
    stepped = make_stepped(app, attributes=STREAMED)
    client = stepped.connect()
    client.run(CHUNKED)
    assert_nothing_is_left(app, stepped)


def note_parsed(parser: Any, name: str, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = getattr(parser, name)

    def noting(*args: Any, **more: Any) -> Any:
        exchange = parse(*args, **more)
        app.keep(exchange.req)
        return exchange

    monkeypatch.setattr(parser, name, noting)


def test_nothing_is_left_of_a_request_that_is_refused(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(small)
    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    note_parsed(client.near._receiver.parser, "parse", app, monkeypatch)
    client.run(CHUNKED)
    client.run(b"no chunk\r\n")
    assert b" 400 " in client.receive_all_there_is()
    assert_nothing_is_left(app, stepped)


def test_nothing_is_left_on_an_idle_connection(make_stepped: MakeStepped) -> None:
    app = App(small)
    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    for _ in range(3):
        client.run(POST)
    assert client.is_in("idle")
    assert len(app.seen) >= 12
    assert_nothing_is_left(app, stepped)


@pytest.mark.parametrize("response", ENDS_BY_ITSELF.values(), ids=ENDS_BY_ITSELF)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_is_left_of_a_whole_stream(
    begin: Begin, response: Any, method: str, streamed: bool
) -> None:
    app = App(response)
    peer = begin(app, attributes={"buffer_bodies": not streamed})
    peer.ask(method=method, body=b"hello" if method == "POST" else None)
    peer.run()
    assert not peer.has_ended
    assert_nothing_is_left(app, peer.stepped)


@pytest.mark.parametrize("response", LEFT_MIDWAY.values(), ids=LEFT_MIDWAY)
@pytest.mark.parametrize("end", STREAM_ENDS)
def test_nothing_is_left_of_a_stream_at_its_end(begin: Begin, response: Any, end: str) -> None:
    app = App(response)
    peer = begin(app, window=1000, attributes={"output_ahead_bytes": 64 * LARGE})
    peer.get()
    peer.end(1, end)
    assert_nothing_is_left(app, peer.stepped)


@pytest.mark.parametrize("end", STREAM_ENDS)
def test_nothing_is_left_of_a_streams_file_at_its_end(
    begin: Begin, tmp_path: Path, end: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))
    app = App(sends_file(path))
    peer = begin(app, window=1000)
    peer.get()
    peer.end(1, end)
    assert_nothing_is_left(app, peer.stepped)


@pytest.mark.parametrize("end", ["reset", "leaves"])
def test_nothing_is_left_of_a_stream_that_breaks_off(begin: Begin, end: str) -> None:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        app.keep(own := Marker())
        if end == "leaves":
            peer.socket.close()
        else:
            peer.state.reset_stream(1)
        peer.serve_elsewhere()
        environ["own"] = own
        environ["wsgi.input"].read()

    app = App(response)
    peer = begin(app, attributes=STREAMED)
    peer.ask(method="POST", body=b"begun", ends=False)
    peer.run_unread()
    assert_nothing_is_left(app, peer.stepped)


def test_nothing_is_left_of_a_stream_refused_in_body(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(small)
    peer = begin(app, attributes={"body_limit_bytes": 10})
    note_parsed(peer.near._parser, "parse_stream", app, monkeypatch)
    assert peer.get("/", "POST", body=bytes(20)).status == 413
    assert_nothing_is_left(app, peer.stepped)
