"""HTTP/2 by uvicorn's zttp protocol in this process: uploads, messages, windows."""

from __future__ import annotations

import asyncio

import pytest
from asgifast.messages import Message, Receive, Scope, Send
from h2.errors import ErrorCodes

from tests.support.http2 import Client

from .http2_wire import connected, part, settled, stands_still, start

# Behind http2_wire, which has the tests skipped where zttp is not installed.
from asgifast.uvicorn import AutoZttpProtocol, ZttpH2Protocol  # isort: skip


def test_an_app_that_asks_for_a_body_that_does_not_come() -> None:
    """uvicorn's own protocol has it wait for as long as the client does."""
    messages = list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].ended, wire)

    asyncio.run(run())
    assert messages == [{"type": "http.request", "body": b"", "more_body": False}]


def test_what_comes_of_an_upload_while_the_app_is_busy_is_one_message() -> None:
    size = 200_000
    messages = list[Message]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await busy.wait()
        messages.append(await receive())
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask(method="POST", body=b"first", ends=False)
            await settled(lambda: messages, wire)
            assert await wire.upload([stream], size) == size
            client.state.end_stream(stream)
            wire.pump()
            busy.set()
            await settled(lambda: client.answers[stream].ended, wire)

    asyncio.run(run())
    assert [len(message["body"]) for message in messages] == [5, size]
    assert [message["more_body"] for message in messages] == [True, False]


def test_windows_open_again_without_the_app_having_its_turn() -> None:
    """An app that takes long over each piece would have the client wait for as long."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask(method="POST", body=b"", ends=False)
            wire.pump()
            window = client.state.local_flow_control_window(stream)
            for _ in range(3):
                client.state.send_data(stream, bytes(16_384))
            wire.pump()
            assert client.state.local_flow_control_window(stream) > window - 3 * 16_384

    asyncio.run(run())


def test_uploads_that_nobody_receives_hold_their_client_up_together() -> None:
    received = list[int]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await busy.wait()
        more = True
        while more:
            message = await receive()
            received.append(len(message["body"]))
            more = message["more_body"]
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            streams = [client.ask(method="POST", ends=False) for _ in range(10)]
            wire.pump()
            await asyncio.sleep(0)
            most = 10 * 64 * 1024 + 192 * 1024 + 10 * 16 * 1024
            sent = await wire.upload(streams, 1_000_000)
            assert sent <= most
            busy.set()
            while sent < 10_000_000:
                await settled(lambda: not wire.is_paused, wire)
                sent += await wire.upload(streams, min(1_000_000, (10_000_000 - sent) // 10))
            for stream in streams:
                client.state.end_stream(stream)
            await settled(lambda: all(client.answers[s].ended for s in streams), wire)
            assert sum(received) == sent

    asyncio.run(run())


SMALL = [b"<%d>" % number for number in range(30)]


async def trickle(send: Send) -> None:
    """Send small messages, some turns of the loop apart, as Starlette's BaseHTTPMiddleware does."""
    for message in SMALL:
        await send(part(message))
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize("fails", [False, True])
def test_an_app_that_ends_early_has_sent_what_it_sent(fails: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await trickle(send)
        if fails:
            raise RuntimeError("on purpose")

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].reset is not None, wire)
            assert client.answers[stream].body == b"".join(SMALL)

    asyncio.run(run())


def test_the_small_messages_of_each_stream_are_coalesced() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await trickle(send)
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            streams = [client.ask() for _ in range(3)]
            await settled(lambda: all(client.answers[s].ended for s in streams), wire)
            for stream in streams:
                assert client.answers[stream].body == b"".join(SMALL)
                assert client.answers[stream].frames < len(SMALL) / 2

    asyncio.run(run())


def test_streams_that_send_in_one_turn_of_the_loop_wait_for_nobody() -> None:
    """Two event streams on one connection, each of which has a small message."""

    async def run() -> None:
        event, end = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await event.wait()
            await send(part(scope["path"].encode()))
            await end.wait()
            await send(part(b"", more=False))

        client = Client()
        async with connected(app, client) as wire:
            streams = {client.ask(path): path.encode() for path in ("/1", "/2", "/3")}
            await settled(lambda: all(client.answers[s].headers for s in streams), wire)
            event.set()
            await settled(lambda: all(client.answers[s].body for s in streams), wire)
            end.set()
            await settled(lambda: all(client.answers[s].ended for s in streams), wire)
            assert {s: client.answers[s].body for s in streams} == streams

    asyncio.run(run())


def test_what_is_held_is_not_given_up_with_the_end() -> None:
    """Another stream has filled what the client does not read, between a message and the end."""

    async def run() -> None:
        goes_on = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await trickle(send)
            wire.protocol.pause_writing()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(send(part(b"<end>", more=False)), 0.05)
            wire.protocol.resume_writing()
            await goes_on.wait()
            await send(part(b"<given up>", more=False))

        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: len(client.answers[stream].body) == len(b"".join(SMALL)), wire)
            goes_on.set()
            await settled(lambda: client.answers[stream].ended, wire)
            assert client.answers[stream].body == b"".join(SMALL) + b"<given up>"

    asyncio.run(run())


