"""The data of the doctor: endpoints, recordings of their responses, findings and reports."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...bodies.slow_shapes import Chunks
from ...checks import Interface
from ...http.fields import parse_length
from ...http.framing import list_members
from ...http.headers import Headers

Severity = Literal["wrong", "slow", "info"]
# In the order in which they are shown.
SEVERITIES: tuple[Severity, ...] = ("wrong", "slow", "info")


@dataclass(frozen=True)
class Endpoint:
    """One thing to request from an app.

    :ivar url: path and query, as in a request line.
    :ivar name: the framework's own pattern, such as "/media/{name}", or the path.
    :ivar source: where it was found: "flask", "command line", "access log", ...
    :ivar evidence: the reason why a request changes no data, or "" if there is none.
    :ivar requests: how often it occurs in an access log, or None without a log.
    """

    url: str
    name: str
    source: str
    method: str = "GET"
    evidence: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    requests: int | None = None
    scheme: str = "http"


# The evidence of endpoints that say nothing about the app's own views.
OF_A_FILE = "a file of a folder that the app serves"
OF_FASTAPI = "FastAPI's own page of the app's routes"


@dataclass(frozen=True)
class Unreached:
    """An endpoint that was not examined, and why."""

    name: str
    reason: str
    method: str = "GET"


# Endpoints that were found, and among them those that cannot be requested.
Found = list[Endpoint | Unreached]


@dataclass(frozen=True)
class Cost:
    """The cost of one response, including the app's own work: the minimum of several runs.

    :ivar cpu_s: of the thread (ASGI: of the event loop) that runs the app and sends.
    :ivar wall_s: from the call of the app to the last byte in the socket, with a quick client.
    :ivar sends: the number of system calls that send.
    """

    cpu_s: float
    wall_s: float
    sends: int


@dataclass(frozen=True)
class CompressedSize:
    """The size of a body after compression, and the CPU time for it."""

    bytes: int
    cpu_s: float


# The bytes that servers send before they wait for the client: ten packets (RFC 6928). A smaller
# body arrives no sooner if it is compressed, or replaced by a 304.
LARGE_BYTES = 10 * 1460
# How much of a body is stored, to be read as a page or an OpenAPI document, which have a few MB at
# most, and to be compressed.
MAX_STORED_BYTES = 8 * 1024 * 1024


@dataclass
class Recording:
    """One response, as a server sees it.

    :ivar status: the code. None if the app sent none.
    :ivar returned: the class of the app's result, as in "list" or "werkzeug.wsgi.Closing...".
        for ASGI "messages".
    :ivar chunks: as the app produced them, before any repair.
    :ivar body: its first MAX_STORED_BYTES.
    :ivar digest: of all that was sent of the body.
    :ivar sent_bytes: of the body.
    :ivar from_threads: ASGI: how often the app's coroutine waited for another thread, or nearly so.
    :ivar sent_as: environ["wsgifast.sent_as"]. None where the app was not wrapped.
    :ivar app_s: seconds spent in the app, including its iterator.
    :ivar file_bytes: the size of the file that the app opened meanwhile and that is the body.
    :ivar by_sendfile: body bytes sent by sendfile.
    :ivar blocked_s: ASGI: the longest turn of the event loop, in seconds. If that is long, the
        minimum of several requests.
    :ivar blocks_thread: whether the app's thread had to wait for a client that does not read.
        None if not tested.
    :ivar problem: how the app violated PEP 3333 or ASGI. None if it did not.
    :ivar error: the exception that the app raised, and where.
    :ivar timed_out: the response was not complete within the time limit.
    """

    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    returned: str = ""
    chunks: Chunks = field(default_factory=Chunks)
    body: bytearray = field(default_factory=bytearray)
    digest: Any = field(default_factory=hashlib.blake2b)
    sent_bytes: int = 0
    from_threads: int = 0
    sent_as: str | None = None
    app_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    sends: int = 0
    file_bytes: int | None = None
    by_sendfile: int = 0
    blocked_s: float = 0.0
    blocks_thread: bool | None = None
    problem: str | None = None
    error: str | None = None
    timed_out: bool = False

    def header(self, name: str) -> str | None:
        """The first value of a header. None if it was not sent."""
        return Headers(self.headers).get(name.lower())

    def sent(self, data: bytes) -> None:
        """Record sent bytes of the body, and store up to MAX_STORED_BYTES of them."""
        self.digest.update(data)
        self.sent_bytes += len(data)
        self.body += data[: MAX_STORED_BYTES - len(self.body)]

    @property
    def coding(self) -> str:
        """The Content-Encoding, such as "gzip". "" for none."""
        names = list_members(self.header("Content-Encoding") or "")
        return ", ".join(name for name in names if name != "identity")

    @property
    def is_file(self) -> bool:
        """Whether the body is a file that was seen to be opened or sent."""
        return self.file_bytes is not None or self.by_sendfile > 0

    @property
    def declared(self) -> int | None:
        """The Content-Length, if it is valid."""
        value = self.header("Content-Length")
        return None if value is None else parse_length(value)

    @property
    def failed(self) -> bool:
        return bool(self.problem or self.error or self.timed_out)


@dataclass
class Observation:
    """Everything recorded of one endpoint.

    :ivar raw: the unwrapped app.
    :ivar wrapped: the app under WSGIFast or ASGIFast with their defaults.
    :ivar compressed: the unwrapped app, requested like by a browser, which accepts content
        codings. None if that was not tried. `wrapped_compressed` is the same for the wrapped app.
    :ivar compressed_sizes: by content coding, the compressed size of a large body that a browser
        gets uncompressed.
    :ivar costs: by "raw", "wrapped", and "coalesced" (WSGIFast(coalesce=True)), "sendfile" or
        "pathsend=True" (ASGIFast(pathsend=True) if it is not offered by default). Also
        `coded`, for a file that a browser gets compressed.
    :ivar changes: the differences of the wrapped app's response, each time that both were
        requested. In a few words, by "failure", "status", "coding", "body", "size", or "header ..."
        with its name.
    :ivar cut_short: it took so long that it was not requested as often as others.
    """

    endpoint: Endpoint
    raw: Recording
    wrapped: Recording
    compressed: Recording | None = None
    wrapped_compressed: Recording | None = None
    compressed_sizes: Mapping[str, CompressedSize] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    cut_short: bool = False


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, slow or worth knowing about an endpoint.

    :ivar id: stable, such as "WF003". `wsgifast doctor --explain WF003` explains it.
    :ivar what: the endpoint's response, in a few words.
    :ivar cost: such as "412 -> 46 ms", or "".
    :ivar fix: the remedy, in a few words.
    """

    id: str
    severity: Severity
    endpoint: Endpoint
    what: str
    cost: str
    fix: str
    saves_s: float = 0.0

    @property
    def key(self) -> str:
        """Identifies the finding in later runs, for baselines."""
        return f"{self.id} {self.endpoint.method} {self.endpoint.name}"


