"""What does it cost to decide how a file is answered?

python -m loadtests.files_core

Calls in one process, without a server: our plan, WhiteNoise's StaticFile.get_response, and
Werkzeug's functions for conditions and ranges, for a 200, a 304, a 206 and a multi-range 206.
WhiteNoise opens the file inside its call for all but a 304, so ours opens and closes it too in the
row beside it; Werkzeug's functions only decide, and have to stand beside our plan alone. Neither
answers several ranges: WhiteNoise sends the whole, Werkzeug's range_for_length gives None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from werkzeug.http import is_resource_modified, parse_range_header
from whitenoise.responders import StaticFile

from loadtests.command_line import command_line
from loadtests.measuring import Ratio, alternate, save, table, temporary_folder
from wsgifast.file_answers import request_facts
from wsgifast.files import describe, stat_etag

FILE_BYTES = 1024
CALLS = 5_000
ROUNDS = 9
Environ = dict[str, Any]


def requests(etag: str) -> dict[str, Environ]:
    """What a browser sends, with what makes the answer."""
    plain = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/file.txt",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "HTTP_USER_AGENT": "Mozilla/5.0",
        "HTTP_ACCEPT": "*/*",
        "HTTP_ACCEPT_ENCODING": "gzip, deflate, br, zstd",
    }
    return {
        "200": plain,
        "304": {**plain, "HTTP_IF_NONE_MATCH": etag},
        "206": {**plain, "HTTP_RANGE": "bytes=100-199"},
        "206 of three ranges": {**plain, "HTTP_RANGE": "bytes=0-9,100-199,-20"},
    }


def microseconds(call: Callable[[], object]) -> float:
    """The mean time of a call, over CALLS of them."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


class Contenders:
    """The same file described to each of the three."""

    def __init__(self, path: Path) -> None:
        facts = os.stat(path)
        self.path = path
        self.modified = datetime.fromtimestamp(int(facts.st_mtime), timezone.utc)
        self.etag = stat_etag(facts.st_size, facts.st_mtime_ns) or ""
        headers = [("Cache-Control", "max-age=60"), ("Access-Control-Allow-Origin", "*")]
        self.file = describe(
            size=facts.st_size,
            mtime_ns=facts.st_mtime_ns,
            now=time.time(),
            etag=self.etag,
            content_type="text/plain",
            headers=headers,
        )
        headers += [("Content-Type", "text/plain"), ("ETag", self.etag)]
        self.static_file = StaticFile(os.fspath(path), headers)

    def ours(self, environ: Environ) -> None:
        self.file.plan(request_facts(environ))

    def ours_with_open(self, environ: Environ) -> None:
        answer = self.file.plan(request_facts(environ))
        if answer.segments:
            open(self.path, "rb").close()

    def whitenoise(self, environ: Environ) -> None:
        response = self.static_file.get_response(environ["REQUEST_METHOD"], environ)
        if response.file is not None:
            response.file.close()

    def werkzeug(self, environ: Environ) -> None:
        if is_resource_modified(environ, self.etag, last_modified=self.modified):
            ranges = parse_range_header(environ.get("HTTP_RANGE"))
            content_range = ranges and ranges.make_content_range(FILE_BYTES)
            if content_range:
                content_range.to_header()


def main() -> None:
    command_line("loadtests.files_core", __doc__).parse_args()
    rows, figures = [], {}
    with temporary_folder("core") as folder:
        path = Path(folder, "file.txt")
        path.write_bytes(os.urandom(FILE_BYTES))
        contenders = Contenders(path)
        for name, environ in requests(contenders.etag).items():
            calls: dict[str, Callable[[], float]] = {
                each.__name__: partial(microseconds, partial(each, environ))
                for each in (
                    contenders.ours,
                    contenders.werkzeug,
                    contenders.ours_with_open,
                    contenders.whitenoise,
                )
            }
            runs = alternate(calls, rounds=ROUNDS)
            gains = (
                Ratio.of(runs["werkzeug"], runs["ours"]),
                Ratio.of(runs["whitenoise"], runs["ours_with_open"]),
            )
            us = {who: median(times) for who, times in runs.items()}
            rows.append(
                [
                    name,
                    us["ours"],
                    us["werkzeug"],
                    gains[0],
                    us["ours_with_open"],
                    us["whitenoise"],
                    gains[1],
                ]
            )
            figures[name] = {"microseconds": runs, "werkzeug / ours": gains[0]}
            figures[name]["whitenoise / ours with open"] = gains[1]
    columns = ["us per call", "ours", "werkzeug", "/ ours", "ours + open", "whitenoise", "/ ours"]
    print(table(columns, rows))
    print(save("files-core", {"calls": figures}))


if __name__ == "__main__":
    main()
