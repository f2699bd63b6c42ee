"""Each limit has the effects in the table of the options: client, error log and metric."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.workers.stepped_worker import (
    GET,
    HEAD_TIMEOUT_S,
    MakeStepped,
    SteppedWorker,
    echo,
    hello,
    large,
)
from wsgifast.metrics.catalogue import CATALOGUE
from wsgifast.server_options import OPTIONS, AtLimit
from wsgifast.workers.metrics import WorkerCollector

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
LONG_HEADERS = GET[:-2] + b"A: " + bytes(6000).replace(b"\0", b"a") + b"\r\n"
UNFINISHED = HEAD + b"Content-Length: 9\r\n\r\n1234"
LIMITS = {name: each.at_limit for name, each in OPTIONS.items() if each.at_limit is not None}

Reach = Callable[[SteppedWorker], bytes]


def sending(data: bytes, *, then_s: float = 0.0) -> Reach:
    """Send bytes, and perhaps let time pass. Return the bytes that the client receives."""

    def reach(stepped: SteppedWorker) -> bytes:
        client = stepped.connect(tcp=True)
        client.run(data)
        stepped.pass_time(then_s)
        return client.read_to_end()

    return reach


def connecting_twice(stepped: SteppedWorker) -> bytes:
    stepped.server.connections.clear()
    stepped.server._by_address._warn = stepped.log.warning
    stepped.connect()
    sock: Any = type("Socket", (), {"close": lambda self: None})()
    assert stepped.server.connect(sock, ("192.0.2.1", 1), ("192.0.2.2", 80)) is None
    return b""


# The app, the options of the worker, and how to reach the limit.
WAYS: dict[str, tuple[Any, dict[str, Any], Reach]] = {
    "body_limit_bytes": (
        echo, {"body_limit_bytes": 3}, sending(HEAD + b"Content-Length: 4\r\n\r\n1234"),
    ),
    "bodies_on_disk_bytes": (
        echo, {"bodies_on_disk_bytes": 1, "body_memory_bytes": 0},
        sending(HEAD + b"Content-Length: 4\r\n\r\n1234"),
    ),
    "head_limit_bytes": (hello, {"head_limit_bytes": 1000}, sending(LONG_HEADERS + b"\r\n")),
    "input_memory_bytes": (hello, {"input_memory_bytes": 0}, sending(LONG_HEADERS)),
    "head_timeout_s": (hello, {}, sending(GET[:-2], then_s=HEAD_TIMEOUT_S + 1)),
    "body_timeout_s": (hello, {"body_timeout_s": 5}, sending(UNFINISHED, then_s=6)),
    "check_host": (hello, {}, sending(b"GET / HTTP/1.1\r\n\r\n")),
    "connections_per_address": (hello, {"connections_per_address": 1}, connecting_twice),
    "send_timeout_s": (large, {"send_timeout_s": 5}, sending(GET, then_s=6)),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_limit_does_what_its_row_says(make_stepped: MakeStepped, name: str) -> None:
    app, attributes, reach = WAYS[name]
    stepped = make_stepped(app, attributes=attributes)
    limit = LIMITS[name]
    metric, labels = _metric(limit)
    collector = WorkerCollector(stepped.server)
    stepped.log.warnings.clear()  # the lines of the start
    received = reach(stepped)
    if status := re.search(r"\d+$", limit.client):
        assert received.startswith(f"HTTP/1.1 {status[0]} ".encode())
    line = re.compile(limit.log.replace("...", ".+"))
    assert [bool(line.search(each)) for each in stepped.log.warnings] == [True] * bool(limit.log)
    points = [each for each in collector.collect() if each.metric.name == metric]
    assert [each.value for each in points if set(each.labels) == labels] == [1]


@pytest.mark.parametrize("name", LIMITS)
def test_limit_names_a_metric_that_is_there(name: str) -> None:
    metric, labels = _metric(LIMITS[name])
    assert len(CATALOGUE[metric].labels) == len(labels)
    known = CATALOGUE[metric].known
    assert not known or labels <= set(known)


def _metric(limit: AtLimit) -> tuple[str, set[str]]:
    """Return the name of a row's metric, and the values of its labels."""
    return limit.metric.partition("{")[0], set(re.findall('"(.*?)"', limit.metric))
