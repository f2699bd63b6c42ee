"""Writes the documentation's benchmarks from the reports of the load tests.

    make benchmarks                      measures everything first
    python -m docs.benchmarks.publish    uses the existing reports in reports/

Each row of a report is stored in docs/benchmarks/TABLE.json, without its single runs, and replaces
the older one there. Other rows stay, with their own date, machine and profile. The pages of
figures, the charts and README's table of gains are generated from these files. The command lists
missing rows, with the command that measures them. It also lists rows from a short run, from other
versions, or from another machine.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.bench import LINKS
from loadtests.deployed import NOTE
from loadtests.harness.machine import machine
from loadtests.harness.report import grids
from loadtests.payloads import REPORTS
from wsgifast.commands.bench.report import Grid
from wsgifast.commands.page import escaped
from wsgifast.commands.terminal import cell_text

from .chart import BARS, GAINS_TITLE, THEMES, chart_of_gains, chart_of_table
from .gains import figures_shown, filled, gains
from .page_texts import COLUMNS, PAGES, TERMS
from .published import (
    DEPLOYED_PREFIX,
    DEPLOYED_SUFFIX,
    Figures,
    Published,
    read,
    take_in,
    with_deployed,
    write,
)

if TYPE_CHECKING:
    from loadtests.harness.tables import Table

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DATA = DOCS / "benchmarks"
README = ROOT / "README.md"
# Where the charts are, in docs/: a file for each theme.
_CHARTS = "assets/charts"
NAMES = tuple(
    name
    for page in PAGES.values()
    for table in page.tables
    for name in (table + DEPLOYED_SUFFIX, table)
)
# Around the generated part of README.
_MARKS = "<!-- what python -m docs.benchmarks.publish writes -->", "<!-- the end of it -->"
# Keys of a run's "machine" that are not packages.
_FACTS = ("cores", "processor", "system", "tcp", "python")


def main() -> None:
    """Read the reports, and write the pages and the charts."""
    argparse.ArgumentParser(
        prog="python -m docs.benchmarks.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    from loadtests.__main__ import SEPARATE, tables

    publish([*tables(), *SEPARATE])


def publish(known: Sequence[Table]) -> None:
    """Publish the reports of these tables, as the command does."""
    published = read(DATA)
    for name, table in with_deployed(known).items():
        published.setdefault(name, Published(table.title, {}, {}))
    for line in take_in(REPORTS, published, known):
        print(line)
    write(DATA, {name: table for name, table in published.items() if table.rows})
    for name, page in benchmarks_pages().items():
        (DOCS / name).write_text(page())
    README.write_text(readme())
    drawn = charts()
    (DOCS / _CHARTS).mkdir(exist_ok=True)
    for path in (DOCS / _CHARTS).iterdir():
        if f"{_CHARTS}/{path.name}" not in drawn:
            path.unlink()
    for name, picture in drawn.items():
        (DOCS / name).write_text(picture())
    for line in [*missing(known), *differing(machine())]:
        print(line)


def _read() -> dict[str, Published]:
    return read(DATA, NAMES)


def missing(known: Sequence[Table]) -> Iterator[str]:
    """The rows of these tables that are not published, and the commands that measure them."""
    there = {key for table in _read().values() for key in table.rows}
    needed = dict.fromkeys([*(row for row, *_ in figures_shown()), *(bar.key for bar in BARS)])
    for deployed in (False, True):
        wanted = [
            key.removeprefix(DEPLOYED_PREFIX)
            for key in needed
            if key not in there and key.startswith(DEPLOYED_PREFIX) is deployed
        ]
        if wanted:
            command = f"python -m loadtests {' '.join(wanted)}{' --deployed' * deployed}"
            yield f"README or its chart needs: {command} --profile release"
    others: list[str] = []
    for table in known:
        keys = [row.key for row in table.rows]
        others += _arguments(table.name, keys, [key for key in keys if key not in there])
    if others:
        yield f"The pages need: python -m loadtests {' '.join(others)} --profile release"


def differing(here: Mapping[str, str | int]) -> Iterator[str]:
    """Rows of short runs, and those that were measured with other versions or elsewhere.

    :param here: the result of :func:`~loadtests.harness.machine.machine`.
    """
    found: dict[str, list[str]] = {}
    for name, table in _read().items():
        theirs: dict[str, list[str]] = {}
        for key, row in table.rows.items():
            theirs.setdefault(_difference_of_run(table.runs[row["measured"]], here), []).append(key)
        for what, keys in theirs.items():
            found.setdefault(what, []).extend(_arguments(name, table.rows, keys))
    found.pop("", None)
    for what, keys in found.items():
        yield f"From {what}: {' '.join(keys)}"


def _arguments(name: str, keys: Iterable[str], some: Iterable[str]) -> list[str]:
    """Some of the keys of a table, as arguments for the load tests; its name for all of them."""
    some = list(some)
    return [name] if some == list(keys) else some


def _difference_of_run(run: Mapping[str, Any], here: Mapping[str, str | int]) -> str:
    """How a run differs from one that would be made here; "" if it does not."""
    there = run["machine"]
    others = ["a short run"] * (not run["profile"]["full"])
    for name, now in here.items():
        then, now = (_without_build(str(value)) for value in (there.get(name, now), now))
        others += [f"{name} {then}, here {now}"] * (then != now)
    return "; ".join(others)


def _without_build(version: str) -> str:
    """A kernel version without the distribution's suffix."""
    return version.partition("-")[0] if version.startswith("Linux ") else version


