"""An ASGI app's startup and shutdown (the lifespan protocol)."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import WSGIFastError

__all__ = ["Lifespan"]


class Lifespan:
    """The app's startup and shutdown. Apps may raise if they do not support the protocol."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, app: Any) -> Lifespan:
        self = cls()
        self._task = asyncio.create_task(self._serve(app))
        said = await self._ask("lifespan.startup")
        if said is not None and said["type"] == "lifespan.startup.failed":
            raise WSGIFastError(f"the app's startup failed: {said.get('message', '')}")
        return self

    async def stop(self) -> None:
        await self._ask("lifespan.shutdown")
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, app: Any) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        await app(scope, self._asked.get, self._said.put)

    async def _ask(self, what: str) -> dict[str, Any] | None:
        """Send an event; the app's reply, or None if it has ended."""
        assert self._task is not None
        if self._task.done():
            return None
        self._asked.put_nowait({"type": what})
        answer = asyncio.create_task(self._said.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        self._task.exception()  # seen: the app does not speak lifespan
        return None
