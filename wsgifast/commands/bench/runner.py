"""The runner of every comparison: real servers, loaded in turn.

The contenders of a row run in turn (A B A B ...), so that a slow minute of the machine affects all.
A figure is the median of its runs; a ratio is the median of the rounds' ratios, with its spread.
The baseline may run again at the end of each round: the difference between its two figures is the
machine's noise, and there is no verdict on a smaller difference. Each result has the server's CPU
time, and says which side was busy all the time. Before the load each contender is requested once,
the first one twice, to report bodies that differ.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import STATUS_INTERRUPTED, STATUS_NOT_STARTED, STATUS_USAGE, write_file
from ..terminal import Progress, output_width, progress_line, show
from .locust_client import LocustFailed
from .processes import HOST, RunningServer, Server, ServerFailed, running_server, temporary_folder
from .report import as_html, as_json, machine, now, results_text, rows_figures
from .results import Result
from .tables import (
    Client,
    Contender,
    Load,
    Profile,
    Row,
    Seen,
    Table,
    Task,
    cpu_seconds,
    look,
)

# A contender's second run in a round, where there is one.
_AGAIN = "the first again, for the noise"


def run(
    table: Table,
    profile: Profile,
    *,
    host: str = HOST,
    progress: Progress = lambda done, total, what: None,
) -> Iterator[Result]:
    """Start the contenders' servers, and load each row's in turn.

    :param host: where the servers listen.
    :raises ServerFailed: if a server does not start, or ends; with its log.
    """
    with temporary_folder(table.name) as folder, contextlib.ExitStack() as stack:
        table.prepare(folder)
        servers = _Servers(host, folder, stack)
        for number, row in enumerate(table.rows):

            def report_step(step: str, title: str = row.title, number: int = number) -> None:
                progress(number, len(table.rows), f"{title}: {step}")

            report_step("starting")
            tasks = {c.name: servers.task(c, row, profile) for c in row.contenders}
            seen, changes = servers.look(row, tasks)
            if row.body_bytes is None and not changes:
                # Each contender has its own size: one may compress what another sends as it is. A
                # coded body may have another size each time.
                sizes = {n: one.body_bytes for n, one in seen.items() if one.ok and not one.coding}
                tasks = {n: replace(task, body_bytes=sizes.get(n)) for n, task in tasks.items()}
            runs = {c.name: partial(servers.measure, c, row, tasks[c.name]) for c in row.contenders}
            base = row.ours or row.contenders[0].name
            if profile.noise and len(runs) > 1:
                runs[_AGAIN] = runs[base]
            samples: dict[str, list[Load]] = {name: [] for name in runs}
            rounds, begun = row.rounds or profile.rounds, time.monotonic()
            for turn in range(1, rounds + 1):
                if turn > 1 and time.monotonic() - begun > profile.row_seconds:
                    break
                for name, measured in runs.items():
                    report_step(f"{turn}/{rounds} {name}")
                    samples[name].append(measured())
            again = samples.pop(_AGAIN, [])
            yield Result(row, samples, seen, changes, again)


class _Servers:
    """The servers of a table's contenders: each kind is started when it is first needed."""

    def __init__(self, host: str, folder: Path, stack: contextlib.ExitStack) -> None:
        self._host = host
        self._folder = folder
        self._stack = stack
        self._running: dict[Server, RunningServer] = {}

    def task(self, contender: Contender, row: Row, profile: Profile) -> Task:
        task = Task(
            contender.path,
            row.seconds or profile.seconds,
            headers=row.headers,
            body_bytes=row.body_bytes,
            tls=contender.server is not None and contender.server.tls,
            full=profile.full,
            folder=self._folder,
            row=row.key,
            contender=contender.name,
        )
        if contender.server is None or contender.fresh:
            return task
        return _at(task, self._shared(contender.server, contender.name))

    def look(self, row: Row, tasks: Mapping[str, Task]) -> tuple[dict[str, Seen], bool]:
        """Ask every contender once, and whether the first one's body changes by itself."""
        seen: dict[str, Seen] = {}
        for contender in row.contenders:
            if contender.server is None or contender.fresh or contender.client is not None:
                continue
            seen[contender.name] = look(tasks[contender.name])
            self._shared(contender.server).check()
        first = next((c for c in row.contenders if c.name in seen), None)
        if first is None or first.server is None or not seen[first.name].ok:
            return seen, False
        again = look(tasks[first.name])
        differ = len({one.digest for one in seen.values() if one.ok}) > 1
        if differ and again.digest == seen[first.name].digest:
            # In another process: some apps put a token of their process into each page.
            with self._started(first.server, first.name) as server:
                again = look(_at(tasks[first.name], server))
        return seen, again.ok and again.digest != seen[first.name].digest

    def measure(self, contender: Contender, row: Row, task: Task) -> Load:
        """One run."""
        client = contender.client or row.client
        if contender.server is None:
            contender.ready(task)
            return client(task)
        if not contender.fresh:
            return _one_run(contender, client, task, self._shared(contender.server))
        with self._started(contender.server, contender.name) as server:
            return _one_run(contender, client, _at(task, server), server)

    def _shared(self, server: Server, name: str = "") -> RunningServer:
        if server not in self._running:
            self._running[server] = self._stack.enter_context(self._started(server, name))
        return self._running[server]

    def _started(self, server: Server, name: str) -> AbstractContextManager[RunningServer]:
        return running_server(server, name, folder=self._folder, host=self._host)


def _one_run(contender: Contender, client: Client, task: Task, server: RunningServer) -> Load:
    contender.ready(task)
    before = cpu_seconds(task.pid)
    load = client(task)
    load = replace(load, server_cpu_s=cpu_seconds(task.pid) - before)
    server.check()
    return load


def _at(task: Task, server: RunningServer) -> Task:
    return replace(task, address=server.address, pid=server.pid)


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
    """Run tables; print each, write FOLDER/NAME.json for each, and a page of all.

    :param host: where the servers listen.
    :param page_name: of the page; by default the first table's.
    :param keep_rows: keep the rows of an existing FOLDER/NAME.json that this run does not measure.
    :returns: the results, and an exit status: 3 if a server or a client failed, so that its row has
        no result, and its table has none if that was the first row; 130 if it was stopped.
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
            text = results_text(results, output_width())
            show(f"\n{table.title}\n\n{text}{notes}")
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


def _rows(report: Path) -> dict[str, Any]:
    """The rows of an earlier report; none if the file is not a report."""
    try:
        rows: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["rows"]
    except (FileNotFoundError, ValueError, LookupError):
        return {}
    return rows


def _measured(table: Table, profile: Profile, host: str) -> tuple[list[Result], int]:
    """The rows that succeeded, and an exit status."""
    results: list[Result] = []
    status = 0
    rows = list(table.rows)
    while rows:
        left = replace(table, rows=tuple(rows))
        try:
            with progress_line() as progress:
                for result in run(left, profile, host=host, progress=progress):
                    results.append(result)
                    del rows[0]
        except KeyboardInterrupt:
            show("Stopped; the servers have ended.", error=True)
            return results, STATUS_INTERRUPTED
        except LocustFailed as error:
            show(f"error: {table.title}, {rows[0].title}: {error}", error=True)
            return results, STATUS_USAGE
        except (ServerFailed, RuntimeError, OSError, subprocess.SubprocessError) as error:
            show(f"error: {table.title}, {rows[0].title}: {error}", error=True)
            status = STATUS_NOT_STARTED
            # The next row may do better, unless this is about the app itself.
            rows = rows[1:] if results else []
    return results, status
