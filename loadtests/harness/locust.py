"""Locust as a client that also uploads, and keeps Locust's own reports."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from wsgifast.commands.bench import locust_client
from wsgifast.commands.bench.loads import Load

from .tables import Client, Task


@dataclass(frozen=True)
class Run(locust_client.Run):
    """One load run.

    :ivar posts: the size of the body of each request, which is a POST. 0: it is a GET.
    :ivar form: the field of a form in which the body is a file. "": it is no form.
    :ivar report: the file for Locust's own report of this run, in HTML. "": none.
    """

    posts: int = 0
    form: str = ""
    report: str = ""


@dataclass
class Locust(locust_client.Locust):
    module: ClassVar[str] = "loadtests.harness.locust_process"

    def client(  # type: ignore[override]
        self, users: int = 1, *, posts: int = 0, form: str = "", reports: Path | None = None
    ) -> Client:
        """Return a client, see :class:`Run`. The response to a POST may have any length.

        :param reports: an existing folder for Locust's own reports, see :func:`report_name`. A
            later run of the same contender replaces the report of an earlier one.
        """

        def load(task: Task) -> Load:
            run = asdict(self.run(task, users))
            if posts:
                run["expected"] = None
            report = str(reports / report_name(task.row, task.contender)) if reports else ""
            return self.load(Run(**run, posts=posts, form=form, report=report))

        return load


def report_name(row: str, contender: str) -> str:
    """Return the file name of Locust's report of a contender.

    :param row: its row's key.
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{row}-{contender}").strip("-") + ".html"
