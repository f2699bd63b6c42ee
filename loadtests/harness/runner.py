"""Run the rows of tables, and write their reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from wsgifast.commands.arguments import STATUS_INTERRUPTED, write_file
from wsgifast.commands.bench.loads import FirstResponse, Load
from wsgifast.commands.bench.processes import HOST, temporary_folder
from wsgifast.commands.bench.report import as_json, now
from wsgifast.commands.bench.runner import (
    Report,
    Servers,
    all_results,
    at,
    one_run,
    sized,
    take_turns,
)
from wsgifast.commands.terminal import Progress, output_width, show

from .machine import machine
from .report import as_html, results_text, rows_figures
from .results import Result
from .tables import Contender, Profile, Row, Table, Task


def run(
    table: Table,
    profile: Profile,
    *,
    host: str = HOST,
    progress: Progress = lambda done, total, what: None,
) -> Iterator[Result]:
    """Start the servers of the contenders, and measure one row after another.

    :param host: the address that the servers listen on.
    :raises ServerFailed: if a server does not start, or ends. The message contains its log.
    """
    with temporary_folder(table.name) as folder, Servers(host, folder) as servers:
        table.prepare(folder)
        for number, row in enumerate(table.rows):

            def report(step: str, title: str = row.title, number: int = number) -> None:
                progress(number, len(table.rows), f"{title}: {step}")

            yield _run_row(row, servers, profile, folder, report)


def _run_row(row: Row, servers: Servers, profile: Profile, folder: Path, report: Report) -> Result:
    report("starting")
    tasks = {c.name: _task(servers, c, row, profile, folder) for c in row.contenders}
    first, changes = _first_responses(servers, row, tasks)
    if row.body_bytes is None and not changes:
        tasks = sized(tasks, first)
    runs: dict[str, Callable[[], Load]] = {
        c.name: partial(_measure, servers, c, row, tasks[c.name]) for c in row.contenders
    }
    base = row.ours or row.contenders[0].name
    samples, again = take_turns(
        runs, base, row.rounds or profile.rounds,
        limit_s=profile.row_seconds, noise=profile.noise, report=report,
    )  # fmt: skip
    return Result(row.title, samples, first, changes, again, row=row)


def _task(servers: Servers, contender: Contender, row: Row, profile: Profile, folder: Path) -> Task:
    task = Task(
        contender.path,
        row.seconds or profile.seconds,
        headers=row.headers,
        body_bytes=row.body_bytes,
        tls=contender.server is not None and contender.server.tls,
        full=profile.full,
        folder=folder,
        row=row.key,
        contender=contender.name,
    )
    if contender.server is None or contender.fresh:
        return task
    return at(task, servers.get(contender.server, contender.name))


def _first_responses(
    servers: Servers, row: Row, tasks: Mapping[str, Task]
) -> tuple[dict[str, FirstResponse], bool]:
    """Request each contender once that has a running server and the row's client."""
    requested = {
        c.name: c.server
        for c in row.contenders
        if c.server is not None and not c.fresh and c.client is None
    }
    return servers.first_responses(requested, tasks)


def _measure(servers: Servers, contender: Contender, row: Row, task: Task) -> Load:
    """Make one run of a contender."""
    client = contender.client or row.client
    if contender.server is None:
        contender.ready(task)
        return client(task)
    if not contender.fresh:
        contender.ready(task)
        return one_run(client, task, servers.get(contender.server))
    with servers.started(contender.server, contender.name) as server:
        task = at(task, server)
        contender.ready(task)
        return one_run(client, task, server)


def measure(
    tables: Sequence[Table],
    profile: Profile,
    *,
    folder: Path,
    host: str = HOST,
    page_name: str = "",
    page_title: str = "",
    keep_rows: bool = False,
) -> tuple[list[Result], int]:
    """Run tables. Print each table, write it to FOLDER/NAME.json, and write an HTML page.

    :param host: the address that the servers listen on.
    :param page_name: the file name of the page. By default, the name of the first table.
    :param keep_rows: whether FOLDER/NAME.json keeps rows that this run does not measure.
    :returns: the results, and the exit status of `all_results()`.
    """
    parts: list[tuple[Table, list[Result]]] = []
    status = 0
    facts, when = machine(), now()
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        show(f"{table.title}; {facts['python']}, {facts['cores']} cores", error=True)
        results, failed = _measured(table, profile, host)
        status = failed or status
        if results:
            notes = "".join(f"\n- {note}" for note in table.notes)
            show(f"\n{table.title}\n\n{results_text(results, output_width())}{notes}")
            path = folder / f"{table.name}.json"
            rows = _rows(path) if keep_rows else {}
            rows.update(rows_figures(results, profile, when))
            write_file(path, as_json(table.title, rows))
            show(f"\n{path}")
            parts.append((table, results))
        if failed == STATUS_INTERRUPTED:
            break
    if parts:
        path = folder / f"{page_name or tables[0].name}.html"
        write_file(path, as_html(page_title or tables[0].title, parts))
        show(str(path))
    return [result for _, results in parts for result in results], status


def _measured(table: Table, profile: Profile, host: str) -> tuple[list[Result], int]:
    with temporary_folder(table.name) as folder, Servers(host, folder) as servers:

        def measure_row(number: int, report: Report) -> Result:
            if number == 0:
                table.prepare(folder)
            return _run_row(table.rows[number], servers, profile, folder, report)

        return all_results(table.title, [row.title for row in table.rows], measure_row, servers)


def _rows(report: Path) -> dict[str, Any]:
    """Return the rows of an earlier report. Return {} if the file is not a report."""
    try:
        rows: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["rows"]
    except (FileNotFoundError, ValueError, LookupError):
        return {}
    return rows
