"""Provide Locust as a client that can also upload, and can store Locust's HTML reports."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from wsgifast.commands.bench import locust_client
from wsgifast.commands.bench.loads import Load

from .tables import Client, Task


@dataclass
class Locust(locust_client.Locust):
    module: ClassVar[str] = "loadtests.harness.locust_process"

    def client(  # type: ignore[override]
        self, users: int = 1, *, posts: int = 0, form: str = "", reports: Path | None = None
    ) -> Client:
        """Return a client. The response to a POST may have any length.

        :param posts: the size of the bodies of POST requests in bytes. 0 to send GET requests.
        :param form: the name of the form field that contains the body as a file. "" to send no
            form.
        :param reports: an existing folder for Locust's HTML reports. For the names of the files,
            see :func:`report_name`. A later run of a contender replaces the report of an earlier
            run.
        """

        def load(task: Task) -> Load:
            report = str(reports / report_name(task.row, task.contender)) if reports else ""
            sized = replace(task, body_bytes=None) if posts else task
            return self.load(sized, users, posts=posts, form=form, report=report)

        return load


def report_name(row: str, contender: str) -> str:
    """Return the file name of Locust's report.

    :param row: the key of the row.
    :param contender: the name of the contender.
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{row}-{contender}").strip("-") + ".html"
