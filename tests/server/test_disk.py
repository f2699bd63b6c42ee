"""The disk threads: devices that hang, errors, and the end of idle threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import pytest

from tests.support.calls import raising, recorded
from tests.support.servers import wait_for
from wsgifast.server import disk
from wsgifast.server.disk import DiskThreads

PATIENCE_S = 60.0


class Disks:
    """Disk threads, and jobs for them that hang until the test releases them."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.threads = DiskThreads(self.errors.append)
        self.go = threading.Event()
        self.done: list[str] = []
        self._changed = threading.Condition()
        self.hanging = 0

    def hang(self) -> None:
        with self._changed:
            self.hanging += 1
            self._changed.notify_all()
        self.go.wait(PATIENCE_S)
        self.note("hung")

    def note(self, name: str) -> None:
        with self._changed:
            self.done.append(name)
            self._changed.notify_all()

    def submit(self, device: int, name: str) -> None:
        self.threads.submit(device, lambda: self.note(name))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), self.done


@pytest.fixture
def disks() -> Iterator[Disks]:
    disks = Disks()
    yield disks
    disks.go.set()


def test_hanging_device_leaves_others_their_threads(disks: Disks) -> None:
    for _ in range(20):
        disks.threads.submit(1, disks.hang)
    disks.wait_for(lambda: disks.hanging == disk._PER_DEVICE)
    for number in range(20):
        disks.submit(2, f"2-{number}")
        disks.submit(3, f"3-{number}")
    disks.wait_for(lambda: len(disks.done) == 40)
    assert disks.hanging == disk._PER_DEVICE
    disks.go.set()
    disks.wait_for(lambda: disks.done.count("hung") == 20)


def test_error_in_a_job_ends_no_thread(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_PER_DEVICE", 1)
    error = RuntimeError("a defect")

    disks.threads.submit(1, raising(error))
    disks.submit(1, "next")
    disks.wait_for(lambda: disks.done == ["next"])
    # Another thread may have run the next job meanwhile.
    wait_for(lambda: disks.errors == [error], "the error is reported")


def test_disk_threads_end_when_idle(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_IDLE_S", 0.01)
    started = recorded(monkeypatch, threading.Thread, "start", lambda thread: thread)
    disks.submit(1, "first")
    disks.wait_for(lambda: disks.done == ["first"])
    assert started
    for thread in started:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    disks.submit(1, "second")
    disks.wait_for(lambda: disks.done == ["first", "second"])


def test_job_queued_as_a_thread_gives_up_is_run(disks: Disks) -> None:
    class Late(SimpleQueue[Callable[[], object]]):
        waits = 0

        def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], object]:
            self.waits += 1
            if self.waits == 1:
                raise Empty
            return super().get(block, timeout)

    disks.threads._devices[1] = device = disk._Device("test", 4, Late())
    device.jobs.put(lambda: disks.note("first"))
    device.unfinished = 1
    disks.submit(1, "second")
    disks.wait_for(lambda: disks.done == ["first", "second"])
    wait_for(lambda: not device.unfinished, "both are done", PATIENCE_S)
    assert device.threads == 1


def test_system_without_threads_fails_jobs(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            disks.submit(1, "lost")
    disks.submit(1, "done")
    disks.wait_for(lambda: disks.done == ["done"])
    # If a thread exists already, that thread runs the job later.
    disks.threads.submit(1, disks.hang)
    disks.wait_for(lambda: disks.hanging == 1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        disks.submit(1, "later")
    disks.go.set()
    disks.wait_for(lambda: "later" in disks.done)


def test_idle_disk_thread_keeps_no_job(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_IDLE_S", PATIENCE_S)

    def job() -> None:
        disks.note("done")

    seen = weakref.ref(job)
    disks.threads.submit(1, job)
    del job
    disks.wait_for(lambda: disks.done == ["done"])
    wait_for(lambda: seen() is None, "it is gone", PATIENCE_S / 2)
