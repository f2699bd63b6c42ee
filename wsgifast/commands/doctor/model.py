"""Define the data of the doctor: endpoints, recordings of responses, findings and reports.

A recording contains all that the doctor's server noticed about one response. An observation
contains the recordings and measurements of one endpoint. A finding is a problem or a fact that
follows from an observation.
"""

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
# The severities in the order of a report.
SEVERITIES: tuple[Severity, ...] = ("wrong", "slow", "info")


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of an app, and the request for it.

    :ivar url: the path and query in the request.
    :ivar name: the pattern of the framework, such as "/media/{name}", or the path.
    :ivar source: the source of the endpoint: "flask", "command line", "access log" and others.
    :ivar evidence: the reason why a request changes no data. "" if a request may change data.
    :ivar requests: the number of requests in an access log. None without a log.
    :ivar scheme: "http" or "https", for the environ or scope.
    """

    url: str
    name: str
    source: str
    method: str = "GET"
    evidence: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    requests: int | None = None
    scheme: str = "http"


# The evidence of an endpoint that is a static file, and not a view of the app.
STATIC_FILE = "a file of a folder that the app serves"


@dataclass(frozen=True)
class Unreached:
    """An endpoint that was not examined, and the reason."""

    name: str
    reason: str
    method: str = "GET"


# Endpoints to request, and endpoints that cannot be requested.
Found = list[Endpoint | Unreached]


@dataclass(frozen=True)
class Cost:
    """The cost of one response, including the work of the app.

    Each value is the minimum of several runs.

    :ivar cpu_s: the CPU seconds of the app's thread. For ASGI, the CPU seconds of the process.
    :ivar wall_s: the seconds from the call of the app until the last byte is in the socket.
    :ivar sends: the number of system calls that send data.
    """

    cpu_s: float
    wall_s: float
    sends: int


@dataclass(frozen=True)
class CompressedSize:
    """The size of a compressed body, and the CPU time of its compression."""

    bytes: int
    cpu_s: float


# A server sends this number of bytes in ten packets before it waits for the client (RFC 6928). If a
# body is smaller, neither compression nor a 304 response arrives sooner.
LARGE_BYTES = 10 * 1460
# The maximum number of bytes of a body to store. The doctor parses a stored body as an OpenAPI
# document, and measures its compression.
MAX_STORED_BYTES = 8 * 1024 * 1024


@dataclass
class Recording:
    """The recording of one response by the doctor's server.

    :ivar status: the status code. None if the app sent no response.
    :ivar returned: the class of the app's result, such as "list" or "werkzeug.wsgi.Closing...".
        For ASGI "messages".
    :ivar chunks: the sizes and times of the chunks that the app produced.
    :ivar body: the first bytes of the body, at most MAX_STORED_BYTES.
    :ivar digest: the hash of all sent bytes of the body.
    :ivar sent_bytes: the number of sent bytes of the body.
    :ivar from_threads: for ASGI: how often other threads woke the event loop.
    :ivar sent_as: the value of environ["wsgifast.sent_as"]. None if the app was not wrapped.
    :ivar wall_s: see :class:`Cost`. The same applies to `cpu_s` and `sends`.
    :ivar file_bytes: the size of the body, if the app opened a file of this size. Otherwise None.
    :ivar by_sendfile: the number of bytes of the body that sendfile() sent.
    :ivar blocked_s: for ASGI: the longest time in seconds for which the event loop was blocked. If
        this time is long, several requests are made, and their minimum counts.
    :ivar blocks_thread: whether the app's thread waited for a client that does not read. None if
        the doctor did not test this.
    :ivar problem: the violation of PEP 3333 or ASGI. None if there was no violation.
    :ivar error: the exception that the app raised, and its place.
    :ivar timed_out: whether the response was not complete within the time limit.
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
        """Return the first value of a header. None if the response does not have it."""
        return Headers(self.headers).get(name.lower())

    def sent(self, data: bytes) -> None:
        """Record sent bytes of the body, and store the first MAX_STORED_BYTES."""
        self.digest.update(data)
        self.sent_bytes += len(data)
        self.body += data[: MAX_STORED_BYTES - len(self.body)]

    @property
    def coding(self) -> str:
        """The Content-Encoding, such as "gzip". "" without a content coding."""
        names = list_members(self.header("Content-Encoding") or "")
        return ", ".join(name for name in names if name != "identity")

    @property
    def is_file(self) -> bool:
        """Whether the body is a file: the app opened it, or the server sent it."""
        return self.file_bytes is not None or self.by_sendfile > 0

    @property
    def declared(self) -> int | None:
        """The Content-Length. None if there is none, or it is malformed."""
        value = self.header("Content-Length")
        return None if value is None else parse_length(value)

    @property
    def failed(self) -> bool:
        return bool(self.problem or self.error or self.timed_out)


