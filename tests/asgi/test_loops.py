"""Features that depend on the event loop, in this process on asyncio's loop, uvloop and trio."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import anyio
import pytest
from asgifast.loops import cancel_and_wait, in_thread, running_loop

from .support import checkpoints

each_loop = pytest.mark.usefixtures("loop")


@each_loop
async def test_task_that_is_ended_is_over() -> None:
    steps = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            steps.append("over")

    task = running_loop().create_task(wait())
    await checkpoints(5)
    assert not task.done()
    await cancel_and_wait(task)
    assert task.done()
    assert steps == ["over"]
    await cancel_and_wait(task)  # a second call has no effect


@each_loop
async def test_caller_cancelled_at_a_tasks_end_is_cancelled() -> None:
    """The task ends and is cancelled."""

    steps = []

    async def slow_to_end() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            steps.append("task over")

    async def caller() -> None:
        task = running_loop().create_task(slow_to_end())
        await checkpoints(5)
        group.cancel_scope.cancel()
        await cancel_and_wait(task)
        assert steps == ["task over"]
        await anyio.lowlevel.checkpoint()
        steps.append("not cancelled")

    async with anyio.create_task_group() as group:
        group.start_soon(caller)
    assert steps == ["task over"]


@each_loop
async def test_thread_is_waited_for_by_a_cancelled_caller() -> None:
    release = threading.Event()
    over = []

    def work() -> None:
        release.wait(60)
        over.append(True)

    async with anyio.create_task_group() as group:

        async def call() -> None:
            try:
                await in_thread(work)
            finally:
                assert over  # the test may close its descriptors now

        group.start_soon(call)
        await checkpoints(5)
        group.cancel_scope.cancel()
        threading.Timer(0.05, release.set).start()
    assert over


async def test_thread_is_awaited_however_often_cancelled() -> None:
    release = threading.Event()

    call = asyncio.create_task(in_thread(release.wait, 10))
    for _ in range(3):
        await asyncio.sleep(0)
        call.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not call.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_asyncio_cancellation_at_a_tasks_end_stays() -> None:
    may_end = asyncio.Event()
    steps = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            steps.append("task over")

    async def ending() -> None:
        await cancel_and_wait(task)
        steps.append("not cancelled")

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    caller = asyncio.create_task(ending())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert steps == ["task over"]


def test_waiting_for_a_thread_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every iteration, anyio cancels the tasks that continue after a cancellation."""
    release = threading.Event()
    waits = 0
    wait = asyncio.wait

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*args, **options)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(in_thread, release.wait, 10)
            await anyio.lowlevel.checkpoint()
            monkeypatch.setattr(asyncio, "wait", counted)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await checkpoints(50)
            release.set()

    anyio.run(main, backend="asyncio")
    assert waits == 1


@pytest.mark.parametrize("trio_is_imported", [True, False])
def test_running_loop_without_a_loop_raises(
    monkeypatch: pytest.MonkeyPatch, trio_is_imported: bool
) -> None:
    if not trio_is_imported:
        monkeypatch.delitem(sys.modules, "trio")
    with pytest.raises(RuntimeError):
        running_loop()
