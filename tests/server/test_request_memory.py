"""After the end of a request none of its objects is reachable, whichever way it ended."""

from __future__ import annotations

import functools
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
from wsgifast.server.http2.stream import Stream

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


def streams() -> list[Stream]:
    return [each for each in gc.get_objects() if type(each) is Stream]


def assert_nothing_is_left(
    app: App, stepped: SteppedWorker, more: Callable[[], list[Any]] = list
) -> None:
    # The test worker's log stores errors and environs.
    for recorded in (stepped.log.errors, stepped.log.environs, stepped.log.failures):
        recorded.clear()
    assert app.seen
    for _ in range(500):  # a disk thread may be about to end, and the test has the clock
        stepped.run()
        left = app.alive or more()
        if not left:
            return
        time.sleep(0.01)
    pytest.fail(f"{left} are left")


Serve = Callable[..., "Served"]


class Served:
    """An app on a connection that speaks HTTP/1.1 or HTTP/2.

    :ivar peer: the client of HTTP/2.
    """

    def __init__(
        self, make_stepped: MakeStepped, begin: Begin, response: Response, http2: bool, **more: Any
    ) -> None:
        self.app = App(response)
        self.peer: Any = None
        if http2:
            more.pop("keepalive", None)
            self.peer = begin(self.app, **more)
            self.stepped, self.client = self.peer.stepped, self.peer.socket
        else:
            more.pop("window", None)
            self.stepped = make_stepped(self.app, keepalive=5, **more)
            self.client = self.stepped.connect()

    def end(self, how: str) -> None:
        if self.peer is None:
            assert self.client.near.output.is_waiting
            end_client(self.stepped, self.client, how)
        else:
            self.peer.end(1, how)


@pytest.fixture
def serve(make_stepped: MakeStepped, begin: Begin) -> Serve:
    return functools.partial(Served, make_stepped, begin)


STACKS = pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
# Whether HTTP/2 is used, and how the client ends the response.
ENDS = pytest.mark.parametrize(
    ("http2", "end"),
    [*((False, end) for end in CLIENT_ENDS), *((True, end) for end in STREAM_ENDS)],
)
REQUESTS = {
    "GET": GET, "POST": POST, "POST in chunks": POST_IN_CHUNKS, "HEAD": GET.replace(b"GET", b"HEAD")
}  # fmt: skip


@pytest.mark.parametrize("response", ENDS_BY_ITSELF.values(), ids=ENDS_BY_ITSELF)
@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("streamed", [False, True])
@STACKS
def test_nothing_is_left_of_a_whole_request(
    serve: Serve, http2: bool, response: Any, request_: str, streamed: bool
) -> None:
    served = serve(response, http2, attributes={"buffer_bodies": not streamed})
    if http2:
        method = request_.partition(" ")[0]
        served.peer.ask(method=method, body=b"hello" if method == "POST" else None)
        served.peer.run()
        assert not served.peer.has_ended
    else:
        served.client.run(REQUESTS[request_])
        assert served.client.receive_all_there_is()
    assert_nothing_is_left(served.app, served.stepped)


@pytest.mark.parametrize("response", LEFT_MIDWAY.values(), ids=LEFT_MIDWAY)
@ENDS
def test_nothing_is_left_of_a_response_at_its_end(
    serve: Serve, response: Any, http2: bool, end: str
) -> None:
    # The writer may be ahead of its client by the whole body, as no other thread sends here.
    served = serve(response, http2, window=1000, attributes={"output_ahead_bytes": 64 * LARGE})
    served.peer.get() if http2 else served.client.run(GET)
    served.end(end)
    assert_nothing_is_left(served.app, served.stepped, streams)


@ENDS
@pytest.mark.parametrize("sendfile", [True, False])
def test_nothing_is_left_of_a_file_at_its_end(
    serve: Serve, tmp_path: Path, http2: bool, end: str, sendfile: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * LARGE))
    served = serve(sends_file(path), http2, window=1000, sendfile=sendfile)
    served.peer.get() if http2 else served.client.run(GET)
    served.end(end)
    assert_nothing_is_left(served.app, served.stepped, streams)


def test_nothing_is_left_of_app_whose_client_left(serve: Serve) -> None:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        served.client.close()
        return app.keep(Body(environ, blocks=1000, size=10_000))

    served = serve(response, False)
    served.client.run(GET)
    assert_nothing_is_left(served.app, served.stepped)


@pytest.mark.parametrize(
    ("http2", "end"),
    [(False, "leaves"), (False, "malformed"), (True, "leaves"), (True, "reset")],
)
def test_nothing_is_left_of_app_whose_upload_broke(serve: Serve, http2: bool, end: str) -> None:
    def response(app: App, environ: dict[str, Any], start_response: Any) -> Any:
        app.keep(own := Marker())
        if end == "leaves":
            served.client.close()
        elif end == "malformed":
            served.client.send(b"no chunk\r\n")
        else:
            served.peer.state.reset_stream(1)
        if http2:
            served.peer.serve_elsewhere()
        environ["own"] = own
        environ["wsgi.input"].read()

    served = serve(response, http2, attributes=STREAMED)
    if http2:
        served.peer.ask(method="POST", body=b"begun", ends=False)
        served.peer.run_unread()
    else:
        served.client.run(CHUNKED)
    assert_nothing_is_left(served.app, served.stepped, streams)


@STACKS
def test_nothing_is_left_of_a_request_that_is_refused(
    serve: Serve, http2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(small, http2, attributes={"body_limit_bytes": 10})
    near, app = served.client.near, served.app
    parser, name = (near._parser, "parse_stream") if http2 else (near._receiver.parser, "parse")
    parse = getattr(parser, name)

    def noting(*args: Any, **more: Any) -> Any:
        exchange = parse(*args, **more)
        app.keep(exchange.req)
        return exchange

    monkeypatch.setattr(parser, name, noting)
    if http2:
        assert served.peer.get("/", "POST", body=bytes(20)).status == 413
    else:
        served.client.run(CHUNKED)
        served.client.run(b"no chunk\r\n")
        assert b" 400 " in served.client.receive_all_there_is()
    assert_nothing_is_left(app, served.stepped)


@STACKS
def test_nothing_is_left_on_an_idle_connection(serve: Serve, http2: bool) -> None:
    served = serve(small, http2)
    for _ in range(3):
        if http2:
            served.peer.get("/", "POST", body=b"hello")
        else:
            served.client.run(POST)
    assert http2 or served.client.is_in("idle")
    assert len(served.app.seen) >= 12
    assert_nothing_is_left(served.app, served.stepped, streams)
