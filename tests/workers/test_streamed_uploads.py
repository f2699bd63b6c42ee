"""Uploads over TLS that the app's thread reads from its client (`buffer_bodies` is off)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.app import PIECE_BYTES, block
from tests.workers.serving import POLLERS, Client, fast_worker, nothing_left_behind, reset

pytestmark = pytest.mark.long

UPLOAD_BYTES = 5_000_000
THREADS = 4
PIECE = b"piece..." * (PIECE_BYTES // 8)
ONE_OF_FIVE_PIECES = b"POST /dialogue HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
    5 * PIECE_BYTES,
    PIECE,
)
DIALOGUE = "dialogue same thread"


@pytest.fixture(scope="module", params=POLLERS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with served(tmp_path_factory.mktemp("tls"), poller=request.param) as client:
        yield client


@pytest.fixture
def connection(client: Client) -> Iterator[Connection]:
    with client.connect() as made:
        yield made


@pytest.fixture(scope="module", params=POLLERS)
def impatient(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Limits for clients that stop: the server does not wait for them for long."""
    folder = tmp_path_factory.mktemp("tls")
    with served(folder, poller=request.param, body_timeout_s=1.0) as client:
        yield client


@contextlib.contextmanager
def served(folder: Path, **attributes: object) -> Iterator[Client]:
    pem = write_certificate(folder / "server.pem")
    options = [f"--certfile={pem}", f"--keyfile={pem}", f"--threads={THREADS}", "--keep-alive=30"]
    with fast_worker(*options, attributes={"buffer_bodies": False, **attributes}) as server:
        yield Client(server, client_context())


@pytest.mark.parametrize("chunked", [False, True])
def test_large_streamed_body_is_read(connection: Connection, chunked: bool) -> None:
    body = block(UPLOAD_BYTES)
    parts = [body[start : start + 70_000] for start in range(0, len(body), 70_000)]
    for _ in range(2):
        response = connection.request("/digest", method="POST", body=parts if chunked else body)
        assert json.loads(response.body) == hashlib.sha256(body).hexdigest()
        assert response.keep_alive


def test_streamed_body_is_answered_piece_by_piece(client: Client, connection: Connection) -> None:
    connection.send(ONE_OF_FIVE_PIECES[:-1])
    connection.send(ONE_OF_FIVE_PIECES[-1:])
    assert connection.read_headers().status == 200
    assert connection.read_chunk() == PIECE.upper()
    for _ in range(4):
        assert client.get("/small/5").body == block(5)  # others are served meanwhile
        connection.send(PIECE[:500])
        connection.send(PIECE[500:])
        assert connection.read_chunk() == PIECE.upper()
    assert connection.read_to_end_of_chunks() == b""
    assert connection.request("/small/5").body == block(5)


def test_client_that_stops_sending_releases_thread(impatient: Client) -> None:
    before = impatient.closed(DIALOGUE)
    # There are more uploads than threads: each thread is needed again.
    with nothing_left_behind(impatient.server, tls=impatient.tls):
        stalled = [impatient.connect() for _ in range(THREADS + 1)]
        for connection in stalled:
            connection.send(ONE_OF_FIVE_PIECES)
        for connection in stalled:
            assert connection.read_headers().status == 200
            assert connection.read_chunk() == PIECE.upper()
            # Without a last chunk the client sees that the response is incomplete.
            assert connection.read_to_end() == b""
            connection.close()
    assert impatient.closed(DIALOGUE) == before + len(stalled)


@pytest.mark.parametrize("leave", ["goodbye", "reset", "without a word"])
def test_client_leaving_an_upload_releases_the_thread(client: Client, leave: str) -> None:
    before = client.closed(DIALOGUE)
    with nothing_left_behind(client.server, tls=client.tls):
        for _ in range(THREADS + 1):
            connection = client.connect()
            connection.send(ONE_OF_FIVE_PIECES)
            connection.read_headers()
            assert connection.read_chunk() == PIECE.upper()
            if leave == "reset":
                reset(connection.sock)
            elif leave == "goodbye":
                assert isinstance(connection.sock, ssl.SSLSocket)
                with contextlib.suppress(OSError):  # the server may have closed by then
                    connection.sock.unwrap()
            connection.close()
    wait_for(
        lambda: client.closed(DIALOGUE) == before + THREADS + 1, "each iterable has been closed"
    )


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 10\r\n\r\n0123456789",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n",
    ],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("cut", ["one record", "after the headers", "in the body"])
def test_request_after_unread_body_is_answered(
    connection: Connection, framing: bytes, cut: str, tmp_path: Path
) -> None:
    """The server finds the next request after the body, also if it came in the same TLS record."""
    headers, _, body = framing.partition(b"\r\n\r\n")
    arrived = tmp_path / "arrived"
    headers = (
        b"POST /ignore_body%b HTTP/1.1\r\nHost: a\r\n" % bytes(arrived) + headers + b"\r\n\r\n"
    )
    following = b"GET /small/5 HTTP/1.1\r\nHost: a\r\n\r\n"
    place = {"one record": 0, "after the headers": len(headers), "in the body": len(headers) + 4}[
        cut
    ]
    data = headers + body + following
    if place:
        connection.send(data[:place])
    connection.send(data[place:])
    arrived.touch()
    assert connection.read_response().body == b"ok"
    assert connection.read_response().body == block(5)
    assert connection.request("/small/7").body == block(7)


def test_body_that_follows_its_response_is_skipped(connection: Connection) -> None:
    headers = b"POST /ignore_body HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    connection.send(headers)
    response = connection.read_response()
    assert response.body == b"ok"
    assert response.keep_alive
    connection.send(bytes(1_000_000))
    assert connection.request("/small/7").body == block(7)


def test_unread_body_that_never_comes_ends_connection(impatient: Client) -> None:
    """The server does not know where the next request would start.

    It sends the response and closes.
    """
    with (
        nothing_left_behind(impatient.server, tls=impatient.tls),
        impatient.connect() as connection,
    ):
        connection.send(b"POST /ignore_body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123")
        assert connection.read_response().body == b"ok"
        assert connection.read_to_end() == b""