@dataclass
class Report:
    """One examination.

    :ivar app: the name of the examined app.
    :ivar framework: "flask", "django" and so on, or None if unknown.
    :ivar was_wrapped: the app had wsgifast's middleware around it, which was removed.
    :ivar findings: worst first, then those that would save the most.
    """

    app: str
    interface: Interface
    framework: str | None
    was_wrapped: bool = False
    observations: list[Observation] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unreached: list[Unreached] = field(default_factory=list)

    def of(self, *severities: Severity) -> list[Finding]:
        """The findings of these severities."""
        return [finding for finding in self.findings if finding.severity in severities]

    def reaches(self, level: Severity) -> bool:
        """Whether there is a finding of this severity, or a worse one."""
        return bool(self.of(*SEVERITIES[: SEVERITIES.index(level) + 1]))

    @property
    def bad(self) -> dict[tuple[str, str], Severity]:
        """The endpoints that are "wrong" or "slow", by method and URL."""
        worst = reversed(self.of("wrong", "slow"))
        return {(f.endpoint.method, f.endpoint.url): f.severity for f in worst}

    @property
    def good(self) -> int:
        """How many endpoints are neither."""
        bad = self.bad
        requested = [(seen.endpoint.method, seen.endpoint.url) for seen in self.observations]
        return sum(each not in bad for each in requested)

    def finish(self, silenced: Collection[str]) -> None:
        """Sort findings by severity, then by the seconds saved over all known requests.

        :param silenced: ids of findings to leave out.
        """

        def weight(finding: Finding) -> tuple[int, float, str]:
            saved = finding.saves_s * (finding.endpoint.requests or 1)
            return (SEVERITIES.index(finding.severity), -saved, finding.id)

        shown = [finding for finding in self.findings if finding.id not in silenced]
        self.findings = sorted(shown, key=weight)
