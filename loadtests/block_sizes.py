"""In which blocks is a file read, and from which size on is a chunk left alone?

python -m loadtests.block_sizes

gunicorn's gthread worker sends a 16 MiB body in chunks of each size: read from a file (without
sendfile), and from a list in memory. The constants BLOCK_BYTES (wsgifast.bodies.files) and
LARGE_CHUNK_BYTES (wsgifast.bodies.chunks) are where these columns become flat.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.command_line import command_line
from loadtests.measuring import (
    Measured,
    alternate,
    drive,
    free_port,
    gunicorn_command,
    measured,
    running,
    save,
    table,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

BODY_BYTES = 16 * 1024 * 1024
BLOCK_KIB = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REQUESTS = 10
ROUNDS = 5


@cache
def _body_file() -> int:
    """The descriptor of a file of BODY_BYTES; it has no name, and goes with the process."""
    with tempfile.TemporaryFile() as file:
        file.truncate(BODY_BYTES)
        return os.dup(file.fileno())


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """/file/KIB and /list/KIB: the same bytes in blocks of so many KiB."""
    _, kind, kib = environ["PATH_INFO"].split("/")
    size = int(kib) * 1024
    start_response("200 OK", [("Content-Length", str(BODY_BYTES))])
    if kind == "file":
        file = open(f"/proc/self/fd/{_body_file()}", "rb", buffering=0)
        return environ["wsgi.file_wrapper"](file, size)
    return [bytes(size)] * (BODY_BYTES // size)


def main() -> None:
    command_line("loadtests.block_sizes", __doc__).parse_args()
    address = ("127.0.0.1", free_port())
    command = gunicorn_command("loadtests.block_sizes:app", address, options=("--no-sendfile",))
    root = Path(__file__).resolve().parents[1]
    with running(command, address, cwd=root) as server:
        contenders: dict[str, Callable[[], Measured]] = {
            f"/{kind}/{kib}": partial(
                measured, server, partial(drive, address, f"/{kind}/{kib}", requests=REQUESTS)
            )
            for kib in BLOCK_KIB
            for kind in ("file", "list")
        }
        runs = alternate(contenders, rounds=ROUNDS, progress=print)
    rows = []
    for kib in BLOCK_KIB:
        row: list[object] = [f"{kib} KiB"]
        for kind in ("file", "list"):
            results = runs[f"/{kind}/{kib}"]
            row.append(f"{statistics.median(r.load.megabytes_per_s for r in results):,.0f}")
            row.append(f"{statistics.median(r.cpu_s_per_gb for r in results):.2f}")
        rows.append(row)
    print(table(["block", "file MB/s", "CPU s/GB", "list MB/s", "CPU s/GB"], rows))
    save("block-sizes", {"rows": rows})


if __name__ == "__main__":
    main()
