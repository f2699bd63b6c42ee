"""Run Locust in a process of its own, with users that can also upload."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsgifast.commands.bench import locust_process
from wsgifast.commands.bench.locust_process import CLOCK, FAILED, GOOD, Visitor, main

# isort: split
# These imports must follow the import above, because it imports Locust, which patches ssl.
from locust.env import Environment
from locust.html import get_html_report


@dataclass(frozen=True)
class Run(locust_process.Run):
    """One run.

    :ivar posts: the size of the bodies of POST requests in bytes. 0 to send GET requests.
    :ivar form: the name of the form field that contains the body as a file. "" to send no form.
    :ivar report: the path for Locust's HTML report of the run. "" for no report.
    """

    posts: int = 0
    form: str = ""
    report: str = ""


class Uploader(Visitor):
    def body(self, headers: dict[str, str]) -> bytes | None:
        run: Any = self.progress.run
        if run.form:
            form, headers["Content-Type"] = _form(run.form, run.posts)
            return form
        return bytes(run.posts) if run.posts else None


def _form(field: str, size: int) -> tuple[bytes, str]:
    """Return a form with a file of this size in bytes, and its Content-Type (RFC 7578)."""
    disposition = f'Content-Disposition: form-data; name="{field}"; filename="file.bin"'
    kind = "Content-Type: application/octet-stream"
    body = f"--between\r\n{disposition}\r\n{kind}\r\n\r\n".encode() + bytes(size)
    return body + b"\r\n--between--\r\n", "multipart/form-data; boundary=between"


def _write_report(environment: Environment, run: Run) -> None:
    """Write Locust's HTML report of a run. Show the path as the name, and times in milliseconds."""
    if not run.report:
        return
    entries: list[Any] = [*environment.stats.entries.values(), environment.stats.total]
    for each in entries:
        each.name = {GOOD: run.path, FAILED: f"{run.path} (failed)"}.get(each.name, each.name)
        clocks_per_ms = CLOCK / 1e3
        times = Counter[float]()
        for time_us, count in each.response_times.items():
            times[time_us / clocks_per_ms] += count
        each.response_times = dict(times)
        each.total_response_time /= clocks_per_ms
        each.max_response_time /= clocks_per_ms
        if each.min_response_time is not None:
            each.min_response_time /= clocks_per_ms
    page: str = get_html_report(environment)  # type: ignore[no-untyped-call]
    Path(run.report).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Uploader, Run, _write_report)
