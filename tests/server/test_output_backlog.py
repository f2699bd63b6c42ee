"""What an output queue keeps for a slow client: in memory, in temporary files, and for how long."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
import tracemalloc
from typing import Any

import pytest

from tests.server.near_output import CONTENT, SIZE, blocks, content, file, in_quick_succession, near
from tests.server.output_bench import Near, receive_in_turn, rules
from tests.support.descriptors import open_descriptors
from wsgifast.server import backlog, sending

__all__ = ["content", "file", "in_quick_succession", "near"]


def test_output_beyond_the_memory_waits_in_temporary_files(content: int) -> None:
    warnings: list[str] = []
    shared = rules(memory_bytes=20 * len(CONTENT), warnings=warnings)
    clients = [Near(shared) for _ in range(6)]
    descriptors = open_descriptors()
    try:
        for client in clients:
            client.queue.write_all([b"head", *[CONTENT] * 10])
            assert client.queue.draining
        assert shared.memory.used_bytes <= 20 * len(CONTENT)
        assert len(open_descriptors() - descriptors) >= 4  # two are in memory
        assert len(warnings) == 1
        assert f"more than {20 * len(CONTENT)} bytes" in warnings[0]
        for client in clients:
            assert receive_in_turn(client, 4 + 10 * len(CONTENT)) == b"head" + 10 * CONTENT
            client.queue.reset()
        assert shared.memory.used_bytes == 0
        assert open_descriptors() <= descriptors
    finally:
        for client in clients:
            client.close()


def test_what_stays_for_its_last_bytes_counts_whole() -> None:
    shared = rules()
    near = Near(shared)
    try:
        near.queue.write(bytes(SIZE))
        near.receive(SIZE - near.queue.bytes_left())
        near.queue.on_writable()
        assert 0 < near.queue.bytes_queued < SIZE
        assert shared.memory.used_bytes == SIZE
    finally:
        near.close()
    assert shared.memory.used_bytes == 0


def test_an_answer_of_the_usual_size_stays_in_memory(content: int) -> None:
    shared = rules(memory_bytes=0)
    near = Near(shared)
    descriptors = open_descriptors()
    try:
        near.queue.write_file(b"", content, 0, len(CONTENT))
        near.queue.write(bytes(10_000))
        assert shared.memory.used_bytes == 10_000
        assert len(open_descriptors() - descriptors) == 1
        near.queue.write(bytes(10_000))  # and now it is in a file, in one run with what follows
        near.queue.write(bytes(10_000))
        assert shared.memory.used_bytes == 10_000
        assert len(open_descriptors() - descriptors) == 2
        assert receive_in_turn(near, len(CONTENT) + 30_000) == CONTENT + bytes(30_000)
    finally:
        near.close()
    assert shared.memory.used_bytes == 0


@pytest.mark.parametrize("full", [False, True])
def test_where_no_temporary_file_can_be_written_output_stays_in_memory(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(errno.ENOSPC if full else errno.EMFILE, "no room")

    warnings: list[str] = []
    shared = rules(memory_bytes=0, warnings=warnings)
    near = Near(shared)
    monkeypatch.setattr(*((os, "pwrite") if full else (tempfile, "TemporaryFile")), refuse)
    descriptors = open_descriptors()
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    try:
        for seconds, times in ((0, 1), (5, 1), (5, 2)):
            now[0] += seconds
            near.queue.write_all([CONTENT] * 5)
            # Once for each is too often: the log may be on the same disk.
            assert [line[-7:] for line in warnings].count("no room") == times
        assert receive_in_turn(near, 15 * len(CONTENT)) == 15 * CONTENT
        near.queue.reset()
        assert open_descriptors() <= descriptors
    finally:
        near.close()
    assert shared.memory.used_bytes == 0


def test_a_generator_over_the_limit_still_waits_for_its_client() -> None:
    """A temporary file is no way around `ahead_bytes`: a generator may have no end."""
    near = Near(rules(memory_bytes=0, ahead_bytes=100_000))
    try:
        while near.queue.bytes_queued <= 100_000:
            near.queue.write(bytes(50_000))
        written = threading.Event()

        def write() -> None:
            near.queue.write(b"end")
            written.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert not written.wait(0.05)
        while not written.is_set():
            near.receive_all_there_is()
            if near.queue.draining:
                near.queue.on_writable()
        writer.join()
    finally:
        near.close()


def test_a_writer_that_may_runs_ahead_into_a_temporary_file() -> None:
    shared = rules(ahead_bytes=100_000)
    near = Near(shared)
    descriptors = open_descriptors()
    try:
        near.queue.may_run_ahead = True
        for block in blocks(20_000):
            near.queue.write(block)  # does not wait
            assert shared.memory.used_bytes <= 250_000
        assert near.queue.bytes_queued > 10_000_000
        assert shared.memory.disk.used_bytes > 10_000_000
        assert len(open_descriptors() - descriptors) == 1
        assert receive_in_turn(near, 20_000_000) == b"".join(blocks(20_000))
        near.queue.reset()
        assert not near.queue.may_run_ahead
        assert open_descriptors() <= descriptors
        assert shared.memory.used_bytes == shared.memory.disk.used_bytes == 0
    finally:
        near.close()


@pytest.mark.parametrize(
    "limits", [{"response_on_disk_bytes": 0}, {"responses_on_disk_bytes": 0}, {"disk": "full"}]
)
def test_a_writer_waits_where_no_file_may_take_more(
    limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if limits.pop("disk", None):
        monkeypatch.setattr(backlog, "_LEFT_FREE_BYTES", 1 << 60)
    warnings: list[str] = []
    near = Near(rules(ahead_bytes=100_000, warnings=warnings, **limits))
    near.queue.may_run_ahead = True
    ended = threading.Event()

    def write() -> None:
        for block in blocks(20_000):
            near.queue.write(block)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        received = bytearray()
        fails = "response_on_disk_bytes" not in limits
        while near.queue.bytes_queued < 100_000 or len(warnings) < fails:
            time.sleep(0.001)
        while len(received) < 20_000_000:
            assert near.queue.bytes_queued <= 250_000
            received += near.receive_all_there_is()
            if near.queue.draining:
                near.queue.on_writable()
        writer.join(60)
        assert ended.is_set()
        assert received == b"".join(blocks(20_000))
        assert len(warnings) == fails
    finally:
        near.close()


def test_a_temporary_file_that_has_been_sent_makes_room_for_the_next_one() -> None:
    shared = rules(ahead_bytes=100_000, response_on_disk_bytes=1_000_000)
    near = Near(shared)
    near.queue.may_run_ahead = True
    received = bytearray()

    def write() -> None:
        for block in blocks(50_000):
            near.queue.write(block)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while shared.memory.disk.used_bytes < 900_000:
            time.sleep(0.001)
        while len(received) < 50_000_000:
            received += near.receive_all_there_is()
            if near.queue.draining:
                near.queue.on_writable()
        writer.join(60)
        assert received == b"".join(blocks(50_000))
        assert shared.memory.disk.used_bytes <= 1_200_000
    finally:
        near.close()


def test_crumbs_wait_in_few_pieces_of_memory() -> None:
    near = Near(rules(ahead_bytes=1 << 30))
    try:
        near.queue.write(bytes(SIZE))
        tracemalloc.start()
        for _ in range(40_000):
            near.queue.write(b"crumb")
        assert tracemalloc.get_traced_memory()[0] < 3 * 200_000
    finally:
        tracemalloc.stop()
        near.close()


def test_a_client_must_take_some_bytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    near = Near(rules(timeout_s=60.0, least_bytes_per_s=500.0))
    queue = near.queue
    try:
        queue.write(bytes(SIZE))
        assert near.deadlines == [1060.0]
        left = queue.bytes_left()
        now += 59.0
        near.receive(50_000)
        queue.on_writable()
        # It has a minute for the next byte; and no longer than what it has taken has earned.
        assert near.deadlines[-1] == min(1119.0, 1060.0 + (left - queue.bytes_left()) / 500.0)
        now += 59.0
        queue.on_writable()  # which finds no room: nothing is earned
        assert near.deadlines[-1] <= 1060.0 + (left - queue.bytes_left()) / 500.0
        # What comes after everything was taken begins anew.
        receive_in_turn(near, SIZE - 50_000)
        assert not queue.draining
        queue.write(bytes(SIZE))
        assert near.deadlines[-1] == now + 60.0
    finally:
        near.close()


def test_the_time_of_the_disk_is_not_the_clients(
    content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    sendfile = os.sendfile

    def slow(out: int, fd: int, offset: int, size: int) -> int:
        nonlocal now
        now += 500.0
        return sendfile(out, fd, offset, size)

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(os, "sendfile", slow)
    near = Near(rules(timeout_s=60.0, least_bytes_per_s=500.0))
    try:
        near.queue.write(bytes(SIZE))
        near.queue.write_file(b"", content, 0, len(CONTENT))
        receive_in_turn(near, SIZE + len(CONTENT))
        assert all(deadline > 1000.0 for deadline in near.deadlines)
        assert near.deadlines[-1] >= now
    finally:
        near.close()
