"""A client that uploads: how fast, in how many messages, and what memory that takes."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

from .bench import Client, Load, Task, family
from .shapes import MIB, payload

__all__ = ["FIELD", "upload"]

UPLOAD_BYTES, SHORT_BYTES = 1024 * MIB, 128 * MIB
# A round takes so long that an upload has failed.
GIVE_UP_S = 120.0
# Of a form: its only field, a file.
FIELD = "file"
_BOUNDARY = b"a-boundary-of-the-load-tests"
_BEFORE = b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="upload.bin"\r\n\r\n' % (
    _BOUNDARY,
    FIELD.encode(),
)
_AFTER = b"\r\n--%b--\r\n" % _BOUNDARY


def upload(*, form: bool = False) -> Client:
    """One upload a run, 1 GiB of it for publication; the answer is its size and its messages.

    :param form: as a file of multipart/form-data.
    """
    before, after = (_BEFORE, _AFTER) if form else (b"", b"")

    def run(task: Task) -> Load:
        size = UPLOAD_BYTES if task.full else SHORT_BYTES
        headers = {"Content-Length": str(len(before) + size + len(after))}
        if form:
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
        connection = http.client.HTTPConnection(*task.address, timeout=GIVE_UP_S)
        try:
            connection.request("GET", task.path)  # whatever is made once, is made
            connection.getresponse().read()
            memory = _memory(task.pid, reset=True)
            begun, cpu = time.perf_counter(), time.process_time()
            connection.request("POST", task.path, blocks(size), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            more = _memory(task.pid) - memory
        finally:
            connection.close()
        received, _, messages = text.partition(" ")
        good = answer.status == 200 and received == str(size)
        return Load(
            requests=int(good),
            failures=int(not good),
            body_bytes=size if good else 0,
            seconds=seconds,
            latency_ms=dict.fromkeys((50, 95, 99), seconds * 1000.0),
            errors={} if good else {f"{answer.status} {text[:80]}": 1},
            client_cpu_s=cpu,
            facts={"messages": float(messages or "nan"), "MiB more": more / MIB},
        )

    def blocks(size: int) -> Iterator[bytes]:
        block = payload(MIB)
        yield before
        for _ in range(size // MIB):
            yield block
        yield after

    return run


def _memory(pid: int, *, reset: bool = False) -> int:
    """The most memory that a server and its workers have had since the last reset."""
    most = 0
    for one in family(pid):
        if reset:
            Path(f"/proc/{one.pid}/clear_refs").write_text("5")  # proc(5)
        status = Path(f"/proc/{one.pid}/status").read_text()
        most += int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return most
