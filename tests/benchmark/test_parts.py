"""Servers that fail, the first request to a contender, and Locust's users."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import brotli
import psutil
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from loadtests.harness.locust import Locust
from loadtests.harness.tables import Task
from wsgifast import ConfigurationError
from wsgifast.commands.bench import locust_client
from wsgifast.commands.bench.loads import FirstResponse, cpu_seconds, request_once
from wsgifast.commands.bench.locust_client import LocustFailed
from wsgifast.commands.bench.processes import (
    HOST,
    RunningServer,
    Server,
    ServerFailed,
    free_port,
    running_server,
)
from wsgifast.commands.bench.serving import served
from wsgifast.commands.client import decoded

APP = "tests.benchmark.apps:app"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The app without changes."""
    with running_server(served(APP)) as one:
        yield one


def test_taken_port_is_named(server: RunningServer) -> None:
    port = server.address[1]
    with (
        pytest.raises(ServerFailed, match=f"port {port} .* is taken"),
        running_server(Server(("python", "-c", "")), port=port),
    ):
        pass


def test_server_that_does_not_start_shows_its_log() -> None:
    failing = Server(("python", "-c", "import no_such_module"))
    with pytest.raises(ServerFailed, match="no_such_module"), running_server(failing):
        pass


INTERRUPTED = """
import os, signal, sys
from wsgifast.commands.bench.processes import started

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with started([sys.executable, "-c", "import time; time.sleep(60)"]):
        print("it goes on")
except KeyboardInterrupt:
    print("it ends")
"""


def test_interrupt_while_a_process_starts_is_not_lost() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("it ends\n", "")


LEFT_OPEN = """
from wsgifast.commands.bench.processes import started

one = started(["sleep", "60"])
print(one.__enter__().pid)
"""


def test_process_left_open_ends_with_python() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not psutil.pid_exists(int(ended.stdout))


def test_first_response_has_size_and_success(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(path: str, *headers: str) -> tuple[int, bool]:
        seen = request_once(Task(path, address=server.address, headers=headers))
        return seen.body_bytes, seen.ok

    assert at("/") == (6, True)
    assert at("/secret") == (0, False)
    assert at("/secret", "Cookie: a=b") == (6, True)
    assert at("/away") == (0, True)
    assert not at("/str")[1]
    monkeypatch.setattr("wsgifast.commands.bench.loads.MAX_RESPONSE_S", 0.2)
    with pytest.raises(ConfigurationError, match="/forever: the response did not end"):
        at("/forever")
    assert not request_once(Task(address=(HOST, free_port()))).ok


def test_locust_load_counts_responses_and_errors(server: RunningServer) -> None:
    def seen(
        path: str, *headers: str, seconds: float = 0.5, size: int | None = None, **posts: Any
    ) -> tuple[float | None, dict[str, int]]:
        """Return the bytes of each body, and the errors."""
        task = Task(path, seconds, server.address, headers=headers, body_bytes=size)
        load = locust.client(**posts)(task)
        assert load.client_cpu_s > 0
        return load.body_bytes / load.requests if load.requests else None, dict(load.errors)

    with Locust() as locust:
        assert seen("/") == (6, {})
        assert seen("/crumbs", size=2000) == (2000, {})
        assert seen("/bodiless") == (0, {})
        assert seen("/", size=5) == (6, {})  # of a declared length
        assert seen("/secret", "Cookie: a=b") == (6, {})
        assert seen("/none", seconds=30) == (None, {"status 404": 20})  # the server ends
        assert seen("/away") == (0, {})  # and no other server gets a request
        for form, response in (
            ("", f"application/octet-stream 10000 100 {bytes(13)!r}"),
            ("file", f"multipart/form-data 10152 100 {b'--between--' + bytes((13, 10))!r}"),
        ):
            assert seen("/read", posts=10_000, form=form) == (len(response), {})
        several = locust.client(users=3)(Task("/", 0.1, server.address))
        assert several.requests > 0
        assert 0 < several.latency_ms[50] <= several.latency_ms[99] < 10_000
        assert several.seconds > 0
    assert cpu_seconds(server.pid) > 0


class OldLocust(locust_client.Locust):
    module = "tests.benchmark.locusts"


def test_older_locust_reads_bodies_and_shows_errors(server: RunningServer) -> None:
    with OldLocust() as locust:
        client = locust.client(2)
        good = client(Task("/", 0.2, server.address))
        failed = client(Task("/", 60, server.address, headers=("a: b",)))
    assert (good.requests > 0, good.errors) == (True, {})
    assert (failed.requests, failed.errors) == (0, {"ValueError: the reason": 1})


def test_ended_locust_is_an_error_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locust, "module", "no_such_module")
    with pytest.raises(LocustFailed, match="no_such_module"), Locust() as locust:
        locust.start()


_CODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "X-GZIP": lambda body: gzip.compress(body[:3]) + gzip.compress(body[3:]),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda body: zstandard.compress(body[:3]) + zstandard.compress(body[3:]),
}


@given(st.binary(), st.lists(st.sampled_from(sorted(_CODERS)), max_size=3))
def test_compressed_body_is_decoded(body: bytes, codings: list[str]) -> None:
    compressed = body
    for coding in codings:
        compressed = _CODERS[coding](compressed)
    assert decoded(compressed, ", ".join(codings)) == body


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_cut_off_body_or_unknown_coding_is_not_decoded(coding: str) -> None:
    compressed = _CODERS[coding](b"a body" * 100)
    assert decoded(compressed[:-1], coding) is None
    assert decoded(b"no such thing", coding) is None
    assert decoded(compressed, f"{coding}, aes128gcm") is None


def test_first_response_has_digest_of_decoded_body(server: RunningServer) -> None:
    def at(coding: str) -> FirstResponse:
        task = Task("/coded", address=server.address, headers=(f"Accept-Encoding: {coding}",))
        return request_once(task)

    plain, packed, again = at("identity"), at("gzip"), at("gzip;q=0.5")
    assert [one.coding for one in (plain, packed, again)] == ["", "gzip", "gzip"]
    assert plain.body_bytes > packed.body_bytes
    assert plain.digest == packed.digest == again.digest
    assert plain.body_bytes == plain.decoded_bytes == packed.decoded_bytes
