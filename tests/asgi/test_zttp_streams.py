"""HTTP/2 by uvicorn's zttp protocol in this process: uploads, messages, windows."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import pytest
from asgifast.messages import Message, Receive, Scope, Send
from h2.connection import ConnectionState
from h2.errors import ErrorCodes

from tests.support.http2 import Client

from .http2_wire import connected, stands_still
from .protocols import iterations
from .support import body, length, raising, sending, start_message

# Behind http2_wire, which has the tests skipped where zttp is not installed.
from asgifast.uvicorn import AutoZttpProtocol, ZttpH2Protocol  # isort: skip


EMPTY = start_message(length(0)), body(b"", False)


async def until_ended(receive: Receive) -> list[int]:
    """Receive a body. Return the sizes of its messages."""
    sizes, more = [], True
    while more:
        message = await receive()
        sizes.append(len(message["body"]))
        more = message["more_body"]
    return sizes


async def counting(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that returns the size of a body."""
    size = b"%d" % sum(await until_ended(receive))
    await sending(start_message(length(len(size))), body(size, False))(scope, receive, send)


async def test_app_awaiting_a_missing_body_gets_its_end() -> None:
    """Under uvicorn's own protocol, it waits as long as the client does."""
    messages = list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await sending(*EMPTY)(scope, receive, send)

    async with connected(app) as (wire, client):
        await wire.response(client.ask())
    assert messages == [{"type": "http.request", "body": b"", "more_body": False}]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
async def test_http2_app_of_an_eager_task_sees_all() -> None:
    seen = list[object]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([value for name, value in scope["headers"] if name == b"cookie"])
        seen.append(await receive())
        await sending(*EMPTY)(scope, receive, send)

    eager: Any = asyncio.eager_task_factory  # type: ignore[attr-defined, unused-ignore]
    asyncio.get_running_loop().set_task_factory(eager)
    async with connected(app) as (wire, client):
        for _ in range(2):
            await wire.response(client.ask(headers=[("cookie", "a=1"), ("cookie", "b=2")]))
    end = {"type": "http.request", "body": b"", "more_body": False}
    assert seen == [[b"a=1; b=2"], end] * 2


async def test_http2_pieces_for_a_busy_app_are_one_message() -> None:
    size = 200_000
    messages = list[Message]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await busy.wait()
        messages.append(await receive())
        await sending(*EMPTY)(scope, receive, send)

    async with connected(app) as (wire, client):
        stream = client.ask(method="POST", body=b"first", ends=False)
        await wire.until(lambda: messages)
        assert await wire.upload([stream], size) == size
        client.state.end_stream(stream)
        wire.pump()
        busy.set()
        await wire.response(stream)
    assert [len(message["body"]) for message in messages] == [5, size]
    assert [message["more_body"] for message in messages] == [True, False]


