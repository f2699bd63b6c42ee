"""The documentation's benchmarks, from the reports of the load tests.

    make benchmarks                measures everything first: an hour and a half on a quiet machine
    python -m loadtests.publish    takes what is in reports/ now

Each report goes to docs/benchmarks/NAME.json, without its single runs, and takes the older one's
place there; of these docs/benchmarks.md and the chart on the first pages are made. What none of
them has yet, the chart takes from docs/benchmarks/2026-11.json, of the page of that name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .chart import BARS, THEMES, chart

__all__ = ["CHARTS", "benchmarks_page", "ratios"]

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports"
DOCS = ROOT / "docs"
DATA = DOCS / "benchmarks"
EARLIER = "2026-11"
# The chart's files.
CHARTS = {theme: f"assets/ratios-{theme}.svg" for theme in THEMES}
# In this order on the page; others follow.
NAMES = (
    "demo", "frameworks", "worker", "slow", "slow-attack", "static-files", "static-trees",
    "django-files", "django-start", "memory", "asgi", "asgi-others", "nodelay", "calls",
)  # fmt: skip
_OF_A_RUN = ("runs", "errors")
# More than a measurement of this kind can carry, and less than a float has.
_DIGITS = 4
# What is no package in a report's "machine".
_FACTS = ("cores", "processor", "system", "python")


def main() -> None:
    """Take the reports in, and write the page and the charts."""
    argparse.ArgumentParser(
        prog="python -m loadtests.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    DATA.mkdir(exist_ok=True)
    taken = []
    for path in sorted(REPORTS.glob("*.json")):
        report = json.loads(path.read_text())
        if "rows" in report and "title" in report:
            text = json.dumps(_condensed(report), indent=1, ensure_ascii=False)
            (DATA / path.name).write_text(text + "\n")
            taken.append(path.stem)
    (DOCS / "benchmarks.md").write_text(benchmarks_page())
    for theme, name in CHARTS.items():
        (DOCS / name).write_text(ratios(theme))
    print(f"Taken in: {', '.join(taken) or 'nothing; run python -m loadtests all'}")


def _read() -> dict[str, Any]:
    """What is published, by name."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in DATA.glob("*.json")
        if path.stem != EARLIER
    }
    names = [*(name for name in NAMES if name in found), *sorted(found.keys() - {*NAMES})]
    return {name: found[name] for name in names}


def ratios(theme: str) -> str:
    """The chart, for "light" or for "dark" pages."""
    found: dict[str, float] = json.loads((DATA / f"{EARLIER}.json").read_text())["ratios"]
    for report in _read().values():
        for bar in BARS:
            figures = report["rows"].get(bar.key, {}).get("contenders", {}).get(bar.contender)
            if figures and figures["ratio"]:
                found[bar.key] = figures["ratio"]["median"]
    return chart(found, THEMES[theme])


def benchmarks_page() -> str:
    """docs/benchmarks.md."""
    reports = list(_read().values())
    parts = [
        "# Benchmarks",
        "Written by `make benchmarks`, which measures everything anew on a quiet machine (an hour "
        "and a half, at most four) or by `python -m loadtests.publish` from the reports that are "
        "there; not by hand.",
        "Contenders take turns on one machine, which they share with the client, over loopback. A "
        "figure is the median of its rounds, a ratio the median of the ratios of neighbours in "
        "time, with the lowest and the highest. MB are 10^6 bytes. **Trust the ratios**, of your "
        "own machine most: [how to measure your app](how-to/measure.md).",
        *map(_section, reports),
        *(["## Versions", *dict.fromkeys(map(_versions, reports))] if reports else []),
        "## Earlier\n\n```{toctree}\n:glob:\n\nbenchmarks/*\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _section(report: Mapping[str, Any]) -> str:
    rows: Mapping[str, Any] = report["rows"]
    profile = report["profile"]
    prefixes = dict.fromkeys(key.rpartition(".")[0].partition(".")[0] + "." for key in rows)
    length = f"{profile['rounds']} rounds of {profile['seconds']:g} s"
    if not profile["full"]:
        length += ": **a short run**, for rough ratios"
    release = " --profile release" if profile["full"] else ""
    machine = report["machine"]
    system = machine["system"].partition("-")[0]
    facts = [f"{machine['cores']} cores", machine["processor"], system, machine["python"]]
    head = [
        f"## {report['title']}",
        f"`python -m loadtests {' '.join(prefixes)}{release}` on {report['measured'][:10]}, "
        f"{length}; {', '.join(facts)}.",
    ]
    return "\n\n".join([*head, *_tables(rows)])


def _versions(report: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{n} {v}" for n, v in report["machine"].items() if n not in _FACTS)
    return f"On {report['measured'][:10]}: {packages}."


def _tables(rows: Mapping[str, Any]) -> Iterator[str]:
    """One for each kind of figures."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for row in rows.values():
        first = next(iter(row["contenders"].values()))
        unit, cost = list(first)[:2]
        ratio = "ours / this" if row["ours"] else "ratio"
        columns: tuple[str, ...] = ("", "", unit, ratio, cost, "p50 ms", "p99 ms")
        lines = kinds.setdefault(columns, [])
        title = row["title"]
        for name, figures in row["contenders"].items():
            shown = [
                title,
                name,
                _number(figures[unit]),
                _ratio(figures["ratio"]) if "difference" not in figures else "",
                _number(figures[cost]),
                _number(figures["ms"]["50"]),
                _number(figures["ms"]["99"]),
            ]
            if figures["failures"]:
                shown[2] += f" ({figures['failures']} failed)"
            lines.append(f"| {' | '.join(shown)} |")
            title = ""
    for columns, lines in kinds.items():
        marks = ["---", "---", *["--:"] * (len(columns) - 2)]
        yield "\n".join([f"| {' | '.join(columns)} |", f"|{'|'.join(marks)}|", *lines])


def _number(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return ""
    median, low, high = (_number(ratio[name]) for name in ("median", "low", "high"))
    return f"**{median}x** ({low} to {high})"


def _condensed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _condensed(each) for name, each in value.items() if name not in _OF_A_RUN}
    if isinstance(value, list):
        return [_condensed(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
