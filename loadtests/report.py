"""The HTML report of a comparison: one file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from pathlib import Path

from .charts import Span, bar_chart, span_chart
from .comparison import Comparison, Side
from .measuring import machine
from .measuring.results import REPORTS
from .serving import Serving
from .terminal import problems

__all__ = ["write_report"]

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #ffffff; --ink: #1d2126; --soft: #5d6670;
  --line: #e2e0db; --raw: #b5bcc4; --wrapped: #0b7a5c; --bad: #b3382c; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e9ebed;
  --soft: #a0a9b2; --line: #31373d; --raw: #6a737c; --wrapped: #3fc59b; --bad: #f08a7c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 0 0 .1rem; }
p { margin: .2rem 0 .8rem; } .soft { color: var(--soft); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem; margin: 1rem 0; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--ink); font-size: 13px; } svg .value { fill: var(--soft); }
.bar { fill: var(--wrapped); } .even { fill: var(--raw); } .failed { fill: var(--bad); }
.whisker { stroke: var(--ink); stroke-width: 1.5; opacity: .55; }
.rule { stroke: var(--line); } .between { stroke: var(--line); stroke-width: 4; }
.raw { fill: var(--raw); } .wrapped { fill: var(--wrapped); }
.key span { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%;
  margin: 0 .35rem 0 .9rem; } .key span:first-child { margin-left: 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr.fast td { border-bottom: 1px solid var(--line); } tr.fast td:last-child { font-weight: 600; }
.bad { color: var(--bad); } li { margin: .2rem 0; overflow-wrap: anywhere; }
"""


def write_report(name: str, title: str, serving: Serving, results: Sequence[Comparison]) -> Path:
    """Write reports/NAME.html.

    :returns: the file.
    """
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{name}.html"
    path.write_text(report_html(title, serving, results), encoding="utf-8")
    return path


def report_html(title: str, serving: Serving, results: Sequence[Comparison]) -> str:
    """The whole page."""
    heading = html.escape(title)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in problems(results))
    key = (
        '<p class="soft key"><span style="background:var(--raw)"></span>raw'
        '<span style="background:var(--wrapped)"></span>wrapped</p>'
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}: raw and wrapped</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{heading}</h1>
<p class="soft">The same app as it is and wrapped with WSGIFast, on {html.escape(str(serving))},
loaded by Locust in turn. {when}</p>
<section>
<h2>How many times faster</h2>
<p class="soft">Requests per second, wrapped / raw: median of the rounds; the thin line is their
spread. Logarithmic; 1 is no change.</p>
{bar_chart([(r.row.label, r.ratio, r.verdict) for r in results])}
</section>
<section>
<h2>Time for one answer</h2>
<p class="soft">Median, in milliseconds to the last byte. Logarithmic; left is better.</p>{key}
{span_chart([_span(r, r.raw.latency_ms(50), r.wrapped.latency_ms(50)) for r in results], "ms")}
</section>
<section>
<h2>What it costs the server</h2>
<p class="soft">CPU time of one request, user and system, in milliseconds. Logarithmic.</p>{key}
{span_chart([_span(r, r.raw.server_cpu_ms, r.wrapped.server_cpu_ms) for r in results], "ms")}
</section>
<section>
<h2>All figures</h2>
<div class="scroll">{_table(results)}</div>
</section>
<section>
<h2>What else was seen</h2>
<ul>{notes or "<li>No failure, and the same bytes from both sides.</li>"}</ul>
<p class="soft">{html.escape(facts)}. Client and server share this machine: trust the ratios, not
the absolute figures.</p>
</section>
</body>
</html>
"""


def _span(result: Comparison, raw: float | None, wrapped: float | None) -> Span:
    return Span(result.row.label, raw or None, wrapped or None)


def _table(results: Sequence[Comparison]) -> str:
    titles = ("the app returns", "", "requests/s", "MB/s", "p50 ms", "p95 ms", "failed")
    head = "".join(f"<th>{t}</th>" for t in (*titles, "CPU ms/request", "CPU s/GB", "ratio"))
    rows = []
    for result in results:
        label = html.escape(result.row.label)
        rows.append(f"<tr><td>{label}</td><td>raw</td>{_cells(result.raw)}<td></td></tr>")
        verdict = html.escape(result.verdict)
        cells = _cells(result.wrapped)
        rows.append(f'<tr class="fast"><td></td><td>wrapped</td>{cells}<td>{verdict}</td></tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(side: Side) -> str:
    figures = (
        side.requests_per_s,
        side.megabytes_per_s,
        side.latency_ms(50),
        side.latency_ms(95),
    )
    failed = f'<td class="bad">{side.failures}</td>' if side.failures else "<td></td>"
    costs = (side.server_cpu_ms, side.server_cpu_s_per_gb)
    return "".join(map(_cell, figures)) + failed + "".join(map(_cell, costs))


def _cell(figure: float | None) -> str:
    if figure is None:
        return "<td>-</td>"
    return f"<td>{figure:,.0f}</td>" if figure >= 100 else f"<td>{figure:.3g}</td>"
