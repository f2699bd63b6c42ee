"""Runs tables: what every comparison prints and writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arguments import STATUS_INTERRUPTED, STATUS_NOT_STARTED, write_file
from ..terminal import output_width, progress_line, show
from .processes import HOST, ServerFailed
from .report import as_html, as_json, machine, now, results_text, rows_figures
from .results import Result
from .runner import run_rows
from .tables import Profile, Table


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
    :param keep_rows: what is in FOLDER/NAME.json already stays there, but for the rows of this run.
    :returns: the results, and an exit status: 3 if a server or a client of a table failed, so that
        the results of that row are missing, or of all if it is the first; 130 if it was stopped.
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
    """Of a file that is none there are none."""
    try:
        rows: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["rows"]
    except (FileNotFoundError, ValueError, LookupError):
        return {}
    return rows


def _measured(table: Table, profile: Profile, host: str) -> tuple[list[Result], int]:
    """The rows that went well, and an exit status."""
    results: list[Result] = []
    status = 0
    rows = list(table.rows)
    while rows:
        left = replace(table, rows=tuple(rows))
        try:
            with progress_line() as progress:
                for result in run_rows(left, profile, host=host, progress=progress):
                    results.append(result)
                    del rows[0]
        except KeyboardInterrupt:
            show("Stopped; the servers have ended.", error=True)
            return results, STATUS_INTERRUPTED
        except (ServerFailed, RuntimeError, OSError, subprocess.SubprocessError) as error:
            show(f"error: {table.title}, {rows[0].title}: {error}", error=True)
            status = STATUS_NOT_STARTED
            # The next row may do better, unless this is about the app itself.
            rows = rows[1:] if results else []
    return results, status
