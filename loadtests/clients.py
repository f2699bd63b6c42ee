"""Provide HTTP clients that are so fast that they do not limit the server: raw, wrk and h2load.

raw() is a client in Python. It reads headers with the code of the tests. It receives bodies into
one large buffer, and only looks for their end. A body with a Content-Length ends after that many
bytes. A chunked body ends when the received bytes end with the last chunk. So no payload may
contain the bytes of the last chunk, but even a million chunks cost nothing. Any other body ends
with the connection.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from tests.support import http
from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Address, temporary_folder
from wsgifast.commands.client import unverified_tls

from .harness.tables import Client, Task

# The size of a receive. It is larger than the socket's buffer, so one call receives all waiting
# bytes.
RECEIVE_BYTES = 1 << 20
TIMEOUT_S = 30.0
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class BadResponse(Exception):
    """A response is wrong. The message says what the client has received."""


class NoResponse(BadResponse):
    """The connection was closed before any byte of the response."""


class Connection:
    """A client that sends the same request again and again, on one connection at a time.

    :param headers: header lines to add to the request.
    :param expected: the size of each body in bytes. None to accept any size.
    :param receive_bytes: the size of one receive.
    :param look: a function that gets each piece of a body with a Content-Length, and the offset of
        the piece.
    :param timeout_s: the time limit for each receive in seconds.
    """

    def __init__(
        self,
        address: Address,
        path: str,
        headers: Sequence[str] = (),
        *,
        expected: int | None = None,
        receive_bytes: int = RECEIVE_BYTES,
        look: Callable[[memoryview, int], None] | None = None,
        tls: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        host, port = address
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", *headers, "", ""]
        self._request = "\r\n".join(lines).encode("latin-1")
        self._address = address
        self._expected = expected
        self._buffer = memoryview(bytearray(receive_bytes))
        self._look = look
        self._tls = unverified_tls() if tls else None
        self._timeout_s = timeout_s
        self._connection: http.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self) -> int:
        """Send a request. Return the size of the payload.

        The connection is opened if necessary, and closed after an error.

        :raises BadResponse: if the response is wrong.
        :raises OSError: if the connection fails.
        """
        is_reusable = False
        try:
            if self._connection is None:
                self._connection = http.Connection(
                    self._address, tls=self._tls, timeout=self._timeout_s
                )
                self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            size, is_reusable = self._exchange(self._connection)
        finally:
            if not is_reusable:
                self.close()
        return size

    def _exchange(self, connection: http.Connection) -> tuple[int, bool]:
        """Return the size of the payload, and whether the connection stays open."""
        begun = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(self._request)
            begun = connection.stream.peek(1)
        if not begun:
            raise NoResponse("closed without a response")
        try:
            headers = connection.read_headers()
        except EOFError:
            raise BadResponse("incomplete headers") from None
        except (AssertionError, ValueError) as error:
            raise BadResponse(str(error)) from None
        is_reusable = headers.keep_alive
        length = headers.header("Content-Length")
        if length is not None:
            size = int(length)
            self._receive_exactly(connection.stream, size, headers.status)
        elif headers.header("Transfer-Encoding"):
            size = self._receive_chunks(connection.stream, headers.status)
            if self._expected is not None and size >= self._expected:
                size = self._expected
        elif headers.status in (204, 304):
            size = 0
        else:
            size, is_reusable = 0, False
            while received := connection.stream.readinto1(self._buffer):
                size += received
        if headers.status >= 400:
            raise BadResponse(f"status {headers.status}")
        if self._expected is not None and size != self._expected:
            raise BadResponse(
                f"status {headers.status} with {size} bytes instead of {self._expected}"
            )
        return size, is_reusable

    def _receive_exactly(self, stream: BufferedReader, size: int, status: int) -> None:
        buffer, look, done = self._buffer, self._look, 0
        while done < size:
            received = stream.readinto1(buffer[: size - done])
            if not received:
                raise BadResponse(f"status {status}, then closed after {done} of {size} bytes")
            if look is not None:
                look(buffer[:received], done)
            done += received

    def _receive_chunks(self, stream: BufferedReader, status: int) -> int:
        """Read up to the last chunk. Return the number of received bytes, including the framing."""
        total = 0
        tail = b"\r\n"  # an empty body has no CR LF before its last chunk
        while not tail.endswith(_LAST_CHUNK):
            received = stream.readinto1(self._buffer)
            if not received:
                raise BadResponse(f"status {status}, then closed in the middle of a chunked body")
            total += received
            tail = (tail + bytes(self._buffer[max(0, received - 8) : received]))[-8:]
        return total


def raw(
    *, connections: int = 1, receive_bytes: int = RECEIVE_BYTES, requests: int = 1_000_000
) -> Client:
    """Return a client that sends one GET after another on each connection.

    If the size of the payload is unknown, the framing of chunks counts as payload.

    :param connections: the number of connections, each in its own thread. Use one for large bodies.
        For small bodies, this client gets about 20,000 responses/s. Use wrk for higher rates.
    :param receive_bytes: the size of one receive. Real clients use 8 KiB to 256 KiB.
    :param requests: the maximum number of requests on each connection.
    """

    def run(task: Task) -> Load:
        times: list[float] = []
        sizes: list[int] = []
        errors: Counter[str] = Counter()
        begun, cpu = time.perf_counter(), time.process_time()

        def send_requests() -> None:
            connection = Connection(
                task.address,
                task.path,
                task.headers,
                expected=task.body_bytes,
                receive_bytes=receive_bytes,
                tls=task.tls,
            )
            with contextlib.closing(connection):
                for _ in range(requests):
                    requested = time.perf_counter()
                    if requested >= begun + task.seconds:
                        break
                    try:
                        sizes.append(connection.ask())
                    except TimeoutError:
                        errors["no byte before the time-out"] += 1
                    except (BadResponse, OSError) as error:
                        errors[str(error)] += 1
                    else:
                        times.append((time.perf_counter() - requested) * 1e3)

        # The calling thread sends requests too. So Ctrl-C ends a run of one connection immediately.
        with ThreadPoolExecutor(max(1, connections - 1)) as pool:
            others = [pool.submit(send_requests) for _ in range(connections - 1)]
            send_requests()
            for each in others:
                each.result()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        ms = percentiles(times)
        return Load(len(times), errors.total(), sum(sizes), seconds, ms, dict(errors), cpu)

    return run


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` % of all values do not exceed (nearest rank).

    :param ascending: the sorted values, at least one.
    """
    rank = -(-len(ascending) * percent // 100)  # rounded up
    return ascending[max(0, int(rank) - 1)]


def percentiles(times_ms: Sequence[float]) -> dict[int, float]:
    """Return some percentiles of unsorted times. {} if there are no times."""
    ascending = sorted(times_ms)
    return {p: percentile(ascending, p) for p in (50, 95, 99)} if ascending else {}


# If h2load has not ended this time after its duration, it counts as blocked.
_H2LOAD_GRACE_S = 10.0
_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
# wrk calls this function once, at the end. Since there are no other functions, no Lua code runs
# during requests.
_REPORT = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{"requests":%d,"bytes":%d,"us":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,' ..
    '"status":%d,"p50":%f,"p95":%f,"p99":%f}\\n',
    summary.requests, summary.bytes, summary.duration, e.connect, e.read, e.write, e.timeout,
    e.status, latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""


def wrk(connections: int = 8) -> Client:
    """Return wrk, a client in C for high rates. It sends keep-alive GETs, for whole seconds."""

    def run(task: Task) -> Load:
        if shutil.which("wrk") is None:
            raise RuntimeError("wrk is not installed: make servers (apt-get install wrk)")
        seconds = max(1, round(task.seconds))
        headers = _header_options(task)
        with temporary_folder("wrk") as folder:
            script = folder / "report.lua"
            script.write_text(_REPORT)
            command = ["wrk", "-d", f"{seconds}s", "-c", str(connections), "-t", "1"]
            cpu = children_cpu_s()
            ran = subprocess.run(
                [*command, *headers, "-s", str(script), _url(task)],
                capture_output=True, text=True, timeout=seconds + 30,
            )  # fmt: skip
            cpu = children_cpu_s() - cpu
        if ran.returncode or "{" not in ran.stdout:
            raise RuntimeError(f"wrk failed with status {ran.returncode}: {ran.stdout}{ran.stderr}")
        report = json.loads(ran.stdout.strip().splitlines()[-1])
        kinds = ("connect", "read", "write", "timeout", "status")
        errors = {f"wrk: {kind}": int(report[kind]) for kind in kinds if report[kind]}
        good = report["requests"] - report["status"]
        # If the size of the payload is unknown, the number of bytes is that of wrk, which includes
        # headers and framing.
        size = report["bytes"] if task.body_bytes is None else good * task.body_bytes
        return Load(
            requests=good,
            failures=sum(errors.values()),
            body_bytes=size,
            seconds=report["us"] / 1e6,
            latency_ms={p: report[f"p{p}"] / 1e3 for p in (50, 95, 99)} if good else {},
            errors=errors,
            client_cpu_s=cpu,
        )

    return run


def h2load(connections: int = 10, streams: int = 10) -> Client:
    """Return h2load, a client in C that sends GETs over HTTP/2, without TLS by prior knowledge."""

    def run(task: Task) -> Load:
        with temporary_folder("h2load") as folder:
            length = f"--duration={max(1, round(task.seconds))}"
            return _run_h2load(task, folder, connections, streams, length, _url(task))

    return run


def page_loads(paths: Sequence[str]) -> Client:
    """Return a client that loads pages: on a new connection, h2load requests all paths at once.

    In the results, a request is a page load, including the connection and the TLS handshake.
    """

    def run(task: Task) -> Load:
        times: list[float] = []
        failures, size, cpu = 0, 0, 0.0
        end = time.monotonic() + task.seconds
        with temporary_folder("h2load") as folder:
            urls = folder / "urls"
            urls.write_text("".join(f"{_url(replace(task, path=path))}\n" for path in paths))
            count = len(paths)
            amounts = (f"--requests={count}", f"--input-file={urls}")
            while True:
                load = _run_h2load(task, folder, 1, count, *amounts)
                failures += load.requests < count
                times += [load.seconds * 1e3] * (load.requests == count)
                size, cpu = size + load.body_bytes, cpu + load.client_cpu_s
                if time.monotonic() >= end:
                    break
        return Load(
            requests=len(times),
            failures=failures,
            body_bytes=size,
            seconds=sum(times) / 1e3,
            latency_ms=percentiles(times),
            errors={"h2load: a page load failed": failures} if failures else {},
            client_cpu_s=cpu,
        )

    return run


def _header_options(task: Task) -> list[str]:
    return [part for header in task.headers for part in ("-H", header)]


def _url(task: Task) -> str:
    return f"{'https' if task.tls else 'http'}://{task.address[0]}:{task.address[1]}{task.path}"


def _run_h2load(task: Task, folder: Path, connections: int, streams: int, *arguments: str) -> Load:
    """Run h2load once.

    :param arguments: the URL or URLs, and the number of requests or the duration.
    """
    if shutil.which("h2load") is None:
        raise RuntimeError("h2load is not installed: apt-get install nghttp2-client")
    headers = _header_options(task)
    log = folder / "log"
    log.unlink(missing_ok=True)  # h2load appends to the file
    command = ["h2load", f"--log-file={log}", "-w24", "-W26", *headers]
    size = [f"--clients={connections}", f"--max-concurrent-streams={streams}"]
    cpu, begun = children_cpu_s(), time.monotonic()
    try:
        ran = subprocess.run(
            [*command, *size, *arguments],
            capture_output=True, text=True, timeout=task.seconds + _H2LOAD_GRACE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        # h2load waits for connections without a response, for example from gthread without a free
        # thread.
        seconds, text, waits = time.monotonic() - begun, "", 1
    else:
        found = re.search(r"finished in ([\d.]+)(m?s|us)", ran.stdout)
        if ran.returncode or found is None:
            raise RuntimeError(f"h2load failed with {ran.returncode}: {ran.stdout}{ran.stderr}")
        seconds, text, waits = float(found[1]) * _UNITS_S[found[2]], ran.stdout, 0
    cpu = children_cpu_s() - cpu
    # Each line has the start, the status and the duration. Times are in microseconds. If h2load was
    # killed, the last line may be incomplete.
    lines = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
    responses = [(line[1], int(line[2])) for line in lines if len(line) == 3 and line[2]]
    good = [us / 1e3 for status, us in responses if status == "200"]
    counted = {"h2load: status": len(responses) - len(good), "h2load: no end": waits}
    data = re.search(r"\((\d+)\) data", text)
    return Load(
        requests=len(good),
        failures=sum(counted.values()),
        body_bytes=int(data[1]) if data else len(good) * (task.body_bytes or 0),
        seconds=seconds,
        latency_ms=percentiles(good),
        errors={what: count for what, count in counted.items() if count},
        client_cpu_s=cpu,
    )


def children_cpu_s() -> float:
    """Return the CPU seconds of those child processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
