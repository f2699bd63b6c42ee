"""Clients that upload, and look at the server's memory."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path

from wsgifast.benchmark.load import Load, Task, family

from .clients import children_cpu_s
from .payloads import MIB, payload

# A round takes so long that it has failed.
GIVE_UP_S = 120.0
UPLOAD_BYTES = {False: 128 * MIB, True: 1024 * MIB}


def upload(task: Task) -> Load:
    """One upload a run; the answer is its size and its messages."""
    size = UPLOAD_BYTES[task.full]
    connection = http.client.HTTPConnection(*task.address, timeout=GIVE_UP_S)
    with contextlib.closing(connection):
        connection.request("GET", task.path)  # whatever is made once, is made
        connection.getresponse().read()
        memory = _most_memory(task.pid, reset=True)
        begun, cpu = time.perf_counter(), time.process_time()
        blocks = itertools.repeat(payload(MIB), size // MIB)
        connection.request("POST", task.path, blocks, {"Content-Length": str(size)})
        answer = connection.getresponse()
        text = answer.read().decode()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        more = _most_memory(task.pid) - memory
    return _uploaded(size, answer.status, text, seconds, cpu, more)


def upload_http2(task: Task) -> Load:
    """One upload a run over HTTP/2 with prior knowledge, by curl; the same answer."""
    if shutil.which("curl") is None:
        raise RuntimeError("curl is not installed: apt-get install curl (Debian, Ubuntu)")
    size = UPLOAD_BYTES[task.full]
    file = task.folder / "upload.bin"
    file.touch()
    os.truncate(file, size)  # a hole: what reading from a disk takes is not what is measured
    url = f"http://{task.address[0]}:{task.address[1]}{task.path}"
    command = ["curl", "--silent", "--show-error", "--http2-prior-knowledge"]
    # uvicorn's own never tells an app that a GET over HTTP/2 has no body.
    warm = [*command, "--data", "x", "--output", os.devnull, url]
    subprocess.run(warm, check=True, timeout=GIVE_UP_S)
    memory, cpu = _most_memory(task.pid, reset=True), children_cpu_s()
    ran = subprocess.run(
        [*command, "--request", "POST", "--upload-file", file,
         "--write-out", "\n%{http_version} %{http_code} %{time_total}", url],
        capture_output=True, text=True, timeout=GIVE_UP_S,
    )  # fmt: skip
    cpu, more = children_cpu_s() - cpu, _most_memory(task.pid) - memory
    text, _, told = ran.stdout.rpartition("\n")
    version, status, seconds = told.split()
    if version != "2":
        text = f"by HTTP/{version}: {ran.stderr or text}"
    return _uploaded(size, int(status), text, float(seconds), cpu, more)


def _uploaded(
    size: int, status: int, text: str, seconds: float, cpu_s: float, more_bytes: int
) -> Load:
    """:param text: the answer: the size, and in how many messages it came."""
    received, _, messages = text.partition(" ")
    good = status == 200 and received == str(size)
    return Load(
        requests=int(good),
        failures=int(not good),
        body_bytes=size if good else 0,
        seconds=seconds,
        latency_ms=dict.fromkeys((50, 95, 99), seconds * 1000.0),
        errors={} if good else {f"{status} {text[:80]}": 1},
        client_cpu_s=cpu_s,
        facts={"messages": float(messages) if good else float("nan"), "MiB more": more_bytes / MIB},
    )


def _most_memory(pid: int, *, reset: bool = False) -> int:
    """The most memory that a server and its workers have had since the last reset."""
    most = 0
    for one in family(pid):
        if reset:
            Path(f"/proc/{one.pid}/clear_refs").write_text("5")  # proc(5)
        status = Path(f"/proc/{one.pid}/status").read_text()
        most += int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return most
