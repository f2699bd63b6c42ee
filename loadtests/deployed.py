"""Configure servers and requests as in production.

`python -m loadtests --deployed` and `make demo` change servers and requests like this:

- Servers with an access log write it to a pipe, which another process reads.
- FastWorker and asgifast's protocols have metrics.
- ASGI servers in Python use uvloop.
- Each request has the 11 headers of a browser.

    python -m loadtests.deployed PIPE MODULE ARGUMENT ...

starts a server, such as gunicorn, with PIPE as its standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from wsgifast.commands.bench.processes import HOST, Server, free_port, temporary_folder
from wsgifast.commands.bench.serving import FAST_WORKER, OUR_PROTOCOL
from wsgifast.commands.client import BROWSER_ACCEPT_ENCODING
from wsgifast.commands.loading.servers import MODULE

from .harness.tables import Contender, Row, Table

# The headers of a browser, except Host and Connection, which each client adds.
_HEADERS = (
    ": ".join(BROWSER_ACCEPT_ENCODING),
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Cookie: session=7b1f0c52e9d84a6f; theme=dark",
    "Sec-Fetch-Dest: document",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-Site: none",
    "Sec-Fetch-User: ?1",
    "Upgrade-Insecure-Requests: 1",
    "Priority: u=0, i",
)
# Maps the module of a server to the options to add for an access log, and to the options to remove.
_LOGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gunicorn": (("--access-logfile", "-"), ()),
    "uvicorn": (
        ("--access-log", "--log-level=info", "--loop=uvloop"),
        ("--no-access-log", "--log-level=warning"),
    ),
    "granian": (("--access-log", "--log-level=info"), ("--log-level=warning",)),
    "hypercorn": (
        ("--access-logfile=-", "--log-level=info", "--worker-class=uvloop"),
        ("--log-level=error", "--worker-class=asyncio"),
    ),
}
NOTE = (
    "*As deployed* means: the servers write access logs to a pipe. They have metrics if they "
    "support them. ASGI servers in Python use uvloop. Each request has the headers of a browser."
)


@contextlib.contextmanager
def deployed() -> Iterator[Deployment]:
    """Provide a Deployment with a pipe. Another process reads the pipe, and drops the bytes."""
    with temporary_folder("deployed") as folder:
        pipe = folder / "access.log"
        os.mkfifo(pipe)
        # This process also opens the pipe for writing, so that the reader does not end when a
        # server ends.
        with open(os.open(pipe, os.O_RDWR), "wb"), pipe.open("rb") as source:
            reader = subprocess.Popen(["cat"], stdin=source, stdout=subprocess.DEVNULL)
            try:
                yield Deployment(pipe)
            finally:
                reader.kill()
                reader.wait()


class Deployment:
    """A deployment changes the servers and requests of a table to those of production.

    :param pipe: the pipe for access logs.
    """

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe

    def table(self, table: Table) -> Table:
        return replace(
            table,
            rows=[self._row(row) for row in table.rows],
            notes=(*table.notes, NOTE),
        )

    def _row(self, row: Row) -> Row:
        row_names = {header.partition(":")[0] for header in row.headers}
        headers = [header for header in _HEADERS if header.partition(":")[0] not in row_names]
        contenders = tuple(map(self._contender, row.contenders))
        return replace(row, contenders=contenders, headers=(*row.headers, *headers))

    def _contender(self, contender: Contender) -> Contender:
        if contender.server is None:
            return contender
        return replace(contender, server=self.server(contender.server))

    def server(self, server: Server) -> Server:
        """Return a deployed server. A server without an access log is returned unchanged."""
        python, flag, module, *options = server.argv
        if (python, flag) != ("python", "-m") or module not in _LOGS:
            return server
        added, removed = _LOGS[module]
        if "--access-logfile" in options:
            added = ()
        options = [option for option in options if option not in removed]
        program = ("python", "-m", "loadtests.deployed", str(self._pipe), module)
        env = server.env
        if {FAST_WORKER, f"--http={OUR_PROTOCOL}"} & {*options}:
            env = (*env, ("WSGIFAST_METRICS", f"{HOST}:{free_port()}"))
        return replace(server, argv=(*program, *added, *options), env=env)


def main() -> None:
    """Replace this process by the server."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.deployed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pipe", help="the pipe for the server's output")
    parser.add_argument("module", help="the server's module, such as gunicorn")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the server's arguments")
    options = parser.parse_args()
    os.dup2(os.open(options.pipe, os.O_WRONLY), sys.stdout.fileno())
    os.execv(sys.executable, [sys.executable, *MODULE, options.module, *options.arguments])


if __name__ == "__main__":
    main()
