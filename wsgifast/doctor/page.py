"""A report as one HTML page."""

from __future__ import annotations

import html

from ..page import page, scale_bars, table
from ..terminal import printable
from .catalogue import CATALOGUE
from .formats import summary
from .model import Finding, Observation, Report

_NAMES = {
    "raw": "as it is",
    "wrapped": "wrapped",
    "coalesced": "wrapped, coalesce=True",
    "sendfile": "wrapped, by sendfile",
}


def as_html(report: Report) -> str:
    """The whole page."""
    findings = "".join(_finding(report, finding) for finding in report.findings)
    left = "".join(
        f"<li><code>{_text(f'{each.method} {each.name}')}</code>: {_text(each.reason)}</li>"
        for each in report.unreached
    )
    note = (
        "<p>The app is already wrapped with wsgifast; the doctor examines the app inside.</p>"
        if report.was_wrapped
        else ""
    )
    columns = ("endpoint", "returns", "status", "body", "chunks", "CPU ms")
    return page(
        report.app,
        f"""<p>{_text(summary(report))}</p>
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
        f"<li>{_text(name)}: <code>{_text(fix)}</code></li>" for name, fix in entry.fixes.items()
    )
    often = f" <span class=soft>{endpoint.requests:,} requests</span>" if endpoint.requests else ""
    return f"""<article class="{finding.severity}">
<h3><span class="id">{finding.id}</span><code>{_text(f"{endpoint.method} {endpoint.name}")}</code>
{often}</h3>
<p>{_text(f"{finding.what}. {finding.cost}".rstrip())}</p>
{_bars(seen) if seen is not None and finding.severity == "slow" else ""}
<p><strong>{_text(finding.fix)}</strong></p>
<details><summary>{_text(entry.title)}: why, and how to fix it</summary>
<p>{_text(entry.what)} {_text(entry.why)}</p>
{fixes and f"<ul>{fixes}</ul>"}
<p>What wsgifast does: {_text(entry.wsgifast)}</p></details>
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
        f"<code>{_text(f'{endpoint.method} {endpoint.name}')}</code>",
        _text(raw.returned),
        "-" if raw.status is None else str(raw.status),
        f"{raw.declared or raw.chunks.total:,}",
        f"{raw.chunks.count:,}",
        f"{(cost.cpu_s if cost else raw.cpu_s) * 1e3:,.2f}",
    )


def _text(text: str) -> str:
    return html.escape(printable(text))
