"""The exporter's server: slow clients do not block others."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.calls import raising
from tests.support.http import Connection, get
from tests.support.servers import free_port, wait_for
from wsgifast.metrics import exporter, setup
from wsgifast.metrics.aggregation import Directory
from wsgifast.metrics.exporter import _MAX_CLIENTS, _app, _Exporter, _Handler, _Server
from wsgifast.metrics.health import is_alive, name_of_process
from wsgifast.metrics.setup import ADDRESS_FILE, Export
from wsgifast.sockets.options import Address


@contextlib.contextmanager
def serving(folder: Path, log: Callable[[str], object] = print) -> Iterator[Address]:
    """Return the address of an exporter's server. Its threads end with the server."""
    before = set(threading.enumerate())
    address = Address("127.0.0.1", free_port())
    server = _Server(address, _app(Directory(str(folder), own=True), log))
    try:
        yield address
    finally:
        server.close()
    wait_for(lambda: not {*threading.enumerate()} - before, "its threads end")


def fetched(address: Address, path: str) -> tuple[int, bytes]:
    response = get((address.host, address.port), path)
    return response.status, response.body


def test_silent_clients_do_not_delay_others(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with serving(tmp_path) as address:
        with contextlib.ExitStack() as silent:
            for _ in range(10):
                silent.enter_context(socket.create_connection((address.host, address.port)))
            for path in ("/metrics", "/livez", "/metrics?name[]=x"):
                assert fetched(address, path)[0] == 200
        wait_for(
            lambda: len({*threading.enumerate()} - before) == 1,
            "the threads of the silent ones end",
        )
    address.check_free()


def test_client_beyond_the_limit_replaces_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 600)
    before = set(threading.enumerate())
    with serving(tmp_path) as address, contextlib.ExitStack() as silent:
        clients = []
        for _ in range(_MAX_CLIENTS + 5):
            client = socket.create_connection((address.host, address.port), timeout=20)
            client.send(b"G")  # and no more bytes
            clients.append(silent.enter_context(client))
        assert fetched(address, "/livez")[0] == 200
        for client in clients[:6]:
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        wait_for(
            lambda: len({*threading.enumerate()} - before) <= _MAX_CLIENTS + 1,
            "the threads of those who gave way end",
        )


def test_exporter_that_cannot_read_the_address_goes_on(tmp_path: Path) -> None:
    export = Export(str(tmp_path), True, "127.0.0.1:1", name_of_process(os.getpid()))
    export.announce()
    exporter = _Exporter(export)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert exporter._is_wanted()
        assert is_alive(export.arbiter)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (tmp_path / ADDRESS_FILE).unlink()
    assert not exporter._is_wanted()


def test_top_compares_two_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as address:
        status, body = fetched(address, "/top?seconds=0.05")
        found = json.loads(body)
        assert (status, found["clients"], found["endpoints"]) == (200, [], [])
        assert found["requests_per_s"] is None
        for wrong in ("0", "-1", "301", "inf", "nan", "x"):
            status, body = fetched(address, f"/top?seconds={wrong}")
            assert (status, b"expected a number above 0, up to 300" in body) == (400, True)


def test_top_waits_for_few_clients_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_MAX_TOPS", 0)
    with serving(tmp_path) as address:
        status, body = fetched(address, "/top")
    assert (status, body) == (503, b"0 clients wait for /top: try again later\n")


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics?name[]=x", "/livez", "/clients", "/none", "/top"]
)
def test_exporter_sends_no_body_to_head(path: str, tmp_path: Path) -> None:
    with serving(tmp_path) as address, Connection((address.host, address.port)) as client:
        client.send(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        assert client.read_headers().version == "HTTP/1.0"
        assert client.read_to_end() == b""


@pytest.mark.parametrize("path", ["/metrics", "/metrics?name[]=x", "/top?seconds=0.01"])
def test_full_disk_fails_the_scrape(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    with serving(tmp_path, logged.append) as address:
        with monkeypatch.context() as full:
            full.setattr(setup, "_MIN_FREE_BYTES", 1 << 60)
            status, body = fetched(address, path)
        assert fetched(address, path)[0] == 200
    assert status == 500
    assert body.startswith(b"The workers cannot write their metrics: ")
    assert b"bytes are free for metrics" in body
    assert not logged  # the workers do the same


def test_file_without_values_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "counter_7.db").write_bytes(struct.pack("=i", 64) + b"\xff" * 60)
    logged: list[str] = []
    with serving(tmp_path, logged.append) as address:
        status, body = fetched(address, "/metrics")
        (tmp_path / "counter_7.db").unlink()
        assert fetched(address, "/metrics")[0] == 200
    assert status == 500
    assert b"counter_7.db" in body
    assert [line for line in logged if "counter_7.db" in line] == logged != []


def test_exporter_without_threads_answers_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as address, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError, "can't start new thread"))
        for _ in range(3):
            assert fetched(address, "/livez")[0] == 200