async def test_windows_open_again_without_the_app() -> None:
    """Otherwise a client would wait while an app processes each piece slowly."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async with connected(app) as (wire, client):
        stream = client.ask(method="POST", body=b"", ends=False)
        wire.pump()
        window = client.state.local_flow_control_window(stream)
        for _ in range(3):
            client.state.send_data(stream, bytes(16_384))
        wire.pump()
        assert client.state.local_flow_control_window(stream) > window - 3 * 16_384


async def test_unreceived_uploads_hold_their_client_up() -> None:
    received = list[int]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await busy.wait()
        received.extend(await until_ended(receive))
        await sending(*EMPTY)(scope, receive, send)

    async with connected(app) as (wire, client):
        streams = [client.ask(method="POST", ends=False) for _ in range(10)]
        wire.pump()
        await asyncio.sleep(0)
        most = 10 * 64 * 1024 + 192 * 1024 + 10 * 16 * 1024
        sent = await wire.upload(streams, 1_000_000)
        assert sent <= most
        busy.set()
        while sent < 10_000_000:
            await wire.until(lambda: not wire.is_paused)
            sent += await wire.upload(streams, min(1_000_000, (10_000_000 - sent) // 10))
        for stream in streams:
            client.state.end_stream(stream)
            await wire.response(stream)
        assert sum(received) == sent


SMALL = [b"<%d>" % number for number in range(30)]


# Small messages some iterations of the loop apart, as Starlette's BaseHTTPMiddleware sends them.
TRICKLE = [step for message in SMALL for step in (body(message), partial(iterations, 3))]


@pytest.mark.parametrize("fails", [False, True])
async def test_http2_app_ending_early_has_sent_all(fails: bool) -> None:
    ends = [raising(RuntimeError, "on purpose")] if fails else []
    app = sending(start_message(), *TRICKLE, *ends)
    async with connected(app) as (wire, client):
        assert (await wire.reset(client.ask())).body == b"".join(SMALL)


@pytest.mark.usefixtures("timeless_coalescing")
async def test_small_messages_of_each_stream_are_coalesced() -> None:
    async with connected(sending(start_message(), *TRICKLE, body(b"", False))) as (wire, client):
        streams = [client.ask() for _ in range(3)]
        for stream in streams:
            response = await wire.response(stream)
            assert response.body == b"".join(SMALL)
            assert response.frames < len(SMALL) / 2


async def test_streams_in_one_iteration_wait_for_nobody() -> None:
    """Event streams on one connection, each of which has a small message."""
    event, end = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        await event.wait()
        await send(body(scope["path"].encode()))
        await end.wait()
        await send(body(b"", False))

    async with connected(app) as (wire, client):
        streams = {client.ask(path): path.encode() for path in ("/1", "/2", "/3")}
        await wire.until(lambda: all(client.responses[s].headers for s in streams))
        event.set()
        await wire.until(lambda: all(client.responses[s].body for s in streams))
        end.set()
        assert {s: (await wire.response(s)).body for s in streams} == streams


async def test_cancelled_end_takes_no_delayed_message() -> None:
    """Another stream fills the unread buffer of the client between a message and the end."""
    goes_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sending(start_message(), *TRICKLE)(scope, receive, send)
        wire.protocol.pause_writing()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(send(body(b"<end>", False)), 0.05)
        wire.protocol.resume_writing()
        await goes_on.wait()
        await send(body(b"<given up>", False))

    async with connected(app) as (wire, client):
        stream = client.ask()
        await wire.until(lambda: len(client.responses[stream].body) == len(b"".join(SMALL)))
        goes_on.set()
        assert (await wire.response(stream)).body == b"".join(SMALL) + b"<given up>"


@pytest.mark.parametrize("size", [100, 20_000])
async def test_window_that_does_not_open_holds_up_the_app(size: int) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start_message())
        while True:
            await send(body(bytes(size)))
            sent += size
            await asyncio.sleep(0)

    async with connected(app, window=5000, reads=False) as (wire, client):
        stream = client.ask()
        wire.pump()
        stopped_at = await stands_still(lambda: sent)
        assert stopped_at < 300_000
        client.open(100_000)
        client.open(100_000, stream)
        wire.pump()
        assert await stands_still(lambda: sent) > stopped_at
        client.state.reset_stream(stream)
        wire.pump()
        # uvicorn ignores later messages. The app is not delayed any more.
        before = sent
        await wire.until(lambda: sent > before + 1_000_000)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def test_http2_message_beyond_length_is_refused() -> None:
    errors: list[str] = []

    too_long = sending(start_message(length(3)), body(b"ab"), body(b"cd"), body(b"", False))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await too_long(scope, receive, send)
        except RuntimeError as error:
            errors.append(str(error))
            raise

    async with connected(app) as (wire, client):
        assert len((await wire.reset(client.ask())).body) <= 3
    assert errors == ["Response content longer than Content-Length"]


@pytest.mark.parametrize("declares", [True, False])
async def test_upload_over_limit_is_413_other_streams_go_on(
    monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    monkeypatch.setattr(ZttpH2Protocol, "body_limit_bytes", 1000)
    async with connected(counting) as (wire, client):
        declared = [("content-length", "2000")] if declares else []
        other = client.ask(method="POST", body=b"12345", ends=False)
        stream = client.ask(method="POST", headers=declared, body=b"x", ends=False)
        wire.pump()
        if not declares:
            await asyncio.sleep(0)
            client.state.send_data(stream, bytes(1000))
        response = await wire.reset(stream)
        assert (response.status, response.reset) == (413, ErrorCodes.NO_ERROR)
        assert response.ended
        client.state.end_stream(other)
        assert (await wire.response(other)).body == b"5"


async def test_upload_that_stops_is_408_another_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ZttpH2Protocol, "body_timeout_s", 0.3)
    async with connected(counting) as (wire, client):
        stream = client.ask(method="POST", body=b"12345", ends=False)
        later = client.ask(method="POST", body=b"x", ends=False)
        for _ in range(20):  # while one body comes, the other one may wait
            client.state.send_data(later, bytes(1000))
            wire.pump()
            await asyncio.sleep(0.05)
        client.state.end_stream(later)
        assert (await wire.response(later)).body == b"20001"
        assert client.responses[stream].headers == {}
        assert (await wire.response(stream)).status == 408


@pytest.mark.parametrize("frames", ["none", "pings", "heads"])
async def test_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, frames: str
) -> None:
    """With any frames, and with slow frames of headers."""
    monkeypatch.setattr(ZttpH2Protocol, "head_timeout_s", 0.3)
    async with connected(counting) as (wire, client):
        await wire.response(client.ask(method="POST", body=b"12345"))
        client.ask()
        request = client.state.data_to_send()
        for index in range(len(request) - 1):
            if frames == "pings":
                client.state.ping(b"12345678")
                wire.protocol.data_received(client.state.data_to_send())
            elif frames == "heads":
                wire.protocol.data_received(request[index : index + 1])
            await asyncio.sleep(0.05)
            if wire.is_closed:
                break
        await wire.until(lambda: wire.is_closed)
        assert client.goaways


def test_subclass_options_hold_for_both_http_versions() -> None:
    class Mine(AutoZttpProtocol):
        body_limit_bytes = 7

    assert Mine.http1.body_limit_bytes == Mine.http2.body_limit_bytes == 7
    assert AutoZttpProtocol.http1.body_limit_bytes is None


# Features that zttp lacks


async def test_cookies_reach_the_app_as_one_header() -> None:
    found = list[bytes]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.extend(value for name, value in scope["headers"] if name == b"cookie")
        await sending(*EMPTY)(scope, receive, send)

    async with connected(app) as (wire, client):
        for cookies in (["a=1"], ["a=1", "b=2"], ["a=1", "b=2", "a=3"]):
            headers = [("x-before", "1"), *(("cookie", each) for each in cookies), ("x-after", "2")]
            await wire.response(client.ask(headers=headers))
            assert found == ["; ".join(cookies).encode()]
            found.clear()


async def test_websockets_over_http2_are_not_offered() -> None:
    async with connected(sending(*EMPTY)) as (wire, client):
        await wire.response(client.ask())
        settings = client.state.remote_settings
        assert settings.enable_connect_protocol == 0
        assert (settings.max_concurrent_streams, settings.initial_window_size) == (128, 65_535)
        extended = [(":protocol", "websocket"), ("sec-websocket-version", "13")]
        refused = await wire.reset(client.ask(method="CONNECT", headers=extended))
        assert refused.reset == ErrorCodes.PROTOCOL_ERROR
        assert (await wire.response(client.ask())).status == 200


def limited(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(f"asgifast.uvicorn.zttp._{name.upper()}", value)


def goes_on(client: Client) -> None:
    """Make h2 receive frames after a GOAWAY, as other clients do."""
    client.state.state_machine.state = ConnectionState.CLIENT_OPEN


async def test_many_requests_end_gracefully_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, requests_before_end=3, close_after_goaway_s=0.05)
    async with connected(sending(*EMPTY)) as (wire, client):
        for _ in range(3):
            assert not client.goaways
            await wire.response(client.ask())
        await wire.until(lambda: client.goaways)
        assert not wire.is_closed
        goes_on(client)
        late = client.ask()
        assert (await wire.response(late)).status == 200
        await wire.until(lambda: wire.is_closed)
        assert client.goaways == [(2**31 - 1, 0), (late, 0)]


@pytest.mark.parametrize("limit", ["max_requests", "max_resets"])
async def test_busy_connection_ends_gracefully(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    limited(monkeypatch, **{limit: 4}, close_after_goaway_s=0)
    responses = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await responses.wait()
        await sending(*EMPTY)(scope, receive, send)

    async with connected(app) as (wire, client):
        streams = [client.ask() for _ in range(5)]
        wire.pump()
        while limit == "max_resets" and len(streams) > 1:
            client.state.reset_stream(streams.pop(), ErrorCodes.CANCEL)
        await wire.until(lambda: client.goaways)
        goes_on(client)
        responses.set()
        for stream in streams:
            assert (await wire.response(stream)).status == 200
        await wire.until(lambda: wire.is_closed)
        assert [code for _, code in client.goaways] == [ErrorCodes.NO_ERROR] * 2
