"""Format a report as text, JSON, GitHub annotations or an HTML page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ... import __version__
from ..page import Bar, escaped, page, ratio_chart, table
from ..terminal import CYAN, DIM, RED, RESET, YELLOW, cut, fitted, printable, width_of
from .catalogue import CATALOGUE
from .examination import MAX_S
from .model import Finding, Observation, Report, Severity, Unreached

# This number increases if a field is removed, or if the meaning of a field changes. A new field
# does not increase the number.
JSON_VERSION = 1
_COLOURS: Mapping[Severity, str] = {"wrong": RED, "slow": YELLOW, "info": CYAN}
_MIN_WIDTH = 60
# The maximum widths of the columns with the id, the endpoint and the response, on terminals of any
# width. The response may contain the long message of an exception. JSON and the HTML page contain
# the full texts.
_MAX_COLUMNS = (5, 40, 60)
_MAX_REASON = 120
# If the terminal is narrow, the response is cut first, and then the endpoint. The keys are column
# numbers, and the values are the minimum widths.
_MIN_COLUMNS = {2: 16, 1: 12}
# The maximum number of reasons why endpoints were not reached, and of endpoints for each reason.
_MAX_REASONS, _MAX_NAMES = 12, 3
_WRAPPED = "The app is already wrapped with wsgifast. Findings that it fixes are not failures."
_FIX_INDENT = " " * len("WF001  ")
_GITHUB: Mapping[Severity, str] = {"wrong": "error", "slow": "warning", "info": "notice"}


def as_text(report: Report, *, width: int | None = None, colours: bool = False) -> str:
    """Return a table of the findings, a summary, and the endpoints that were not reached.

    Fixes and CPU times are on separate lines, which are never cut.

    :param width: the number of columns of the terminal. None for no limit.
    """
    lines = [_WRAPPED, ""] if report.was_wrapped else []
    findings = report.findings
    if findings:
        cells = [("", "endpoint", "what it returns", "what to do", "CPU time")]
        cells += [(f.id, _endpoint(f), printable(f.what), f.fix, f.cost) for f in findings]
        severities: Sequence[Severity | None] = [None, *(f.severity for f in findings)]
        bounded = [list(map(_shortened, row, _MAX_COLUMNS)) for row in cells]
        shown = fitted(bounded, None if width is None else max(width, _MIN_WIDTH), _MIN_COLUMNS)
        for row, severity, (*_, fix, cost) in zip(shown, severities, cells, strict=True):
            line = "  ".join(row).rstrip()
            if colours and severity is not None:
                line = f"{_COLOURS[severity]}{line[:5]}{RESET}{line[5:]}"
            lines += [line, *(f"{_FIX_INDENT}{text}" for text in (fix, cost) if text)]
        lines.append("")
    lines.append(summary(report))
    if cut_short := [each.endpoint.url for each in report.observations if each.cut_short]:
        names = ", ".join(map(printable, cut_short[:_MAX_NAMES]))
        more = f" and {len(cut_short) - _MAX_NAMES} more" if len(cut_short) > _MAX_NAMES else ""
        lines.append(f"  {len(cut_short)} examined in part, for {MAX_S:g} s: {names}{more}")
    for line in _not_reached(report.unreached, width):
        lines.append(f"{DIM}{line}{RESET}" if colours else line)
    return "\n".join(lines)


def by_reason(unreached: Iterable[Unreached]) -> list[tuple[str, list[str]]]:
    """Return each reason with the names of its endpoints. The most frequent reason is first.

    Reasons about missing --value options are last, because a large app has many of them.
    """
    found: dict[str, list[str]] = {}
    for each in unreached:
        name = _shortened(printable(f"{each.method} {each.name}"), _MAX_COLUMNS[1])
        found.setdefault(_shortened(printable(each.reason), _MAX_REASON), []).append(name)
    return sorted(found.items(), key=lambda group: (group[0].startswith("needs "), -len(group[1])))


def _not_reached(unreached: Iterable[Unreached], width: int | None) -> Iterator[str]:
    """Yield a line for each reason."""
    groups = by_reason(unreached)
    for reason, names in groups[:_MAX_REASONS]:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        line = f"  {len(names)} not reached ({reason}): {', '.join(names[:_MAX_NAMES])}{more}"
        yield line if width is None else cut(line, max(width, _MIN_WIDTH)).rstrip()
    if len(groups) > _MAX_REASONS:
        yield f"  and {len(groups) - _MAX_REASONS} more reasons: --format json lists all of them"


def _shortened(text: str, columns: int) -> str:
    return text if width_of(text) <= columns else cut(text, columns)


def summary(report: Report) -> str:
    """Return a line such as "41 endpoints: 36 good, 3 slow, 1 wrong, 1 not reached."."""
    parts = [f"{report.good} good"]
    bad = Counter(report.bad.values())
    parts += [f"{bad[kind]} {kind}" for kind in ("slow", "wrong") if bad[kind]]
    if report.unreached:
        parts.append(f"{len(report.unreached)} not reached")
    total = len(report.observations) + len(report.unreached)
    return f"{total} endpoint{'' if total == 1 else 's'}: {', '.join(parts)}."


def as_json(report: Report) -> str:
    """Return the whole report as JSON. Its field "version" is JSON_VERSION."""
    return json.dumps(_data(report), indent=2)


def as_github(report: Report) -> str:
    """Return workflow commands, which GitHub shows as annotations."""
    return "\n".join(
        f"::{_GITHUB[f.severity]} title={_escaped(f'{f.id} {CATALOGUE[f.id].title}', ',:')}::"
        + _escaped(f"{_endpoint(f)}: {printable(f.what)}. {f.cost + '. ' if f.cost else ''}{f.fix}")
        for f in report.findings
    )


def baseline_of(text: str) -> set[str]:
    """Return the keys of the findings in an earlier JSON report.

    :raises ValueError: if the text is not a report with this JSON_VERSION.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != JSON_VERSION:
        raise ValueError(f"it is not a report of version {JSON_VERSION}")
    return {finding["key"] for finding in data["findings"]}


