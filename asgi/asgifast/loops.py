"""The functions of an event loop that asgifast needs, for asyncio and for trio.

They call a function at the end of an iteration, start a task, pause for one iteration, and call a
function in a thread. An asyncio event loop has methods for the first two, call_soon() and
create_task(). `_TrioLoop` implements these methods for trio.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class BackgroundTask(Protocol):
    """A task in addition to the app's task. An await of the task raises its error."""

    def done(self) -> bool: ...

    def cancel(self) -> object: ...

    def __await__(self) -> Generator[Any, None, None]: ...


class Event(Protocol):
    """An event of asyncio or trio."""

    def set(self) -> None: ...

    async def wait(self) -> object: ...


class Loop(Protocol):
    """The methods of an asyncio event loop that asgifast uses on trio too."""

    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def create_task(self, coro: Coroutine[Any, Any, None]) -> BackgroundTask: ...


def running_loop() -> Loop:
    """Return the running event loop.

    :raises RuntimeError: if the running loop is neither asyncio's (or a replacement, like uvloop)
        nor trio's.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")  # if trio runs, it has been imported
        if trio is None:
            raise
        return _TrioLoop(trio)


def new_event() -> Event:
    """Return a new event for tasks of the running event loop."""
    loop = running_loop()
    if isinstance(loop, _TrioLoop):
        event: Event = loop.trio.Event()
        return event
    return asyncio.Event()


async def cancel_and_wait(task: BackgroundTask) -> None:
    """Cancel a task and wait until it has ended. An error of the task is not raised."""
    task.cancel()
    if isinstance(task, _TrioTask):
        await task.join()
    elif isinstance(task, asyncio.Future):
        await wait_until_done(task)


async def wait_for(task: BackgroundTask) -> None:
    """Wait for a task, and raise its error. If the caller is cancelled, the task continues."""
    await (asyncio.shield(task) if isinstance(task, asyncio.Future) else task)


async def next_iteration() -> None:
    """Let all other tasks and callbacks of the event loop run once."""
    loop = running_loop()
    if isinstance(loop, _TrioLoop):
        await loop.trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function that may block, in a thread.

    A cancelled caller waits until the function has returned, because it may use the caller's
    descriptors.
    """
    loop = running_loop()
    if isinstance(loop, _TrioLoop):
        response: T = await loop.trio.to_thread.run_sync(function, *args)
        return response
    future = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await wait_until_done(future)
        raise
    finally:
        del future  # a traceback would refer to this frame, and so to the result


async def call_with_timeout(seconds: float, function: Callable[[], Awaitable[T]]) -> T | None:
    """Call and await a function. Return None if that takes longer than `seconds`."""
    loop = running_loop()
    if isinstance(loop, _TrioLoop):
        with loop.trio.move_on_after(seconds):
            return await function()
        return None
    try:
        return await asyncio.wait_for(function(), seconds)
    except TimeoutError:
        return None


async def wait_until_done(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done, even if the caller is cancelled several times meanwhile.

    anyio, which Starlette uses, cancels a task again in every iteration, except inside a shield.
    """
    anyio = sys.modules.get("anyio")
    with anyio.CancelScope(shield=True) if anyio is not None else contextlib.nullcontext():
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class _TrioLoop:
    """Implements methods of an asyncio loop with trio's entry queue and system tasks.

    Other tasks of trio need a nursery, which would have to be opened around the app for every
    request. `_TrioTask` stores the error of a system task, because trio would not raise it in the
    app.
    """

    def __init__(self, trio: Any) -> None:
        self.trio = trio
        self._token = trio.lowlevel.current_trio_token()
        # The context of the app. A task of asyncio would get it too.
        self._context = contextvars.copy_context()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._token.run_sync_soon(callback)

    def create_task(self, coro: Coroutine[Any, Any, None]) -> _TrioTask:
        task = _TrioTask(self.trio, coro)
        self.trio.lowlevel.spawn_system_task(task.run, name=coro, context=self._context)
        return task


class _TrioTask:
    def __init__(self, trio: Any, coro: Coroutine[Any, Any, None]) -> None:
        self._trio = trio
        self._has_ended = trio.Event()
        self._coro = coro
        self._scope = trio.CancelScope()
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                await self._coro
        except Exception as error:  # noqa: BLE001 - raised where the task is awaited
            self._error = error
        finally:
            self._has_ended.set()

    def done(self) -> bool:
        return bool(self._has_ended.is_set())

    def cancel(self) -> None:
        self._scope.cancel()

    async def join(self) -> None:
        with self._trio.CancelScope(shield=True):
            await self._has_ended.wait()

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._has_ended.wait().__await__()
        if self._error is not None:
            raise self._error