@pytest.mark.parametrize("size", [100, 20_000])
def test_an_app_is_held_up_by_a_window_that_does_not_open(size: int) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start())
        while True:
            await send(part(bytes(size)))
            sent += size
            await asyncio.sleep(0)

    async def run() -> None:
        client = Client(window=5000, reads=False)
        async with connected(app, client) as wire:
            stream = client.ask()
            wire.pump()
            held_at = await stands_still(lambda: sent)
            assert held_at < 300_000
            client.open(100_000)
            client.open(100_000, stream)
            wire.pump()
            assert await stands_still(lambda: sent) > held_at
            client.state.reset_stream(stream)
            wire.pump()
            # uvicorn ignores what is sent after that; the app is not held any more.
            before = sent
            await settled(lambda: sent > before + 1_000_000, wire)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def test_more_than_the_content_length_is_an_error() -> None:
    errors: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(3))
        try:
            await send(part(b"ab"))
            await send(part(b"cd"))
            await send(part(b"", more=False))
        except RuntimeError as error:
            errors.append(str(error))
            raise

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].reset is not None, wire)
            assert len(client.answers[stream].body) <= 3

    asyncio.run(run())
    assert errors == ["Response content longer than Content-Length"]


async def until_ended(receive: Receive) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    return size


async def counting(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that returns the size of a body."""
    body = b"%d" % await until_ended(receive)
    await send(start(len(body)))
    await send(part(body, more=False))


@pytest.mark.parametrize("declares", [True, False])
def test_upload_over_the_limit_is_413_and_other_streams_go_on(
    monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    monkeypatch.setattr(ZttpH2Protocol, "body_limit_bytes", 1000)

    async def run() -> None:
        client = Client()
        async with connected(counting, client) as wire:
            length = [("content-length", "2000")] if declares else []
            other = client.ask(method="POST", body=b"12345", ends=False)
            stream = client.ask(method="POST", headers=length, body=b"x", ends=False)
            wire.pump()
            if not declares:
                await asyncio.sleep(0)
                client.state.send_data(stream, bytes(1000))
            await settled(lambda: client.answers[stream].reset is not None, wire)
            answer = client.answers[stream]
            assert (answer.status, answer.reset) == (413, ErrorCodes.NO_ERROR)
            assert answer.ended
            client.state.end_stream(other)
            await settled(lambda: client.answers[other].ended, wire)
            assert client.answers[other].body == b"5"

    asyncio.run(run())


def test_upload_that_stops_is_408_and_one_beside_it_that_goes_on_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ZttpH2Protocol, "body_timeout_s", 0.3)

    async def run() -> None:
        client = Client()
        async with connected(counting, client) as wire:
            stream = client.ask(method="POST", body=b"12345", ends=False)
            later = client.ask(method="POST", body=b"x", ends=False)
            for _ in range(20):  # while one body comes, the other one may wait
                client.state.send_data(later, bytes(1000))
                wire.pump()
                await asyncio.sleep(0.05)
            client.state.end_stream(later)
            await settled(lambda: client.answers[later].ended, wire)
            assert client.answers[later].body == b"20001"
            assert client.answers[stream].headers == {}
            await settled(lambda: client.answers[stream].ended, wire)
            assert client.answers[stream].status == 408

    asyncio.run(run())


@pytest.mark.parametrize("frames", ["none", "pings", "heads"])
def test_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, frames: str
) -> None:
    """Whatever frames come, and however slowly those of a head do."""
    monkeypatch.setattr(ZttpH2Protocol, "head_timeout_s", 0.3)

    async def run() -> None:
        client = Client()
        async with connected(counting, client) as wire:
            first = client.ask(method="POST", body=b"12345")
            await settled(lambda: client.answers[first].ended, wire)
            client.ask()
            head = client.state.data_to_send()
            for index in range(len(head) - 1):
                if frames == "pings":
                    client.state.ping(b"12345678")
                    wire.protocol.data_received(client.state.data_to_send())
                elif frames == "heads":
                    wire.protocol.data_received(head[index : index + 1])
                await asyncio.sleep(0.05)
                if wire.is_closed:
                    break
            await settled(lambda: wire.is_closed, wire)
            assert client.goaways

    asyncio.run(run())


def test_options_of_a_subclass_hold_for_both_versions_of_http() -> None:
    class Mine(AutoZttpProtocol):
        body_limit_bytes = 7

    assert Mine.http1.body_limit_bytes == Mine.http2.body_limit_bytes == 7
    assert AutoZttpProtocol.http1.body_limit_bytes is None
