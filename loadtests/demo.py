"""Compare gunicorn and uvicorn with and without wsgifast, in under two minutes: make demo.

Locust sends the requests. Each row adds one part of wsgifast to an unchanged app. The page
reports/demo/index.html shows the results, and links to Locust's report of each server's last round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from threading import Timer

from tests.support.slow_clients import slow_clients
from wsgifast.commands import page
from wsgifast.commands.bench.loads import Load, cpu_seconds
from wsgifast.commands.bench.processes import Server, wait_until
from wsgifast.commands.bench.report import problems
from wsgifast.commands.bench.serving import FAST_WORKER, served
from wsgifast.commands.client import BROWSER_ACCEPT_ENCODING
from wsgifast.commands.terminal import number_text, output_width, progress_line, show, tables

from .app import SHAPES
from .deployed import deployed
from .harness.locust import Locust, report_name
from .harness.machine import machine
from .harness.results import Result
from .harness.runner import run
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Contender, Profile, Row, Table, Task
from .link import slow_proxy
from .payloads import FILE_BYTES, MIB, REPORTS, files

FOLDER = REPORTS / "demo"
TITLE = "gunicorn and uvicorn, with and without wsgifast"
COLUMNS = ("request", "added", "before", "with wsgifast", "gain", "CPU")
# The explanation of each column.
READING = (
    "request: the response that Locust requests again and again, from the same app in both runs.",
    "added: the part of wsgifast that makes the difference.",
    "before: responses per second of gunicorn's gthread or uvicorn. no response: requests fail or "
    "wait until the time is over.",
    "with wsgifast: responses per second with the added part. The servers take turns.",
    "gain: how many times as many responses, the median of 3 to 5 rounds. now responds: there was "
    "no response before. within noise: the same server differs from itself as much.",
    "CPU: the server's CPU time for a response, in percent of the time before. Less is better. "
    "Compression costs CPU time, and saves time on the link.",
    "All servers run as they are deployed: they write an access log, asgifast and FastWorker have "
    "metrics, uvicorn has uvloop, and requests have a browser's headers.",
)
BEFORE, AFTER = "before", "with wsgifast"
# The profiles of rows with a gain (True) and without a gain. In the latter rows, the difference is
# compared with the noise of the machine.
PROFILES = {
    True: Profile(0.4, 3, row_seconds=8.0),
    False: Profile(0.4, 5, row_seconds=8.0, noise=True),
}
SLOW_CLIENTS, LINK_MBIT = 8, 20
_SETTLE_S, _IDLE_S = 5.0, 0.1
# The slow downloads continue for this time after the measured time, because Locust may begin late.
_EXTRA_S = 2.0
# Several users request small responses at once. A single user would measure the round-trip time.
_SMALL_USERS = 8
# The facts about the machine and the packages on which the figures depend.
_FACTS = {
    "cores", "processor", "system", "python", "tcp", "wsgifast", "gunicorn", "werkzeug", "flask",
    "uvicorn", "uvloop", "httptools", "starlette", "locust",
}  # fmt: skip
# In a narrower terminal, the title of each row is in a line above its figures.
_WIDE_CHARS = 110
_LOCUST = Locust()
_LOCUST_REPORTS = FOLDER / "locust"
_APP, _FLASK = "loadtests.app:app", "loadtests.flask_app:app"
_ASGI = "loadtests.asgi_app:app"


@dataclass(frozen=True)
class Comparison:
    """A row of the demo.

    :ivar added: the part of wsgifast that the second server has.
    :ivar gains: whether wsgifast makes this row faster.
    """

    row: Row
    added: str
    gains: bool = True


def _client(users: int = 1) -> Client:
    return _LOCUST.client(users, reports=_LOCUST_REPORTS)


def beside_slow_downloads(client: Client) -> Client:
    """Return a client that runs during more slow downloads than the server has threads.

    If the requests of `client` wait until the end of the measured time, the result has no
    responses.
    """

    def load(task: Task) -> Load:
        crowd = slow_clients(
            "slow readers", task.address[1], clients=SLOW_CLIENTS, path="/server-wrapper"
        )  # fmt: skip
        with crowd as present:
            _wait_until_idle(task.pid)
            assert present.process.stdin is not None  # a pipe, whose end stops the clients
            timer = Timer(task.seconds + _EXTRA_S, present.process.stdin.close)
            timer.start()
            found = client(task)
            timer.join()
        if found.latency_ms and found.latency_ms[50] < task.seconds * 1e3:
            return found
        return replace(found, requests=0, body_bytes=0, latency_ms={})

    return load


def _wait_until_idle(pid: int) -> None:
    """Wait until the buffers of the slow downloads are full. Then the server is almost idle."""
    spent_s = cpu_seconds(pid)

    def is_idle() -> bool:
        nonlocal spent_s
        time.sleep(_IDLE_S)
        before_s, spent_s = spent_s, cpu_seconds(pid)
        return spent_s - before_s < _IDLE_S / 20

    wait_until(is_idle, _SETTLE_S)


def _over_a_slow_link(client: Client) -> Client:
    def load(task: Task) -> Load:
        with slow_proxy(task.address, LINK_MBIT) as proxy:
            return client(replace(task, address=proxy))

    return load


def _compare(
    key: str,
    title: str,
    added: str,
    servers: tuple[Server, Server],
    path: str,
    client: Client | None = None,
    *,
    gains: bool = True,
    seconds: float | None = None,
    headers: tuple[str, ...] = (),
    body_bytes: int | None = None,
) -> Comparison:
    contenders = tuple(
        Contender(name, server, path)
        for name, server in zip((BEFORE, AFTER), servers, strict=True)
    )  # fmt: skip
    row = Row(
        f"demo.{key}", title, contenders, client or _client(), seconds=seconds, headers=headers,
        body_bytes=body_bytes,
    )  # fmt: skip
    return Comparison(row, added, gains)


def _workers(app: str, *options: str) -> tuple[Server, Server]:
    """Return an app's servers with gthread and with FastWorker."""
    before, after = (gunicorn(app, *options, worker_class=c) for c in ("gthread", FAST_WORKER))
    return before, after


