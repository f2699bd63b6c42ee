"""Messages, requests and apps that the tests of ASGIFast in this process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import Message, Receive, Scope, Send

from tests.support.process import open_descriptors

from .support import scope_of

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b".", "more_body": False}
PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
DATA = bytes(range(256)) * 4
LARGE_BYTES = 3_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(DATA)
    return str(tmp_path / "file")


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() <= before


def app_of(*messages: Message, **options: Any) -> Any:
    """An app that sends these, in ASGIFast with these options."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return ASGIFast(app, **options)


def body(data: Any, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def head(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def offering(*extensions: str, method: str = "GET", **headers: str) -> Scope:
    """A request to a server with these extensions."""
    return {**scope_of(method=method, **headers), "extensions": {name: {} for name in extensions}}


def pathsend(path: str) -> Message:
    return {"type": PATHSEND, "path": path}
