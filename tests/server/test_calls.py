"""The number of Python functions and files that FastWorker uses for a small request."""

from __future__ import annotations

import itertools
import math
import os
import socket
import statistics
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers import base

import wsgifast
from wsgifast.metrics.requests import RequestMetrics
from wsgifast.server import monitor
from wsgifast.workers import FastWorker
from wsgifast.workers.gunicorn_version import is_tested
from wsgifast.workers.metrics import ResponseRecorder

BODY = bytes(1024)
REQUEST = b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n"
# The first of these requests fill caches.
REQUESTS, FIRST = 60, 20
MAX_CALLS, MAX_FILES = 38, 14
# The most calls that metrics may add, and the most for health checks, shedding and deadlines
# together.
METRICS_CALLS = 2
OPERATORS_CALLS = 3


class Calls:
    """Record the functions that threads call, from one call of the app to the next."""

    def __init__(self) -> None:
        self.of_requests: list[list[CodeType]] = []
        self._under_way: list[CodeType] = []

    def on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._under_way.append(frame.f_code)

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.of_requests.append(self._under_way[:-1])  # without the app's own function
        self._under_way.clear()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "1024")])
        return [BODY]


@pytest.fixture
def has_metrics(request: pytest.FixtureRequest) -> bool:
    return bool(getattr(request, "param", False))


class Operated(FastWorker):
    """A worker with all settings of operators."""

    health_path = "/livez"
    ready_path = "/readyz"
    queue_timeout_s = 5
    request_timeout_s = 30


@pytest.fixture
def worker_class(request: pytest.FixtureRequest) -> type[FastWorker]:
    kind: type[FastWorker] = getattr(request, "param", FastWorker)
    return kind


@pytest.fixture
def calls(
    monkeypatch: pytest.MonkeyPatch, has_metrics: bool, worker_class: type[FastWorker]
) -> Calls:
    """Return the functions that FastWorker's threads call for requests on one connection, without
    an access log.
    """
    pytest.importorskip("httptools")
    # On a busy machine, each request would postpone the monitor's alarm.
    monkeypatch.setattr(monitor, "TICK_S", 60.0)
    calls = Calls()
    cfg = Config()
    cfg.set("threads", 2)
    worker = worker_class(0, os.getppid(), [], SimpleNamespace(), 30, cfg, Logger(cfg))
    with mock.patch.object(base.Worker, "init_process"):
        worker.init_process()
    worker.wsgi = calls.app
    if has_metrics:
        # Other tests have imported frameworks, and FastWorker would look for their patterns.
        monkeypatch.setattr("wsgifast.workers.metrics.FRAMEWORKS", frozenset())
        metrics = RequestMetrics()
        metrics.check_after = math.inf  # as if no batch of records were complete
        worker._responses = ResponseRecorder(metrics, worker.log)
    server = worker.server = worker.make_server()
    near, client = socket.socketpair()
    connection = server.connect(near, ("192.0.2.1", 4711), ("192.0.2.2", 80))
    assert connection is not None
    connection.begin()
    # The alarm is set once in half a tick. On a busy machine that would be once for each request.
    server.pool.monitor.guard_at = math.inf
    threading.setprofile(calls.on_event)
    try:
        server.pool.start()
        for _ in range(REQUESTS):
            client.sendall(REQUEST)
            data = b""
            while not data.endswith(BODY):
                data += client.recv(65536)
    finally:
        threading.setprofile(None)
        server.pool.stop()
        for member in server.pool.members:
            assert member.thread is not None
            member.thread.join()
        client.close()
        near.close()
        worker.tmp.close()
    return calls


# With an untested gunicorn, gunicorn's own parser reads the requests.
needs_tested_gunicorn = pytest.mark.skipif(
    not is_tested(), reason="this gunicorn is not tested, so that httptools parses nothing"
)


@needs_tested_gunicorn
def test_small_request_takes_few_calls_in_few_files(calls: Calls) -> None:
    found = calls.of_requests[FIRST:]
    # Now and then a request makes one more call, for instance when the clock reaches the next
    # second.
    usual = statistics.mode(map(len, found))
    called = next(each for each in found if len(each) == usual)
    files = [os.path.relpath(each.co_filename, Path(wsgifast.__file__).parent) for each in called]
    hops = sum(before != after for before, after in itertools.pairwise(files))
    print(f"{len(called)} calls in {len({*files})} files, {hops} hops")
    for file, each in zip(files, called, strict=True):
        print(f"    {file}: {each.co_name}")
    assert len(called) <= MAX_CALLS
    assert len({*files}) <= MAX_FILES


@needs_tested_gunicorn
@pytest.mark.parametrize("has_metrics", [True], indirect=True)
def test_metrics_of_small_request_take_two_calls(calls: Calls) -> None:
    usual = statistics.mode(map(len, calls.of_requests[FIRST:]))
    assert usual <= MAX_CALLS + METRICS_CALLS


@pytest.mark.parametrize("worker_class", [Operated], indirect=True)
def test_operators_options_take_at_most_three_calls(calls: Calls) -> None:
    usual = statistics.mode(map(len, calls.of_requests[FIRST:]))
    print(usual)
    assert usual <= MAX_CALLS + OPERATORS_CALLS