def _body(key: str, title: str, *, coalesce: bool = False, gains: bool = True) -> Comparison:
    """Return a row with a body of loadtests.app on gthread, without and with WSGIFast."""
    options = {"coalesce": True} if coalesce else {}
    added = "WSGIFast(app, coalesce=True)" if coalesce else "WSGIFast(app)"
    client = _client(_SMALL_USERS if key == "small" else 1)
    return _compare(
        key, title, added, (served(_APP), served(_APP, options)), f"/{key}", client, gains=gains,
        body_bytes=SHAPES[key].size,
    )  # fmt: skip


_JSON = "loadtests.compress_app:flask_app()"
_PLAIN_ASGI = uvicorn(_ASGI)
_FAST_ASGI = uvicorn("loadtests.asgi_app:fast", ours=True)
_ACCEPT_ENCODING = ": ".join(BROWSER_ACCEPT_ENCODING)
COMPARISONS = (
    _compare(
        "slow-downloads", f"small responses beside {SLOW_CLIENTS} slow downloads", "FastWorker",
        _workers(_APP), "/small", beside_slow_downloads(_client(_SMALL_USERS)), seconds=1.0,
    ),
    _body("file", "a file of 10 MiB"),
    _body("rows", "a CSV export of 13,108 lines", coalesce=True),
    _compare(
        "json", f"JSON of 842 kB over {LINK_MBIT} Mbit/s", "compress=True",
        (served(_JSON), served(_JSON, {"compress": True})), "/json",
        _over_a_slow_link(_client()), seconds=1.0, headers=(_ACCEPT_ENCODING,),
    ),
    _compare(
        "flask", "a small page of Flask", "FastWorker", _workers(_FLASK), "/page",
        _client(_SMALL_USERS),
    ),
    _compare(
        "asgi-file", "Starlette's FileResponse of 10 MiB", "asgifast.uvicorn",
        (_PLAIN_ASGI, _FAST_ASGI), f"/file/{FILE_BYTES}.bin",
    ),
    _body("list-of-100", "a list of 100-byte chunks, 1 MiB"),
    _body("generator-of-1", "a generator of single bytes, 672 KiB", coalesce=True),
    _compare(
        "asgi-crumbs", "ASGI messages of 100 bytes, 1 MiB", "asgifast.uvicorn",
        (_PLAIN_ASGI, _FAST_ASGI), f"/stream/{MIB}",
    ),
    _body("str", "a bare str, 672 KiB"),
    _body("bytes", "bare bytes, 672 KiB"),
    _body("whole", "[bytes], 672 KiB", gains=False),
    _body("small", "[bytes], 512 bytes", gains=False),
    _compare(
        "asgi-small", "a small ASGI response", "ASGIFast(app)",
        (_PLAIN_ASGI, uvicorn("loadtests.asgi_app:fast")), "/plain", _client(_SMALL_USERS),
        gains=False,
    ),
)  # fmt: skip


