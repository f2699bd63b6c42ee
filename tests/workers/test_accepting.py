"""Accepting on and off from several threads: the flag and the dispatcher say the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from wsgifast.workers import FastWorker

LISTENER = 3


class Interrupted:
    """A dispatcher in which another thread comes between as soon as a listener is forgotten."""

    def __init__(self) -> None:
        self.listening = {LISTENER}
        self.other: threading.Thread | None = None

    def forget(self, fd: int) -> None:
        assert self.other is not None
        self.other.start()
        # Long enough for the other one to come through, if nothing holds it back.
        self.other.join(0.3)
        self.listening.discard(fd)

    def listen(self, fd: int) -> None:
        if fd in self.listening:
            raise FileExistsError(fd)  # as epoll does
        self.listening.add(fd)


def worker_with(dispatcher: Interrupted, *, stopping: bool) -> Any:
    worker: Any = FastWorker.__new__(FastWorker)
    worker.dispatcher = dispatcher
    worker._accepting = True
    worker._stopping = stopping
    worker._accept_lock = threading.Lock()
    worker._listeners = {LISTENER: None}
    return worker


@pytest.mark.parametrize("stopping", [False, True])
def test_a_connection_closes_while_the_last_one_allowed_is_accepted(stopping: bool) -> None:
    dispatcher = Interrupted()
    worker = worker_with(dispatcher, stopping=stopping)
    errors: list[BaseException] = []

    def resume() -> None:
        try:
            worker._set_accepting(True)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    dispatcher.other = threading.Thread(target=resume)
    worker._set_accepting(False)
    dispatcher.other.join()
    assert not errors
    # A worker that stops takes nobody any more; any other goes on.
    assert worker._accepting is not stopping
    assert dispatcher.listening == (set() if stopping else {LISTENER})
