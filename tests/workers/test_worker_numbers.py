"""The numbers that pre_fork hooks give to workers.

FastWorker finds them by the changes of a hook.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.workers.worker_numbers import NumberSearch, numbers_of

Hook = Callable[[Any, Any], None]
by_age: dict[int, int] = {}
by_worker: dict[Any, str] = {}
slots: dict[int, Any] = {}
listed: list[Any] = [None] * 3
counter = 0


def in_attribute(server: Any, worker: Any) -> None:
    worker.number = worker.age % 3


def in_environment(server: Any, worker: Any) -> None:
    os.environ["WORKER_NUMBER"] = f"worker-{worker.age % 3}"


def in_global(server: Any, worker: Any) -> None:
    global counter
    counter = worker.age % 3


def on_server(server: Any, worker: Any) -> None:
    server.number = worker.age % 3


def in_dict_by_age(server: Any, worker: Any) -> None:
    by_age[worker.age] = worker.age % 3


def in_dict_by_worker(server: Any, worker: Any) -> None:
    by_worker[worker] = str(worker.age % 3)


def in_dict_by_number(server: Any, worker: Any) -> None:
    slots[worker.age % 3] = worker


def in_list(server: Any, worker: Any) -> None:
    listed[worker.age % 3] = worker


def in_dict_of_server(server: Any, worker: Any) -> None:
    server.ages[worker.age] = worker.age % 3


HOOKS = [
    in_attribute, in_environment, in_global, on_server, in_dict_by_age, in_dict_by_worker,
    in_dict_by_number, in_list, in_dict_of_server,
]  # fmt: skip


class Worker:
    def __init__(self, age: int) -> None:
        self.age = age


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_NUMBER", "")


def workers_of(hook: Hook, *ages: int) -> list[Any]:
    server, search = SimpleNamespace(ages={}), NumberSearch()
    made = [Worker(age) for age in ages]
    for each in made:
        search.call(hook, server, each)
    return made


@pytest.mark.parametrize("hook", HOOKS)
def test_number_of_old_worker_is_recognized(hook: Hook) -> None:
    first, second, successor = workers_of(hook, 11, 12, 14)
    ((name, number),) = successor.hook_numbers.numbers.items()
    assert numbers_of(first)[name] == number
    assert numbers_of(second)[name] != number


def same_for_all(server: Any, worker: Any) -> None:
    os.environ["WORKER_NUMBER"] = "1"
    by_age[worker.age] = 0
    server.flag = 5


def test_same_value_for_all_workers_is_no_number() -> None:
    *_, last = workers_of(same_for_all, 21, 22, 23)
    assert last.hook_numbers.numbers == {}


READERS: dict[Hook, Callable[[Any], object]] = {
    in_environment: lambda worker: os.environ["WORKER_NUMBER"],
    in_dict_by_age: lambda worker: by_age.get(worker.age),
    in_dict_by_number: lambda worker: slots.get(worker.age % 3),
    in_list: lambda worker: listed[worker.age % 3],
}


@pytest.mark.parametrize("hook", READERS)
def test_number_removed_meanwhile_is_restored(hook: Hook) -> None:
    *_, last = workers_of(hook, 31, 32)
    before = READERS[hook](last)
    os.environ["WORKER_NUMBER"] = "another's"
    by_age.clear()
    slots.clear()
    listed[:] = [None] * 3
    assert READERS[hook](last) != before
    last.hook_numbers.restore()
    assert READERS[hook](last) == before
