"""ASGIFast in this process: messages, errors, options, and objects that are not apps."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from functools import partial
from typing import Any

import flask
import pytest
from asgifast import ASGIFast
from asgifast.coalescing import DELAY_ITERATIONS, SINGLE_ITERATIONS
from asgifast.instrumented import Instrumented
from asgifast.messages import COALESCING, PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send

from tests.support.notes import Notes
from tests.support.process import uncollected
from wsgifast import ConfigurationError

from .protocols import iterations
from .support import (
    START,
    body,
    call,
    no_body,
    noting,
    raising,
    recording,
    scope_of,
    sending,
    start_message,
)


def test_messages_alone_are_passed_on_until_more_come() -> None:
    """Return an app that waits before each message."""
    singles, burst = 12, 200
    arrived: list[Message] = []
    at_once: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for number in range(singles):
            await send(body(b"<%d>" % number))
            at_once.append(arrived[-1].get("body") == b"<%d>" % number)
            for _ in range(DELAY_ITERATIONS + 5):
                await asyncio.sleep(0)
        for number in range(burst):
            await send(body(b"[%d]" % number))
        await send(body(b"", False))

    response = call(ASGIFast(app), scope_of(), on_send=arrived.append)
    delayed = SINGLE_ITERATIONS + 1
    assert at_once == [False] * delayed + [True] * (singles - delayed)
    sent = [b"<%d>" % number for number in range(singles)]
    assert response.body == b"".join(sent + [b"[%d]" % number for number in range(burst)])
    assert len(response.messages) < singles + 20


@pytest.mark.usefixtures("timeless_coalescing")
def test_asgifast_coalesces_messages_iterations_apart() -> None:
    """Middleware that passes messages between tasks has this effect."""
    sent = [b"<%d>" % number for number in range(1000)]
    steps = [step for each in sent for step in (body(each), partial(iterations, 3))]
    response = call(ASGIFast(sending(START, *steps, body(b"", False))), scope_of())
    assert response.body == b"".join(sent)
    assert len(response.messages) < len(sent) / 4 + 10


def test_measured_request_leaves_no_cycle() -> None:
    notes = Notes()
    app = ASGIFast(sending(START, body(b"a", False)), metrics=notes)
    scope = {**scope_of(), "state": Notes()}
    closed = weakref.ref(scope["state"])
    with uncollected():
        call(app, scope)
        del scope
        assert closed() is None
    assert [request.size for request in notes.requests] == [1]


@pytest.mark.parametrize("failure", [None, ZeroDivisionError, OSError, asyncio.CancelledError])
def test_request_is_active_until_its_app_has_ended(failure: type[BaseException] | None) -> None:
    notes = Notes()
    seen: list[object] = []
    end = body(b"b", False) if failure is None else raising(failure)
    app = sending(START, body(b"a"), lambda: seen.append(dict(notes.active)), end)
    with contextlib.suppress(ZeroDivisionError, OSError, asyncio.CancelledError):
        call(ASGIFast(app, metrics=notes), scope_of())
    assert seen == [{("GET", "http"): 1}]
    assert notes.active == {("GET", "http"): 0}
    assert notes.clients_left == (failure is OSError)


def test_body_of_none_is_recorded_as_empty() -> None:
    notes = Notes()
    end: Message = {"type": "http.response.body", "body": None}
    call(Instrumented(sending(START, body(b"a"), end), notes, None), scope_of())
    assert [(request.status, request.size) for request in notes.requests] == [(200, 1)]


def test_coalescing_can_be_off() -> None:
    app = ASGIFast(sending(START, body(b"a"), body(b"b"), body(b"", False)), coalesce=False)
    assert [m["body"] for m in call(app, scope_of()).messages[1:]] == [b"a", b"b", b""]


def test_coalesced_bytes_are_bounded() -> None:
    app = ASGIFast(sending(START, *[body(b"x" * 1000)] * 1000, body(b"", False)))
    response = call(app, scope_of())
    sizes = [len(m["body"]) for m in response.messages[1:]]
    assert max(sizes) <= 64 * 1024 + 1000
    assert len(sizes) <= 17, "each is as large as it may be"
    assert sum(sizes) == 1_000_000


def test_large_messages_keep_their_place() -> None:
    big = b"B" * 100_000
    app = ASGIFast(sending(START, body(b"1"), body(big), body(b"2"), body(big, False)))
    response = call(app, scope_of())
    assert response.body == b"1" + big + b"2" + big
    assert sum(m.get("body") is big for m in response.messages) == 2, "large ones are not copied"


def test_headers_wait_for_the_body_and_no_longer() -> None:
    response = call(ASGIFast(sending(START)), scope_of(), whole=False)
    assert response.types == ["http.response.start"]


def test_app_that_ends_early_has_sent_its_messages() -> None:
    response = call(ASGIFast(sending(START, body(b"a"), body(b"b"))), scope_of(), whole=False)
    assert [m.get("body") for m in response.messages] == [None, b"ab"]


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]])
def test_second_headers_are_refused_by_the_server(headers: list[tuple[bytes, bytes]]) -> None:
    first: Message = {**START, "headers": headers}
    second: Message = {**first, "status": 500}
    response = call(ASGIFast(sending(first, second, body(b"", False))), scope_of(), whole=False)
    assert [m.get("status") for m in response.messages] == [200, 500, None]


def test_other_messages_keep_their_place() -> None:
    debug: Message = {"type": "http.response.debug", "info": {}}
    trailers: Message = {"type": "http.response.trailers", "headers": []}
    app = ASGIFast(sending(START, debug, body(b"a"), trailers))
    kinds = [kind.rpartition(".")[2] for kind in call(app, scope_of(), whole=False).types]
    assert kinds == ["start", "debug", "body", "trailers"]


def test_messages_of_the_app_are_not_changed() -> None:
    start_message: Message = {"type": "http.response.start", "status": 200, "headers": iter([])}
    text = body("text", False)
    assert call(ASGIFast(sending(start_message, text)), scope_of()).messages[0]["headers"] == []
    assert text["body"] == "text"


def test_messages_of_20_kb_are_not_coalesced() -> None:
    part = b"x" * 20_000
    app = ASGIFast(sending(START, body(part), body(part), body(b"", False)))
    assert [m["body"] for m in call(app, scope_of()).messages[1:]] == [part, part, b""]


def test_server_that_coalesces_gets_every_message() -> None:
    scope = {**scope_of(), COALESCING: True, "extensions": {"of.the.server": {}}}
    seen: list[Any] = []
    app = noting(seen, "extensions", sending(START, body(b"a"), body(b"b"), body(b"c", False)))
    response = call(ASGIFast(app, pathsend=True), scope)
    assert [m["body"] for m in response.messages[1:]] == [b"a", b"b", b"c"]
    assert {"of.the.server", PATHSEND, ZEROCOPYSEND} <= set(seen[0])
    assert set(scope["extensions"]) == {"of.the.server"}


def test_app_that_fails_has_sent_its_messages() -> None:
    sent: list[Message] = []
    app = sending(START, body(b"before"), raising(LookupError))
    with pytest.raises(LookupError):
        call(ASGIFast(app), scope_of(), on_send=sent.append)
    assert [m.get("body") for m in sent] == [None, b"before"]


def test_error_of_the_app_comes_before_that_of_send() -> None:
    def fail(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("gone")

    app = sending(START, body(b"before"), raising(LookupError))
    with pytest.raises(LookupError):
        call(ASGIFast(app), scope_of(), on_send=fail)


@pytest.mark.parametrize("failure", [LookupError, asyncio.CancelledError])
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"2")]])
async def test_app_failing_before_its_body_leaves_headers(
    headers: list[tuple[bytes, bytes]], failure: type[BaseException]
) -> None:
    """The server can still respond with 500."""
    sent: list[Message] = []
    app = sending(start_message(*headers), raising(failure))
    with pytest.raises(failure):
        await ASGIFast(app)(scope_of(), no_body, recording(sent))
    await iterations(5)
    assert not sent


def test_text_of_many_messages_has_one_byte_order_mark() -> None:
    start = {**START, "headers": [(b"content-type", b"text/plain; charset=utf-16")]}
    parts = ["", "one, ", "", "two, ", "three"]
    messages = [body(part) for part in parts]
    response = call(ASGIFast(sending(start, *messages, body("", False))), scope_of())
    assert response.body == "one, two, three".encode("utf-16")


async def test_app_that_raises_cancelled_error_sends_no_more() -> None:
    sent: list[Message] = []
    app = sending(START, body(b"coalesced"), raising(asyncio.CancelledError))
    with pytest.raises(asyncio.CancelledError):
        await ASGIFast(app)(scope_of(), no_body, recording(sent))
    await iterations(5)
    assert [m["type"] for m in sent] == ["http.response.start"]


@pytest.mark.parametrize(
    "options",
    [
        {"coalesce": 1},
        {"ranges": "yes"},
        {"ranges": "take-over"},
        {"conditional": None},
        {"pathsend": "no"},
        {"ranges": 2},
    ],
)
def test_invalid_option_of_asgifast_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ASGIFast(sending(), **options)


@pytest.mark.parametrize(
    ("app", "way_out"),
    [
        (5, "5 is no ASGI app"),
        (None, "a factory has returned nothing"),
        (flask.Flask("test"), r"wsgifast\.WSGIFast wraps WSGI apps"),
        (lambda: sending(), "call it first, if it is a factory"),
    ],
)
def test_object_that_is_no_asgi_app_is_refused(app: Any, way_out: str) -> None:
    with pytest.raises(ConfigurationError, match=way_out):
        ASGIFast(app)


@pytest.mark.parametrize("options", [{}, {"body_limit_bytes": 0, "decompress": True}])
def test_lifespan_and_websocket_scopes_pass_untouched(options: dict[str, Any]) -> None:
    passed: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.extend((scope, receive, send))

    async def nothing(*args: object) -> Any: ...

    for kind in ("lifespan", "websocket"):
        scope: Scope = {"type": kind}
        passed.clear()
        asyncio.run(ASGIFast(app, **options)(scope, nothing, nothing))
        assert passed == [scope, nothing, nothing]
        assert passed[0] is scope
