"""A benchmark that is ended in the middle leaves no server and no files behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.servers import ROOT, START_S, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_its_servers_end_with_it(number: signal.Signals, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "loadtests.field_reports",
        "--profile=release",
        "receive.sendall",
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        benchmark = psutil.Process(process.pid)
        # Once it has a connection to its server, it measures.
        wait_for(lambda: benchmark.children() and _connected(benchmark), "it runs", START_S)
        servers = benchmark.children(recursive=True)
        process.send_signal(number)
        process.wait(START_S)
    wait_for(lambda: not any(map(_runs, servers)), f"{servers} have ended")
    if number != signal.SIGKILL:  # which leaves no time to clean up
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_files_of_one_without_a_server_end_with_it(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "loadtests.static_files", "--seconds=30", "static.start"],
        cwd=ROOT,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_for(lambda: list(tmp_path.glob("*/10/0/0.txt")), "it has its files", START_S)
        process.send_signal(number)
        assert process.wait(START_S) != 0
    assert list(tmp_path.iterdir()) == []


def _connected(process: psutil.Process) -> bool:
    return any(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections())


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
