"""The event loops that anyio runs a function on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=list(BACKENDS))
def run(request: pytest.FixtureRequest) -> Run:
    backend, options = BACKENDS[request.param]

    def run(function: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(60):
                await function()

        anyio.run(bounded, backend=backend, backend_options=options)

    return run
