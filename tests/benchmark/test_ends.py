"""A benchmark that is ended in the middle leaves no process behind, and no files if possible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.servers import ROOT, START_S, wait_for

pytestmark = pytest.mark.long


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_killed_benchmark_ends_its_servers(number: signal.Signals, tmp_path: Path) -> None:
    app = "tests.benchmark.apps:app"
    command = [sys.executable, "-m", "wsgifast", "bench", app, "--seconds=60"]
    command += [f"--report={tmp_path / 'report'}"]
    files = tmp_path / "files"
    files.mkdir()
    # Coverage is off: its handler of SIGTERM would replace the benchmark's own.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_PROCESS_")}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environ, "TMPDIR": str(files)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Under nohup the signal would be ignored.
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        try:
            benchmark = psutil.Process(process.pid)
            wait_for(lambda: _has_server(benchmark), "it has started a server", interval=0.1)
            servers = benchmark.children(recursive=True)
            process.send_signal(number)
            process.wait(START_S)
        finally:
            process.kill()
    wait_for(lambda: not any(map(_runs, servers)), f"{servers} have ended")
    assert not list(tmp_path.glob("report*"))
    if number != signal.SIGKILL:  # this leaves no time to clean up
        assert list(files.iterdir()) == []


def _has_server(benchmark: psutil.Process) -> bool:
    children = benchmark.children()
    try:
        connections = [each for child in children for each in child.net_connections()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # a process that has reported the kind of the app, and is ending
    return any(each.status == psutil.CONN_LISTEN for each in connections)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("is_connected", [False, True])
def test_benchmark_ends_if_a_worker_of_locust_dies(is_connected: bool, tmp_path: Path) -> None:
    app = "tests.benchmark.apps:app"
    command = [sys.executable, "-m", "wsgifast", "bench", app, "--seconds=60", "--processes=2"]
    command.append(f"--report={tmp_path / 'report'}")
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            benchmark = psutil.Process(process.pid)
            wait_for(lambda: _workers(benchmark), "a worker has started", interval=0.02)
            if is_connected:
                wait_for(lambda: _is_loaded(benchmark), "a worker sends requests", interval=0.1)
            _workers(benchmark)[0].kill()
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 2
    assert "workers has ended" in said


def _workers(benchmark: psutil.Process) -> list[psutil.Process]:
    words = {"worker", "wsgifast.commands.bench.locust_process"}
    return [child for child in benchmark.children() if words <= _words(child)]


def _words(process: psutil.Process) -> set[str]:
    try:
        return set(process.cmdline())
    except psutil.NoSuchProcess:
        return set()  # it has just ended


def _is_loaded(benchmark: psutil.Process) -> bool:
    """Return whether a worker has a connection to a server beside the one to its master."""
    return any(len(each.net_connections("tcp")) > 1 for each in _workers(benchmark))
