"""FastWorker's class attributes under a wrong name; wrong values are in test_lifecycle."""

from __future__ import annotations

import pytest

from wsgifast.workers import FastWorker
from wsgifast.workers.options import InvalidWorkerOption, check_attributes


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("body_limit", "body_limit_bytes"),
        ("body_limit_byte", "body_limit_bytes"),
        ("send_timeout", "send_timeout_s"),
        ("buffered_bodies", "buffer_bodies"),
        ("responses_on_disk", "responses_on_disk_bytes"),
        ("max_rss", "max_rss_bytes"),
    ],
)
def test_misspelt_attribute_error_names_the_right_one(name: str, meant: str) -> None:
    worker = type("Worker", (FastWorker,), {name: 1})
    child = type("Child", (worker,), {"body_limit_bytes": 5})
    for each in (worker, child):
        with pytest.raises(InvalidWorkerOption) as caught:
            check_attributes(each, FastWorker)
        sentence = str(caught.value)
        assert sentence.startswith(f"FastWorker.{name}=1: ")
        assert f"is {meant} meant?" in sentence
        assert "body_limit_bytes, bodies_on_disk_bytes, responses_on_disk_bytes" in sentence


def test_attributes_of_subclass_with_other_names_are_accepted() -> None:
    class Mixin:
        body_limit = 5

    class Worker(Mixin, FastWorker):
        body_limit_bytes = 5
        send_timeout_s = 0.5
        memory_limit_bytes = 2**30
        db_timeout_s = 3
        health_path = "/health"
        timeout = 5
        send_timeouts: tuple[int, ...] = ()

        def send_timeout(self) -> None:
            """Of its own."""

    check_attributes(Worker, FastWorker)