def table(gains: bool) -> Table:
    """Return the rows with a gain, or the rows without a gain."""
    rows = [each.row for each in COMPARISONS if each.gains is gains]
    return Table("demo", TITLE, rows, prepare=files)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0, or 1 if a response with wsgifast fails or differs."""
    argparse.ArgumentParser(
        prog="python -m loadtests.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    _LOCUST_REPORTS.mkdir(parents=True, exist_ok=True)
    facts = machine()
    show(f"Comparing {TITLE}: {facts['python']}, {facts['cores']} cores", error=True)
    with _LOCUST, deployed() as deployment, progress_line() as progress:
        _LOCUST.start()  # this start takes seconds, so it happens before the slow downloads
        results = [
            result
            for gains, profile in PROFILES.items()
            for result in run(deployment.table(table(gains)), profile, progress=progress)
        ]
    show(as_text(results, output_width()))
    path = FOLDER / "index.html"
    path.write_text(as_html(results), encoding="utf-8")
    show(f"\nThe same as a page, with a link to each Locust report: {path}")
    return int(not all(result.is_good for result in results))


def as_text(results: Sequence[Result], width: int | None = None) -> str:
    """Return the table for a terminal, the explanation of its columns, and a conclusion.

    :param width: the width of the terminal in characters. None for no limit.
    """
    is_narrow = width is not None and width < _WIDE_CHARS
    columns = COLUMNS[1:] if is_narrow else COLUMNS
    lines: list[Sequence[object]] = []
    for gains in (True, False):
        shown = _selected(results, gains)
        if shown:
            lines += [*([[""]] if lines else []), ["Faster:" if gains else "Unchanged:"]]
        for comparison, result in shown:
            title, *cells = _cells(comparison, result)
            lines += [[title], [f"  {cells[0]}", *cells[1:]]] if is_narrow else [[title, *cells]]
    notes = [*READING, *problems_of(results)]
    parts = [
        *tables(columns, lines, inf if width is None else width),
        "\n".join(f"- {line}" for line in notes),
        conclusion(results),
    ]
    return "\n" + "\n\n".join(parts)


def _selected(results: Sequence[Result], gains: bool) -> list[tuple[Comparison, Result]]:
    found = {result.row.key: result for result in results}
    return [
        (each, found[each.row.key])
        for each in COMPARISONS
        if each.gains is gains and each.row.key in found
    ]


def problems_of(results: Sequence[Result]) -> list[str]:
    """Return failures with wsgifast, different bodies, and rows that Locust limits."""
    expected = [f"{result.row.title}, {BEFORE}: " for result in results]
    return [
        line
        for line in problems(results)
        if not line.startswith((*expected, "fewer than", "two figures"))  # the text explains both
    ]


def _cells(comparison: Comparison, result: Result) -> list[str]:
    before, after = (result.median(name, _rate) for name in (BEFORE, AFTER))
    return [
        result.row.title,
        comparison.added,
        "no response" if before is None else number_text(before),
        "no response" if after is None else number_text(after),
        _gain(result),
        _cpu(result),
    ]


def _rate(load: Load) -> float:
    return load.requests_per_s


def _gain(result: Result) -> str:
    if ratio := result.ratio(AFTER, _rate):
        return f"{number_text(ratio.median)}x" if ratio.is_clear else "within noise"
    return "now responds" if result.median(AFTER, _rate) else ""


def _cpu(result: Result) -> str:
    ratio = result.ratio(AFTER, result.cost)
    return f"{number_text(ratio.median * 100)} %" if ratio else ""


def conclusion(results: Sequence[Result]) -> str:
    """Return one sentence that sums up the gain in this run."""
    found = {result.row.key.partition(".")[2]: result for result in results}
    clauses = []
    slow_row = found.get("slow-downloads")
    if slow_row and slow_row.median(AFTER, _rate) and not slow_row.median(BEFORE, _rate):
        clauses.append("responds despite slow downloads")
    ratios = [
        ratio.median
        for key in ("file", "rows", "json", "asgi-file")
        if key in found and (ratio := found[key].ratio(AFTER, _rate))
    ]
    if ratios and min(ratios) > 1:
        low, high = (f"{each:.1f}".removesuffix(".0") if each < 10 else f"{each:.0f}"
                     for each in (min(ratios), max(ratios)))  # fmt: skip
        clauses.append(f"sends files, exports and JSON {low} to {high} times as fast")
    small = [ratio for key in ("whole", "small", "asgi-small")
             if key in found and (ratio := found[key].ratio(AFTER, _rate))]  # fmt: skip
    if small and all(not each.is_clear or each.median > 0.9 for each in small):
        clauses.append("serves small responses as before")
    if not clauses:
        return "This run shows no gain: run it again on a quiet machine."
    *first, last = clauses
    comma = "," if len(first) > 1 else ""
    return f"With wsgifast your app {', '.join(first)}{comma}{' and ' if first else ''}{last}."


# These styles show the added part below the request, so that the table fits on a phone.
_STYLE = """<style>
td:first-child, th { white-space: normal; } td:first-child { min-width: 8rem; }
th:nth-child(2), td:nth-child(2) { text-align: right; } td a { color: var(--info); }
td code { color: var(--soft); } @media (max-width: 30rem) {
  table { font-size: .78rem; } th, td { padding: .3rem .15rem; white-space: normal; }
  td:last-child { white-space: nowrap; } td:first-child { min-width: 6rem; } }
