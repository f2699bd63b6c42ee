"""A report as one HTML page that one can pass on: nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import time

from .. import __version__
from .catalogue import CATALOGUE
from .formats import summary
from .model import Finding, Observation, Report

__all__ = ["as_html"]

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #fff; --ink: #1d2126; --soft: #5d6670;
  --line: #e2e0db; --raw: #b5bcc4; --better: #0b7a5c; --wrong: #b3382c; --slow: #a86a00;
  --info: #2b6cb0; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e9ebed;
  --soft: #a0a9b2; --line: #31373d; --raw: #6a737c; --better: #3fc59b; --wrong: #f08a7c;
  --slow: #e0ae5a; --info: #8fbdf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; } .soft { color: var(--soft); font-size: .9rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .8rem 1rem; margin: .7rem 0; border-left-width: 5px; }
.wrong { border-left-color: var(--wrong); } .slow { border-left-color: var(--slow); }
.info { border-left-color: var(--info); }
.id { color: var(--soft); font-weight: 500; margin-right: .4rem; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .6rem;
  align-items: center; font-size: .85rem; margin: .4rem 0; font-variant-numeric: tabular-nums; }
.bar { height: .6rem; border-radius: 2px; background: var(--better); min-width: 2px; }
.bar.raw { background: var(--raw); }
details { margin-top: .4rem; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
code { font-size: .9em; overflow-wrap: anywhere; }
"""

_NAMES = {
    "raw": "as it is",
    "wrapped": "wrapped",
    "coalesced": "wrapped, coalesce=True",
    "sendfile": "wrapped, by sendfile",
}


def as_html(report: Report) -> str:
    """The whole page; light or dark as its reader's system is."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    findings = "".join(_finding(report, finding) for finding in report.findings)
    left = "".join(
        f"<li><code>{_text(f'{each.method} {each.name}')}</code>: {_text(each.reason)}</li>"
        for each in report.unreached
    )
    note = (
        "<p>The app is wrapped with wsgifast already; this is what it is without.</p>"
        if report.was_wrapped
        else ""
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(report.app)}: wsgifast doctor</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{_text(report.app)}</h1>
<p>{_text(summary(report))}</p>
{note}
<h2>Findings</h2>
{findings or "<p>Nothing that is wrong or slow.</p>"}
{f"<h2>Not reached</h2><ul>{left}</ul>" if left else ""}
<h2>Every endpoint</h2>
<div class="scroll"><table><thead><tr><th>endpoint</th><th>returns</th><th>status</th>
<th>body</th><th>chunks</th><th>CPU ms</th></tr></thead>
<tbody>{"".join(map(_row, report.observations))}</tbody></table></div>
<p class="soft">wsgifast doctor {__version__}, {when}. CPU time of the thread that runs the app and
sends, through a real connection on this machine: trust the ratios, not the absolute figures.</p>
</body>
</html>
"""


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
<p>{_text(finding.what)}. {_text(finding.cost)}</p>
{_bars(seen) if seen is not None and finding.severity == "slow" else ""}
<p><strong>{_text(finding.fix)}</strong></p>
<details><summary>{_text(entry.title)}: why, and how to mend it</summary>
<p>{_text(entry.what)} {_text(entry.why)}</p>
<ul>{fixes}</ul>
<p>What wsgifast does: {_text(entry.wsgifast)}</p></details>
</article>
"""


def _bars(seen: Observation) -> str:
    """CPU time of each way, on one scale from zero."""
    if not seen.costs:
        return ""
    most = max(cost.cpu_s for cost in seen.costs.values()) or 1.0
    rows = []
    for name, cost in seen.costs.items():
        kind = " raw" if name == "raw" else ""
        rows.append(
            f'<span>{_text(_NAMES.get(name, name))}</span><span><span class="bar{kind}" '
            f'style="display:block;width:{100 * cost.cpu_s / most:.1f}%"></span></span>'
            f"<span>{cost.cpu_s * 1e3:,.2f} ms</span>"
        )
    return f'<div class="bars">{"".join(rows)}</div>'


def _row(seen: Observation) -> str:
    raw, endpoint = seen.raw, seen.endpoint
    cost = seen.costs.get("raw")
    cells = (
        f"<code>{_text(f'{endpoint.method} {endpoint.name}')}</code>",
        _text(raw.returned),
        "-" if raw.status is None else str(raw.status),
        f"{raw.declared or raw.chunks.total:,}",
        f"{raw.chunks.count:,}",
        f"{(cost.cpu_s if cost else raw.cpu_s) * 1e3:,.2f}",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return html.escape(text)