@dataclass
class Observation:
    """All recordings and measurements of one endpoint.

    :ivar raw: the response of the unwrapped app.
    :ivar wrapped: the response of the app in WSGIFast or ASGIFast.
    :ivar compressed: the response of the unwrapped app to a browser, which accepts content codings.
        None if there was no such request.
    :ivar wrapped_compressed: the response of the wrapped app to a browser. None if there was no
        such request.
    :ivar compressed_sizes: maps content codings to compressed sizes. Empty unless a browser gets a
        large body uncompressed.
    :ivar costs: maps contenders to costs: "raw", "wrapped", "coalesced" (WSGIFast(coalesce=True)),
        "sendfile" (on asgifast's protocols), "pathsend=True" (ASGIFast(pathsend=True), if that is
        not the default), and `coded` (a file that the app compresses for a browser).
    :ivar changes: the lasting differences between the responses of the raw and the wrapped app, in
        a few words. The keys are "failure", "status", "coding", "body", "size", or "header ..."
        with a name.
    :ivar cut_short: whether the endpoint got fewer requests than other endpoints, because its
        responses were slow.
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
    """A problem of an endpoint, or a fact that is useful to know.

    :ivar id: the id in the catalogue, such as "WF003". `wsgifast doctor --explain WF003` explains
        the finding.
    :ivar what: the observation about the response of the endpoint, in a few words.
    :ivar cost: the CPU time without and with the fix, such as "412 ms as it is -> 46 ms wrapped",
        or another effect. "" if the cost was not measured.
    :ivar fix: the remedy, in a few words.
    :ivar saves_s: the CPU seconds that the fix saves for each request.
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
        """The id and the endpoint, which --baseline compares with an earlier report."""
        return f"{self.id} {self.endpoint.method} {self.endpoint.name}"


@dataclass
class Report:
    """The result of one run of the doctor.

    :ivar app: the name of the examined app.
    :ivar framework: the name of the framework, such as "flask". None if unknown.
    :ivar was_wrapped: whether the app was in wsgifast's middleware. The doctor has removed the
        middleware.
    :ivar findings: the findings, sorted by severity and saved time after :meth:`finish`.
    :ivar unreached: the endpoints that were not examined.
    """

    app: str
    interface: Interface
    framework: str | None
    was_wrapped: bool = False
    observations: list[Observation] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unreached: list[Unreached] = field(default_factory=list)

    def of(self, *severities: Severity) -> list[Finding]:
        """Return the findings of these severities."""
        return [finding for finding in self.findings if finding.severity in severities]

    def reaches(self, level: Severity) -> bool:
        """Return whether there is a finding of this severity or a worse severity."""
        return bool(self.of(*SEVERITIES[: SEVERITIES.index(level) + 1]))

    @property
    def bad(self) -> dict[tuple[str, str], Severity]:
        """The worst severities of endpoints that are "wrong" or "slow", by method and URL."""
        worst = reversed(self.of("wrong", "slow"))
        return {(f.endpoint.method, f.endpoint.url): f.severity for f in worst}

    @property
    def good(self) -> int:
        """The number of requested endpoints that are neither "wrong" nor "slow"."""
        bad = self.bad
        requested = [(seen.endpoint.method, seen.endpoint.url) for seen in self.observations]
        return sum(each not in bad for each in requested)

    def finish(self, silenced: Collection[str]) -> None:
        """Sort the findings by severity, then by the seconds that a fix saves for all requests.

        :param silenced: the ids of findings to remove.
        """

        def weight(finding: Finding) -> tuple[int, float, str]:
            saved = finding.saves_s * (finding.endpoint.requests or 1)
            return (SEVERITIES.index(finding.severity), -saved, finding.id)

        shown = [finding for finding in self.findings if finding.id not in silenced]
        self.findings = sorted(shown, key=weight)