def charts() -> dict[str, Callable[[], str]]:
    """Return the charts' files, by their names in docs/, with functions that draw them."""
    drawn: dict[str, Callable[[str], str]] = {"gains": _gains}
    for name, table in _read().items():
        draw = partial(chart_of_table, table.title, _titled(table))
        if draw(next(iter(THEMES))):
            drawn[name] = draw
    return {
        f"{_CHARTS}/{name}-{theme}.svg": partial(draw, theme)
        for name, draw in drawn.items()
        for theme in THEMES
    }


def _gains(theme: str) -> str:
    figures = Figures(_read())
    found = {bar.key: figures.ratio(bar.key, bar.contender) for bar in BARS}
    return chart_of_gains({key: ratio for key, ratio in found.items() if ratio}, theme)


def _shown(name: str, alt: str, up: str = "") -> str:
    """A chart in a page, on GitHub as on the site.

    :param up: from the page's folder to docs/.
    """
    light, dark = (f"{up}{_CHARTS}/{name}-{theme}.svg" for theme in ("light", "dark"))
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img class="chart" width="100%" alt="{escaped(alt)}" src="{light}">\n'
        "</picture>"
    )


def readme() -> str:
    """README.md with the table of gains in its place."""
    before, after = _MARKS
    table = gains(Figures(_read()), benchmarks="docs/benchmarks.md")
    text, count = re.subn(
        f"{re.escape(before)}.*?{re.escape(after)}",
        lambda match: f"{before}\n\n{table}\n\n{after}",
        README.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{README.name} has {count} places for the table: {before} ... {after}")
    return text


def benchmarks_pages() -> dict[str, Callable[[], str]]:
    """The pages of figures, by their names in docs/: the first one, and those of PAGES."""
    published = _read()
    names = [name for name in PAGES if _of_page(name, published)]
    pages = {f"benchmarks/{name}.md": partial(benchmarks_page, name) for name in names}
    return {"benchmarks.md": _first_page, **pages}


def _first_page() -> str:
    published = _read()
    chosen = [name for name in PAGES if _of_page(name, published)]
    listed = [f"- [{PAGES[name].title}](benchmarks/{name}.md)" for name in chosen]
    parts = [
        "# Benchmarks",
        "These pages compare wsgifast with other servers and middleware. They show which requests "
        "become faster, and how much. Each figure has the command that measures it again.",
        "\n".join(listed),
        "The chart shows how many times as many requests a server handles in a second:",
        _shown("gains", GAINS_TITLE),
        "## How to read the tables",
        "The client and the servers run on the same machine, and use its loopback interface. The "
        "servers run in turn, so a change of the machine's speed affects all of them. A figure is "
        "the median of several rounds. A ratio is the median of the ratios of consecutive runs. "
        "The lowest and the highest ratio are in brackets. For some rows, the noise of the machine "
        "was measured, too. Their brackets contain an interval that includes the noise. If this "
        "interval contains 1, the ratio is *unclear*.",
        "**Trust the ratios** more than the rates. Most of all, trust the ratios that you "
        "[measure with your own app](how-to/measure.md).",
        "A title *as deployed* means that servers run as in production. They write an access log, "
        "have metrics if they support them, and get the headers of a browser. Sections without "
        "this title have no access log and no metrics, unless a row names them.",
        "A chart says whether a longer bar is better or worse. A green bar is better, a grey bar "
        "is unclear, and an amber bar is worse. The thin line is the interval.",
        "The key of a row is below its title. `python -m loadtests KEY` measures only this row.",
        "In tables about slow clients, the times are those of other, quick clients.",
        _term_table("column", COLUMNS),
        "These pages are generated. `make benchmarks` measures everything on a quiet machine. "
        "`python -m docs.benchmarks.publish` writes the pages from existing reports.",
        *_versions(published),
        "```{toctree}\n:hidden:\n\n" + "\n".join(f"benchmarks/{n}" for n in chosen) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def benchmarks_page(name: str) -> str:
    """Return one of PAGES: an introduction, its terms, and a section for each table."""
    page, published = PAGES[name], _read()
    tables = _of_page(name, published)
    parts = [f"# {page.title}", page.compared, _conditions(tables)]
    if results := [shown for text in page.results if (shown := filled(text, Figures(published)))]:
        parts += ["The main results:", "\n".join(f"- {shown}" for shown in results)]
    parts.append("[How to read the tables](../benchmarks.md#how-to-read-the-tables)")
    names = "\n".join(
        text
        for table in tables.values()
        for row in table.rows.values()
        for text in (row["title"], *row["contenders"])
    )
    found = [each for each in TERMS.items() if re.search(rf"(?<!\w){re.escape(each[0])}", names)]
    if found:
        parts.append(_term_table("name in the tables", found))
    parts += (part for table in tables.items() for part in _section(*table))
    return "\n\n".join(parts) + "\n"


def _conditions(tables: Mapping[str, Published]) -> str:
    """Say on which machines the tables of a page were measured, and which are "as deployed"."""
    machines = [run["machine"] for table in tables.values() for run in table.runs.values()]
    processors: dict[int, dict[str, None]] = {}
    for each in machines:
        processors.setdefault(each["cores"], {})[each["processor"]] = None
    kinds = [f"{cores} cores ({', '.join(names)})" for cores, names in processors.items()]
    text = f"In each run, the client and the servers shared one machine with {' or '.join(kinds)}."
    if not any(name.endswith(DEPLOYED_SUFFIX) for name in tables):
        return f"{text} No server had an access log or metrics, unless a row names them."
    return (
        f"{text} The sections *as deployed* have an access log, metrics and the headers of a "
        "browser. The other sections have none of them, unless a row names them."
    )


def _term_table(term: str, terms: Iterable[tuple[str, str]]) -> str:
    lines = [(term, "meaning"), ("---", "---"), *terms]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of_page(name: str, published: Mapping[str, Published]) -> dict[str, Published]:
    chosen = [each for each in NAMES if each.removesuffix(DEPLOYED_SUFFIX) in PAGES[name].tables]
    if name == [*PAGES][-1]:
        chosen += [each for each in published if each not in NAMES]
    return {each: published[each] for each in chosen if each in published}


def _section(name: str, table: Published) -> Iterator[str]:
    """A chart of all rows; the command; the rows of each run, below its date and machine."""
    yield f"## {table.title}"
    titled = _titled(table)
    if chart_of_table("", titled, "light"):
        yield _shown(name, f"{table.title}: the ratios of the tables below", "../")
    measured = name.removesuffix(DEPLOYED_SUFFIX)
    how = f" --link {LINKS[name]}" if name in LINKS else ""
    if measured != name:
        how = " --deployed"
        yield NOTE
    yield f"Command: `python -m loadtests {measured}{how} --profile release`"
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {}
    for key, row in titled.items():
        line = _run(row["measured"], table.runs[row["measured"]])
        by_run.setdefault(line, {})[key] = row
    for line, rows in by_run.items():
        yield line
        yield from map(_markdown, grids(rows))


def _titled(table: Published) -> dict[str, dict[str, Any]]:
    """The rows of a table, with the titles that are shown."""
    return {
        key: {**row, "title": _title(row, table.runs[row["measured"]]["profile"])}
        for key, row in table.rows.items()
    }


def _run(when: str, run: Mapping[str, Any]) -> str:
    profile, machine = run["profile"], run["machine"]
    rounds = f"{profile['rounds']} round{'s' * (profile['rounds'] > 1)}"
    length = f"{rounds} of {profile['seconds']:g} s"
    if not profile["full"]:
        length += ". This was **a short run**, for rough ratios"
    system = _without_build(machine["system"])
    facts = [f"{machine['cores']} cores", machine["processor"], system, machine["python"]]
    if "tcp" in machine:
        facts.insert(3, f"TCP {machine['tcp']}")
    note = f" {profile['note']}" if profile.get("note") else ""
    return f"Measured on {when[:10]} in {length}. Machine: {', '.join(facts)}.{note}"


def _versions(published: Mapping[str, Published]) -> Iterator[str]:
    """Yield the packages of the first run, and the different versions of others."""
    runs = [
        (run["machine"], f"{table.title} on {when[:10]}")
        for table in published.values()
        for when, run in table.runs.items()
    ]
    first: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    for facts, title in runs:
        packages = {name: text for name, text in facts.items() if name not in _FACTS}
        first = first or packages
        if differ := dict(sorted(packages.items() - first.items())):
            others.setdefault(_listed(differ), []).append(title)
    if first:
        yield "## Versions"
        exceptions = ", except the tables in the list below" if others else ""
        yield f"All tables were measured with these versions{exceptions}."
        lines = ["| package | version |", "|---|---|"]
        yield "\n".join([*lines, *(f"| {name} | {first[name]} |" for name in first)])
    for packages_there, titles in others.items():
        yield "\n".join(f"- {title}: {packages_there}." for title in dict.fromkeys(titles))


def _listed(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def _title(row: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    """Return a row's title, without remarks on short runs, and with its rounds if they are few."""
    title: str = row["title"]
    if profile["full"]:
        title = re.sub(r" \(in a short run [^)]*\)", "", title)
    pairs = min(each["pairs"] for each in row["contenders"].values())
    if pairs < profile["rounds"]:
        title += f" ({pairs} round{'s' * (pairs > 1)})"
    return title


def _markdown(grid: Grid) -> str:
    columns, rows = grid.wide()
    marks = ["---", "---", *["--:"] * (len(columns) - 2)]
    lines = [columns, marks, *([cell_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
