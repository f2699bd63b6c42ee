"""Runs of a client against a server, and single requests to compare the responses."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...checks import needs
from ...errors import ConfigurationError
from ..client import HTTPClient, NoResponse, decoded, unverified_tls
from .processes import HOST, Address

with needs("wsgifast bench", "psutil", "bench"):
    import psutil

# The longest wait for the end of a response. Apps without wsgifast may take seconds.
MAX_RESPONSE_S = 30.0
# A larger compressed body is compared as it was sent.
_DECODED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Task:
    """The requests of one run.

    :ivar seconds: no request starts after this time.
    :ivar address: the server's address. Its port is 0 if the run needs no server.
    :ivar pid: the server's process.
    :ivar headers: lines to add to each request, such as "Range: bytes=0-9".
    :ivar body_bytes: the size that every body must have. None allows any size.
    """

    path: str = "/"
    seconds: float = 1.0
    address: Address = (HOST, 0)
    pid: int = 0
    headers: tuple[str, ...] = ()
    body_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    """The result of one run.

    :ivar requests: the number of complete responses with a status below 400.
    :ivar failures: the number of other responses, and of requests without a response.
    :ivar body_bytes: the bytes of the good bodies, without headers and chunk framing.
    :ivar seconds: wall time of the run.
    :ivar latency_ms: milliseconds from sending a request to the last byte of its response, by
        percentile (50, 95, 99). Empty if no request succeeded.
    :ivar errors: counts by the messages of the errors.
    :ivar client_cpu_s: CPU seconds (user and system) of the client.
    :ivar facts: further figures. Each key is a name with its unit.
    :ivar server_cpu_s: CPU seconds of the server.
    """

    requests: int
    failures: int
    body_bytes: int
    seconds: float
    latency_ms: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    client_cpu_s: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
    server_cpu_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def cpu_us_per_request(self) -> float:
        """The server's CPU time in microseconds."""
        return self.server_cpu_s * 1e6 / self.requests if self.requests else 0.0


# A function that makes one run.
Client = Callable[[Task], Load]


@dataclass(frozen=True)
class FirstResponse:
    """The response to one plain request.

    :ivar body_bytes: the size of the body as it was sent.
    :ivar digest: of the decoded body, or of the sent body if it cannot be decoded.
    :ivar ok: whether the response was complete, with a status below 400.
    :ivar coding: the Content-Encoding, such as "gzip", or "".
    :ivar decoded_bytes: the size of the decoded body. None if it cannot be decoded.
    """

    body_bytes: int
    digest: str
    ok: bool
    coding: str = ""
    decoded_bytes: int | None = None


def request_once(task: Task, *, tls: bool = False) -> FirstResponse:
    """Make one request, on a new connection.

    :raises ConfigurationError: if the response does not end within MAX_RESPONSE_S.
    """
    digest, size, stored = hashlib.sha256(), 0, bytearray()

    def take(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)
        if len(stored) < _DECODED_BYTES:
            stored.extend(block)

    lines = [line.partition(":") for line in (*task.headers, "Connection: close")]
    headers = [(name, value.strip()) for name, _, value in lines]
    ok, coding = False, ""
    try:
        client = HTTPClient(
            *task.address,
            tls=unverified_tls() if tls else None,
            headers=headers,
            limit_s=MAX_RESPONSE_S,
        )
        response = client.ask(task.path, take=take)
        ok = response.status < 400 and not response.missing
        coding = (response.header("Content-Encoding") or "").lower().replace("identity", "")
    except NoResponse as error:
        if isinstance(error.__cause__, TimeoutError):
            raise ConfigurationError(
                f"{task.path}: the response did not end within {MAX_RESPONSE_S:.0f} s. Name a path "
                "whose responses end"
            ) from None
    # gzip stores a time, so compressed bodies may differ although the decoded bodies are equal.
    if coding and len(stored) == size and (body := decoded(bytes(stored), coding)) is not None:
        return FirstResponse(size, hashlib.sha256(body).hexdigest(), ok, coding, len(body))
    return FirstResponse(size, digest.hexdigest(), ok, coding, None if coding else size)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds (user and system) of a process and all its descendants.

    The time of ended workers is included, because the kernel adds it to their parent's. On Linux
    the time of running processes is exact. Elsewhere the kernel counts in steps of about 10 ms.

    :raises psutil.NoSuchProcess: if the process itself has ended.
    """
    while True:
        root, *children = family(pid)
        try:
            spent = sum(map(_own_and_reaped_s, (root, *children)))
        except psutil.NoSuchProcess:
            if not root.is_running():
                raise
            continue  # a worker has just ended, and its parent has its time
        if {*children} == {*family(pid)[1:]}:
            return float(spent)


def _own_and_reaped_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    try:
        # linux/posix-timers.h: the CPU clock of a process, by its pid. CPUCLOCK_SCHED is exact.
        own = time.clock_gettime((~process.pid << 3) | 2) if sys.platform == "linux" else None
    except OSError:  # the process has just ended, or belongs to another user
        own = None
    return float(sum(times[:2] if own is None else (own,)) + sum(times[2:4]))


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]
