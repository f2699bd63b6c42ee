"""A request is recorded when its file has been sent, with the number of bytes sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast, exporting
from asgifast import FileResponse as OwnFileResponse
from asgifast.messages import ASGIApp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tests.support.notes import Notes

from .layers import adds_a_header
from .protocols import GET, each_protocol, iterations, serving

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

# The ways to record requests.
WAYS = ["protocol", "wrapper", "wrapped middleware", "both"]
# More than the buffers between an app and a client that reads nothing.
SIZE = 8_000_000


async def recorded_after_leaving(client: Any, notes: Notes) -> Any:
    """Close the connection of a client that has not read the file. Return the recorded request."""
    await iterations(200)
    assert not notes.requests
    client.sock.close()
    while not notes.requests:
        await asyncio.sleep(0)
    [request] = notes.requests
    return request


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


@pytest.fixture(params=WAYS)
def recorded(
    request: pytest.FixtureRequest, file: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ASGIApp, Notes]:
    """Return an app that sends the file, and the recorder of its requests."""
    notes = Notes()

    def respond(request: Request) -> Response:
        return FileResponse(file)

    def ranged(request: Request) -> Response:
        return Response(b"small")

    middleware = []
    if request.param == "wrapped middleware":
        middleware = [Middleware(BaseHTTPMiddleware, dispatch=adds_a_header)]
    routes = [Route("/", respond), Route("/small", ranged)]
    app: ASGIApp = Starlette(routes=routes, middleware=middleware)
    if request.param in ("protocol", "both"):
        monkeypatch.setattr(exporting, "_recorder", notes)
    if request.param != "protocol":
        app = ASGIFast(app, metrics=notes)
    return app, notes


@each_protocol
async def test_download_lasts_until_its_last_byte(
    protocol: Any, recorded: tuple[ASGIApp, Notes]
) -> None:
    app, notes = recorded

    async with serving(protocol, app, pathsend=None) as client:
        for count in (1, 2):
            await client.ask()
            await iterations(200)
            assert len(notes.requests) == count - 1, "its client has not read it"
            assert notes.active["GET", "http"] == 1
            await client.exactly(SIZE)
            await iterations(200)
            assert len(notes.requests) == count
    assert [request.size for request in notes.requests] == [SIZE, SIZE]
    assert {request.sent_as for request in notes.requests} == {"file"}
    assert {request.pattern for request in notes.requests} == {"/"}
    assert (notes.clients_left, notes.length_errors) == (0, [])
    assert notes.active["GET", "http"] == 0


@each_protocol
@pytest.mark.parametrize("by_reads", [False, True])
async def test_aborted_download_records_what_was_sent(
    protocol: Any, recorded: tuple[ASGIApp, Notes], by_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, notes = recorded
    if by_reads:
        monkeypatch.setattr("asgifast.protocols.output.HAS_EPOLL", False)

    async with serving(protocol, app, pathsend=None) as client:
        await client.ask()
        request = await recorded_after_leaving(client, notes)
    assert 0 < request.size < SIZE
    assert (notes.clients_left, notes.length_errors) == (1, [])
    assert notes.active["GET", "http"] == 0


@each_protocol
async def test_download_that_the_server_cuts_off_is_recorded(
    protocol: Any, recorded: tuple[ASGIApp, Notes]
) -> None:
    app, notes = recorded

    async with serving(protocol, app, pathsend=None) as client:
        await client.ask()
        await iterations(200)
        [task] = client.state.tasks
        task.cancel()
        await client.to_end()
    [request] = notes.requests
    assert 0 < request.size < SIZE
    assert notes.active["GET", "http"] == 0


@each_protocol
@pytest.mark.parametrize("first", [30_000, 3_000_000])
async def test_aborted_ranges_record_what_was_sent(protocol: Any, file: Path, first: int) -> None:
    notes = Notes()
    app = ASGIFast(OwnFileResponse(file), metrics=notes, pathsend=True)
    ranges = b"bytes=0-%d,4000000-6999999" % (first - 1)

    async with serving(protocol, app) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nRange: %b\r\n\r\n" % ranges)
        await client.until(b"\r\n\r\n")
        request = await recorded_after_leaving(client, notes)
    assert request.sent_as == "segments"
    assert 0 < request.size < first + 3_000_000
    assert (notes.clients_left, notes.length_errors) == (1, [])


@each_protocol
async def test_small_responses_are_recorded_after_the_app(
    protocol: Any, recorded: tuple[ASGIApp, Notes], file: Path
) -> None:
    app, notes = recorded

    async with serving(protocol, app, pathsend=None) as client:
        await client.send(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.until(b"small")
        await client.ask(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        file.write_bytes(b"only a few bytes")
        await client.send(GET)
        await client.until(b"only a few bytes")
        await iterations()
    assert [request.size for request in notes.requests] == [5, 0, 16]
    assert notes.clients_left == 0
