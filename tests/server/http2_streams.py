"""Apps over HTTP/2 on FastWorker's bench, and a client of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hpack
import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.http2_bench import HTTP2, Peer
from tests.support.http2 import Answer
from tests.support.servers import wait_for
from tests.workers.bench import LARGE, Bench, echo

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, REFUSED = 0, 1, 2, 8, 7
ENHANCE_YOUR_CALM = 11


@pytest.fixture
def begin(make_bench: MakeBench) -> Callable[..., Peer]:
    """A client of an app; `attributes` and gunicorn's settings may be named."""

    def make(app: App = echo, client: dict[str, Any] | None = None, **options: Any) -> Peer:
        options = {"keepalive": 5, "worker_connections": 100, **HTTP2, **options}
        return Peer(make_bench(app, **options), **(client or {}))

    return make


Begin = Callable[..., Peer]


def app_of(body: Callable[[], Iterable[bytes]], *headers: tuple[str, str]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", list(headers))
        return body()

    return app


def generator() -> Iterator[bytes]:
    for _ in range(16):
        yield bytes(LARGE // 16)


def large_file(folder: Path) -> Callable[[], Iterable[bytes]]:
    path = folder / "large"
    path.write_bytes(os.urandom(LARGE))

    def body() -> Iterable[bytes]:
        return FileWrapper(path.open("rb"))  # type: ignore[no-any-return]

    return body


def wait_for_disk(peer: Peer, condition: Callable[[], bool]) -> None:
    """A disk thread may bring what comes next: run until it has."""

    def holds() -> bool:
        peer.run()
        return condition()

    wait_for(holds, "all has come that the window lets through")


def another_thread(peer: Peer) -> None:
    """What another thread does with what has come, while an app runs in this one."""
    server = peer.bench.server
    server.pool.poll_events(0)
    while server.pool.work:
        job = peer.bench.take_up()
        if job is not None:
            peer.bench.answer(job)


def raw_frame(kind: int, number: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    """A frame as it is sent (RFC 9113 section 4.1)."""
    return b"%b%c%c%b%b" % (
        len(payload).to_bytes(3, "big"),
        kind,
        flags,
        number.to_bytes(4, "big"),
        payload,
    )


def raw_head(
    peer: Peer,
    fields: Iterable[tuple[str, str]] | None = None,
    *,
    before: bytes = b"",
    more: bytes = b"",
    priority: bytes = b"",
    ends: bool = True,
) -> bytes:
    """The HEADERS frame of a peer's next request, which nobody has checked.

    :param fields: a GET by default.
    :param before: what the block begins with, as HPACK has it, and `more`: what it ends with.
    :param priority: as in a PRIORITY frame.
    """
    if fields is None:
        fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
    number = peer.state.get_next_available_stream_id()
    peer.answers[number] = Answer()
    peer.send_only()
    encoder, peer.state.encoder = peer.state.encoder, hpack.Encoder()
    peer.state.send_headers(number, [(":method", "GET"), (":path", "/")], end_stream=ends)
    peer.state.encoder = encoder
    peer.state.data_to_send()  # which nobody gets
    block = before + b"".join(b"\0" + _literal(each) + _literal(value) for each, value in fields)
    block += more
    flags = 4 | (1 if ends else 0) | (0x20 if priority else 0)
    return raw_frame(1, number, priority + block, flags=flags)


def _literal(text: str) -> bytes:
    return bytes(hpack.hpack.encode_integer(len(text), 7)) + text.encode("latin-1")


def many(peer: Peer, count: int, make: Callable[[], object]) -> None:
    for _ in range(count):
        make()
    peer.run()
