"""close() of a body under gunicorn: its thread, and its calls when the worker ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.serving import fast_worker

pytestmark = pytest.mark.long

SIZE = 20_000_000  # more than the buffers contain


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


@contextlib.contextmanager
def stalled(server: LiveServer, notes: Path, *, seconds: float = 0) -> Iterator[Connection]:
    """A client that reads the headers of a large response, and then nothing."""
    with Connection(server.address, receive_buffer=4096) as connection:
        headers = [("X-File", str(notes)), ("X-Seconds", str(seconds))]
        connection.send_request(f"/noting/{SIZE}", headers=headers)
        connection.read_headers()
        assert server.get("/small/1").status == 200
        yield connection


def lines(notes: Path) -> list[str]:
    return notes.read_text().split()


@pytest.mark.parametrize("leaves", [False, True])
def test_body_is_closed_in_its_thread_at_either_end(notes: Path, leaves: bool) -> None:
    with fast_worker() as server:
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(stalled(server, notes)) for _ in range(12)]
            assert lines(notes) == []
            for reader in readers:
                assert leaves or len(reader.read(SIZE)) == SIZE
        wait_for(lambda: len(lines(notes)) == 12, "all are closed")
        assert lines(notes) == ["same"] * 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_worker_ending_cuts_off_and_closes_in_threads(notes: Path, number: signal.Signals) -> None:
    with fast_worker("--graceful-timeout=4") as server, contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(stalled(server, notes))
        assert server.stop(number) == 0
        assert lines(notes) == ["same"] * 6


def test_worker_that_ends_waits_for_close_that_is_due(notes: Path) -> None:
    with fast_worker("--graceful-timeout=60") as server:
        with stalled(server, notes, seconds=1.5) as reader:
            reader.read(SIZE)
        assert server.stop() == 0
        assert lines(notes) == ["same"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_worker_ending_closes_what_a_stuck_thread_owes(notes: Path, number: signal.Signals) -> None:
    with (
        fast_worker("--graceful-timeout=5", "--threads=1") as server,
        stalled(server, notes),
        Connection(server.address) as stuck,
    ):
        began = notes.with_name("began")
        stuck.send_request("/stuck", headers=[("X-File", str(began))])
        wait_for(began.exists, "the thread is stuck")
        assert not lines(notes)
        server.stop(number)
        assert lines(notes) == ["other"]


def test_worker_that_is_done_closes_when_all_is_sent(notes: Path) -> None:
    with (
        fast_worker("--max-requests=2", "--graceful-timeout=60") as server,
        stalled(server, notes) as reader,
    ):
        server.wait_for_log("Autorestarting")
        assert lines(notes) == []
        reader.read(SIZE)
        wait_for(lambda: lines(notes) == ["same"], "it is closed")


def test_streams_without_end_close_when_worker_ends(notes: Path) -> None:
    with fast_worker("--graceful-timeout=4") as server, Connection(server.address) as reader:
        reader.send_request("/noting_events", headers=[("X-File", str(notes))])
        reader.read_headers()
        assert server.stop() == 0
        assert lines(notes) == ["same"]


def test_stuck_thread_keeps_nothing_of_others(notes: Path) -> None:
    """Its close() is due, and its thread has run the next request for stuck_after_s."""
    with (
        fast_worker(
            "--threads=1", "--graceful-timeout=1", attributes={"stuck_after_s": 1.0}
        ) as server,
        stalled(server, notes) as reader,
        Connection(server.address) as stuck,
    ):
        stuck.send_request("/stuck")
        reader.read(SIZE)
        wait_for(lambda: lines(notes) == ["other"], "it is closed")
