"""Early hints over HTTP/1.1 (RFC 8297)."""

from __future__ import annotations

from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import EARLY_HINT, ASGIApp, Receive, Scope, Send
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from wsgifast.errors import BodyError

from .protocols import GET, each_protocol, serving
from .support import body, length, start_message

HINTS = (
    b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nlink: </b.js>; rel=preload\r\n\r\n"
)
LINKS = {"type": EARLY_HINT, "links": [b" </a.css>; rel=preload\t", b"</b.js>; rel=preload"]}


@pytest.mark.parametrize("wrap", [ASGIFast, lambda app: app], ids=["wrapped", "bare"])
@pytest.mark.skipif(
    not hasattr(Request, "send_early_hints"), reason="this Starlette has no send_early_hints()"
)
@each_protocol
async def test_hints_of_starlette_precede_the_response(protocol: Any, wrap: Any) -> None:
    async def page(request: Request) -> PlainTextResponse:
        await request.send_early_hints("</a.css>; rel=preload", "</b.js>; rel=preload")
        return PlainTextResponse("page")

    app = wrap(Starlette(routes=[Route("/", page)]))
    async with serving(protocol, app) as client:
        for _ in range(2):
            await client.send(GET)
            assert await client.until(b"\r\n\r\n") == HINTS
            response = await client.until(b"page")
            assert response.startswith(b"HTTP/1.1 200 ")
            assert b"content-length: 4\r\n" in response
        await client.send(GET.replace(b"1.1", b"1.0"))
        assert (await client.to_end()).startswith(b"HTTP/1.1 200 ")


def _sending_hints() -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(LINKS)
        await send({"type": EARLY_HINT, "links": []})
        await send(start_message(length(2)))
        await send(LINKS)
        await send(body(b"o"))
        await send(LINKS)
        await send(body(b"k", more=False))
        await send(LINKS)

    return app


@each_protocol
async def test_hints_after_the_headers_are_ignored(protocol: Any) -> None:
    async with serving(protocol, _sending_hints()) as client:
        await client.send(GET)
        assert await client.until(b"\r\n\r\n") == HINTS
        assert b"103" not in await client.until(b"\r\n\r\nok")
        await client.send(GET)
        assert await client.until(b"\r\n\r\n") == HINTS


@each_protocol
async def test_hint_with_a_line_break_is_refused(protocol: Any) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(BodyError) as caught:
            await send({"type": EARLY_HINT, "links": [b"</a>\r\nX: 1"]})
        seen.append(str(caught.value))
        await send(start_message(length(2)))
        await send(body(b"ok", more=False))

    async with serving(protocol, app) as client:
        await client.send(GET)
        assert (await client.until(b"ok")).startswith(b"HTTP/1.1 200 ")
    assert len(seen) == 1
