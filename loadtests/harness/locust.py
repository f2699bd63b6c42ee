"""Locust as a client that can also upload, and can store Locust's HTML reports."""

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
    """One run of the client.

    :ivar posts: the size of the bodies of POST requests in bytes. 0 to send GET requests.
    :ivar form: the name of the form field that contains the body as a file. "" to send no form.
    :ivar report: the path for Locust's HTML report of the run. "" for no report.
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
        """Return a client. See :class:`Run`. The response to a POST may have any length.

        :param reports: an existing folder for Locust's HTML reports, see :func:`report_name`. A
            later run of a contender replaces the report of an earlier run.
        """

        def load(task: Task) -> Load:
            run = asdict(self.run(task, users))
            if posts:
                run["expected"] = None
            report = str(reports / report_name(task.row, task.contender)) if reports else ""
            return self.load(Run(**run, posts=posts, form=form, report=report))

        return load


def report_name(row: str, contender: str) -> str:
    """Return the file name of Locust's report.

    :param row: the key of the row.
    :param contender: the name of the contender.
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{row}-{contender}").strip("-") + ".html"
