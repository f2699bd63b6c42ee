"""What the doctor knows: endpoints, what came back from them, and what it makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..apps import Interface
from ..http import parse_length
from ..shapes.rule import Chunks

__all__ = [
    "Cost",
    "Endpoint",
    "FileSeen",
    "Finding",
    "Found",
    "Observation",
    "Recording",
    "Report",
    "Severity",
    "Unreached",
]

Severity = Literal["wrong", "slow", "info"]
# In the order in which they are shown.
SEVERITIES: tuple[Severity, ...] = ("wrong", "slow", "info")


@dataclass(frozen=True)
class Endpoint:
    """One thing to ask an app for.

    :ivar url: path and query, as in a request line.
    :ivar name: the framework's own pattern, such as "/media/{name}"; the path where there is none.
    :ivar source: who told of it: "flask", "command line", "access log", ...
    :ivar requests: how often an access log has it; None without a log.
    """

    url: str
    name: str
    source: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    requests: int | None = None


@dataclass(frozen=True)
class Unreached:
    """An endpoint that was not asked for, and why; nothing is left out in silence."""

    name: str
    reason: str
    method: str = "GET"


# Endpoints that were found, and those that cannot be asked for.
Found = tuple[list[Endpoint], list[Unreached]]


@dataclass(frozen=True)
class FileSeen:
    """A regular file that the app opened and that is the body, or a part of it.

    :ivar size: bytes.
    """

    path: str
    size: int


@dataclass(frozen=True)
class Cost:
    """What one response costs a server, the app's own work included; the least of the runs.

    :ivar cpu_s: of the thread (ASGI: of the event loop) that runs the app and sends.
    :ivar wall_s: from the call of the app to the last byte in the socket, beside a quick client.
    :ivar sends: how often the kernel was asked to take something.
    """

    cpu_s: float
    wall_s: float
    sends: int


# Of a body, for whoever wants to look at it: descriptions of APIs are a few MB at most.
MAX_KEPT_BYTES = 8 * 1024 * 1024


@dataclass
class Recording:
    """One response, as a server meets it.

    :ivar status: the code; None if the app never said one.
    :ivar returned: the class of what the app returned, as in "list" or "werkzeug.wsgi.Closing...";
        for ASGI "messages".
    :ivar chunks: as the app gave them, before any repair.
    :ivar body: its first MAX_KEPT_BYTES.
    :ivar route: environ["wsgifast.route"]; None where the app was not wrapped.
    :ivar app_s: seconds inside the app, its iterator included.
    :ivar files: what was opened meanwhile and has to do with the body.
    :ivar by_sendfile: body bytes that went by sendfile.
    :ivar blocked_s: ASGI: the longest turn of the event loop, in seconds; the shortest of those
        of several requests, where they are long.
    :ivar held: whether the app's thread (or task) had to wait for a client that does not read;
        None if that was not tried.
    :ivar problem: what broke PEP 3333 or ASGI, and would fail on a server; None if nothing did.
    :ivar error: what the app raised, its last frame included.
    :ivar timed_out: it had not ended after the time limit.
    """

    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    returned: str = ""
    chunks: Chunks = field(default_factory=Chunks)
    body: bytearray = field(default_factory=bytearray)
    route: str | None = None
    app_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    sends: int = 0
    files: list[FileSeen] = field(default_factory=list)
    by_sendfile: int = 0
    blocked_s: float = 0.0
    held: bool | None = None
    problem: str | None = None
    error: str | None = None
    timed_out: bool = False

    def header(self, name: str) -> str | None:
        """The first value of a header; None if it was not sent."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def keep(self, chunk: bytes) -> None:
        """Add to `body`, as far as there is room."""
        self.body += chunk[: MAX_KEPT_BYTES - len(self.body)]

    @property
    def declared(self) -> int | None:
        """Content-Length, where it is a number."""
        value = self.header("Content-Length")
        return None if value is None else parse_length(value)

    @property
    def failed(self) -> bool:
        return bool(self.problem or self.error or self.timed_out)


@dataclass
class Observation:
    """All that was seen of one endpoint.

    :ivar raw: the app as it is.
    :ivar wrapped: under WSGIFast or ASGIFast with their defaults.
    :ivar costs: by "raw", "wrapped", and "coalesced" (WSGIFast(coalesce=True)) or "sendfile".
    """

    endpoint: Endpoint
    raw: Recording
    wrapped: Recording
    costs: dict[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, slow or worth knowing about an endpoint.

    :ivar id: stable, such as "WF003"; `wsgifast doctor --explain WF003` says more.
    :ivar what: what the endpoint returns, in a few words.
    :ivar cost: such as "412 -> 46 ms"; "" where there is none to tell.
    :ivar fix: what to do, in a few words.
    :ivar detail: figures behind it, for JSON and HTML.
    """

    id: str
    severity: Severity
    endpoint: Endpoint
    what: str
    cost: str
    fix: str
    saves_s: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What makes it the same finding in the next run; for baselines."""
        return f"{self.id} {self.endpoint.method} {self.endpoint.name}"


@dataclass
class Report:
    """One examination.

    :ivar app: what was examined, as it was named.
    :ivar framework: "flask", "django", ...; None where none was recognised.
    :ivar was_wrapped: it had wsgifast's middleware around it, which was left aside.
    :ivar findings: worst first, and those that would save most before others.
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

    @property
    def good(self) -> int:
        """How many endpoints have no finding that is "wrong" or "slow"."""
        bad = {(f.endpoint.method, f.endpoint.url) for f in self.of("wrong", "slow")}
        asked = [(seen.endpoint.method, seen.endpoint.url) for seen in self.observations]
        return sum(each not in bad for each in asked)

    def sort(self) -> None:
        """Put what is worst first: by severity, then by seconds saved for all known requests."""

        def weight(finding: Finding) -> tuple[int, float, str]:
            saved = finding.saves_s * (finding.endpoint.requests or 1)
            return (SEVERITIES.index(finding.severity), -saved, finding.id)

        self.findings.sort(key=weight)