</style>"""


def as_html(results: Sequence[Result]) -> str:
    """Return the page, for the folder that contains Locust's reports."""
    links = "Figures are responses per second. Each links to the Locust report of its last round."
    parts = [_STYLE, f'<p class="soft">{links}</p>']
    for gains, title in ((True, "Faster"), (False, "Unchanged")):
        rows = [_html_cells(comparison, result) for comparison, result in _selected(results, gains)]
        if rows:
            request, added, *others = map(page.escaped, COLUMNS)
            shown = page.table([f"{request}<br>{added}", *others], rows)
            parts.append(f"<article><h2>{title}</h2>{shown}</article>")
    notes = "".join(f"<li>{page.escaped(line)}</li>" for line in [*READING, *problems_of(results)])
    parts.append(f"<ul>{notes}</ul><p><strong>{page.escaped(conclusion(results))}</strong></p>")
    facts = {name: value for name, value in machine().items() if name in _FACTS}
    measured_on = ", ".join(f"{name} {value}" for name, value in facts.items())
    return page.page(TITLE, "".join(parts), by="make demo", note=f"{measured_on}.")


def _html_cells(comparison: Comparison, result: Result) -> list[str]:
    title, added, *figures = map(page.escaped, _cells(comparison, result))
    for number, name in enumerate((BEFORE, AFTER)):
        report = report_name(result.row.key, name)
        figures[number] = f'<a href="locust/{report}">{figures[number]}</a>'
    return [f"{title}<br><code>{added}</code>", *figures]


if __name__ == "__main__":
    sys.exit(main())
