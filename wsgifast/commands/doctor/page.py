"""A report as one HTML page."""

from __future__ import annotations

from ..page import escaped, page, scale_bars, table
from .catalogue import CATALOGUE
from .formats import summary
from .model import Finding, Observation, Report

_NAMES = {
    "raw": "as it is",
    "wrapped": "wrapped",
    "coalesced": "wrapped, coalesce=True",
    "sendfile": "wrapped, by sendfile",
    "pathsend=True": "ASGIFast(app, pathsend=True), by sendfile",
}


def as_html(report: Report) -> str:
    """The whole page."""
    findings = "".join(_finding(report, finding) for finding in report.findings)
    left = "".join(
        f"<li><code>{escaped(f'{each.method} {each.name}')}</code>: {escaped(each.reason)}</li>"
        for each in report.unreached
    )
    note = (
        "<p>The app is wrapped with wsgifast already: what the wrapper mends is no failure.</p>"
        if report.was_wrapped
        else ""
    )
    columns = ("endpoint", "returns", "status", "body", "chunks", "CPU ms")
    return page(
        report.app,
        f"""<p>{escaped(summary(report))}</p>
{note}
<h2>Findings</h2>
{findings or "<p>Nothing is wrong or slow.</p>"}
{f"<h2>Not reached</h2><ul>{left}</ul>" if left else ""}
<h2>Every endpoint</h2>
{table(columns, map(_row, report.observations))}""",
        by="wsgifast doctor",
        note="CPU time of the thread that runs the app and sends its response over a real "
        "connection on this machine: trust the ratios, not the absolute figures.",
    )


def _finding(report: Report, finding: Finding) -> str:
    entry = CATALOGUE[finding.id]
    endpoint = finding.endpoint
    seen = next((each for each in report.observations if each.endpoint is endpoint), None)
    fixes = "".join(
        f"<li>{escaped(name)}: <code>{escaped(fix)}</code></li>"
        for name, fix in entry.fixes.items()
    )
    often = f" <span class=soft>{endpoint.requests:,} requests</span>" if endpoint.requests else ""
    return f"""<article class="{finding.severity}">
<h3><span class="id">{finding.id}</span><code>{escaped(f"{endpoint.method} {endpoint.name}")}</code>
{often}</h3>
<p>{escaped(f"{finding.what}. {finding.cost}".rstrip())}</p>
{_bars(seen) if seen is not None and finding.severity == "slow" else ""}
<p><strong>{escaped(finding.fix)}</strong></p>
<details><summary>{escaped(entry.title)}: why, and how to fix it</summary>
<p>{escaped(entry.what)} {escaped(entry.why)}</p>
{fixes and f"<ul>{fixes}</ul>"}
<p>What wsgifast does: {escaped(entry.wsgifast)}</p></details>
</article>
"""


def _bars(seen: Observation) -> str:
    """CPU time of each way."""
    return scale_bars(
        [
            (_NAMES.get(name, name), cost.cpu_s, f"{cost.cpu_s * 1e3:,.2f} ms")
            for name, cost in seen.costs.items()
        ]
    )


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