def _data(report: Report) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "wsgifast": __version__,
        **_attributes(report, "app", "interface", "framework", "was_wrapped"),
        "endpoints": [
            {
                **_attributes(
                    seen.endpoint, "method", "url", "name", "source", "evidence", "requests"
                ),
                "status": seen.raw.status,
                "returned": seen.raw.returned,
                "body_bytes": seen.raw.chunks.total,
                "chunks": seen.raw.chunks.count,
                "sent_as": seen.wrapped.sent_as,
                "sent_bytes": {"raw": seen.raw.sent_bytes, "wrapped": seen.wrapped.sent_bytes},
                "by_sendfile_bytes": seen.raw.by_sendfile,
                "slow_client_holds_thread": seen.raw.blocks_thread,
                "cut_short": seen.cut_short,
                "costs": {name: vars(cost) for name, cost in seen.costs.items()},
            }
            for seen in report.observations
        ],
        "findings": [
            {
                **_attributes(f, "id", "key", "severity"),
                "title": CATALOGUE[f.id].title,
                **_attributes(f.endpoint, "method", "url", "name"),
                **_attributes(f, "what", "cost", "fix", "saves_s"),
            }
            for f in report.findings
        ],
        "not_reached": [vars(each) for each in report.unreached],
    }


def _attributes(subject: object, *names: str) -> dict[str, Any]:
    return {name: getattr(subject, name) for name in names}


def _endpoint(finding: Finding) -> str:
    endpoint = finding.endpoint
    name = printable(endpoint.name)
    text = name if endpoint.method == "GET" else f"{endpoint.method} {name}"
    return f"{text} ({endpoint.requests:,}x)" if endpoint.requests else text


def _escaped(text: str, additional: str = "") -> str:
    for character in f"%\r\n{additional}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "text": as_text, "json": as_json, "github": as_github
}  # fmt: skip


def as_html(report: Report) -> str:
    """Return the report as a self-contained HTML page."""
    findings = "".join(_finding(report, finding) for finding in report.findings)
    unreached = "".join(
        f"<li><code>{escaped(f'{each.method} {each.name}')}</code>: {escaped(each.reason)}</li>"
        for each in report.unreached
    )
    columns = ("endpoint", "returns", "status", "body", "chunks", "CPU ms")
    return page(
        report.app,
        f"""<p>{escaped(summary(report))}</p>
{f"<p>{_WRAPPED}</p>" if report.was_wrapped else ""}
<h2>Findings</h2>
{findings or "<p>Nothing is wrong or slow.</p>"}
{f"<h2>Not reached</h2><ul>{unreached}</ul>" if unreached else ""}
<h2>Every endpoint</h2>
{table(columns, map(_row, report.observations))}""",
        by="wsgifast doctor",
        note="CPU time of the thread that runs the app and sends its response over a real "
        "connection on this machine: trust the ratios, not the absolute figures.",
    )


def _finding(report: Report, finding: Finding) -> str:
    entry = CATALOGUE[finding.id]
    seen = next((s for s in report.observations if s.endpoint is finding.endpoint), None)
    fixes = "".join(
        f"<li>{escaped(name)}: <code>{escaped(fix)}</code></li>"
        for name, fix in entry.fixes.items()
    )
    return f"""<article class="{finding.severity}">
<h3><span class="id">{finding.id}</span><code>{escaped(_endpoint(finding))}</code></h3>
<p>{escaped(f"{finding.what}. {finding.cost}".rstrip())}</p>
{_bars(seen) if seen is not None and finding.severity == "slow" else ""}
<p><strong>{escaped(finding.fix)}</strong></p>
<details><summary>{escaped(entry.title)}: why, and how to fix it</summary>
<p>{escaped(entry.what)} {escaped(entry.why)}</p>
{fixes and f"<ul>{fixes}</ul>"}
<p>With wsgifast: {escaped(entry.wsgifast)}</p></details>
</article>
"""


def _bars(seen: Observation) -> str:
    """Return a chart of the CPU times.

    Each bar shows how many times less a contender needs than the app.
    """
    bars: list[Bar] = []
    for name, cost in seen.costs.items():
        ratio = seen.costs["raw"].cpu_s / cost.cpu_s if cost.cpu_s else 1.0
        text = f"{cost.cpu_s * 1e3:,.2f} ms"
        bars.append(Bar(name, (ratio, ratio, ratio), text, ratio >= 1))
    return ratio_chart(bars)


def _row(seen: Observation) -> tuple[str, ...]:
    raw, endpoint = seen.raw, seen.endpoint
    cost = seen.costs.get("raw")
    return (
        f"<code>{escaped(f'{endpoint.method} {endpoint.name}')}</code>",
        escaped(raw.returned),
        "-" if raw.status is None else str(raw.status),
        f"{raw.declared or raw.chunks.total:,}",
        f"{raw.chunks.count:,}",
        f"{(cost.cpu_s if cost else raw.cpu_s) * 1e3:,.2f}",
    )
