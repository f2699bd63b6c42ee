"""Every shape of body, raw and wrapped, under Locust: `make demo`. ASGI's are at the end.

python -m loadtests.demo                       a minute and a half; --profile release ten
python -m loadtests.demo --sockets             over raw sockets, beside the bound of a bare loop
python -m loadtests.demo --serve               raw on 8001, wrapped on 8002, for Locust by hand
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .bench import HOST, Client, Contender, Profile, Row, Serving, Table, locust, raw, running
from .bench.command_line import add_profile_options, command_line
from .bench.compare import RAW, WRAPPED, add_serving_options, is_good, measure, serving_of, sides
from .peers import bare_sendfile
from .shapes import FILE_BYTES, SHAPES, payload_file

__all__ = ["PROFILES", "main", "rows", "table"]

APP = "loadtests.app:app"
ASGI = Serving("loadtests.asgi_app:app", "uvicorn")
PROFILES = {"quick": Profile(0.4, 5, 4.0), "release": Profile(5.0, 5, 120.0)}
# Small answers are asked for by several users at once: one alone would measure the round trip.
SMALL_USERS = 8
# Generators are gathered only when that is asked for.
GATHERED = ("generator-of-1", "rows")
# Not for the table: it takes a second each by design, and those after it belong to others.
LAST = "stream"
ASGI_ROWS = (
    ("file", "ASGI: Starlette's FileResponse", f"/file/{FILE_BYTES}.bin", 1),
    ("crumbs", "ASGI: messages of 100 bytes", "/stream/1048576", 1),
    ("small", "ASGI: a small Response", "/plain", SMALL_USERS),
)


def rows(
    serving: Serving, names: Sequence[str] = (), client: Client | None = None
) -> Iterator[Row]:
    """The shapes: those named, or all, and ASGI's.

    :param client: in place of Locust.
    :raises KeyError: if there is no such shape.
    """
    chosen = [SHAPES[name] for name in names or _shown()]
    for shape in chosen:
        users = SMALL_USERS if shape.name == "small" else 1
        gathered = shape.name in GATHERED
        text = f"{shape.text}, coalesced" if gathered else shape.text
        yield sides(
            f"demo.{shape.name}", text, serving, shape.path, client or locust(users),
            {"coalesce": True} if gathered else {}, body_bytes=shape.size,
        )  # fmt: skip
    if not names:
        for name, text, path, users in ASGI_ROWS:
            yield sides(f"demo.asgi-{name}", text, ASGI, path, client or locust(users))


def _shown() -> list[str]:
    names = list(SHAPES)
    return names[: names.index(LAST) + 1]


def table(serving: Serving, names: Sequence[str] = ()) -> Table:
    """Raw and wrapped under Locust."""
    return Table("demo", f"What an app returns, on {serving}", list(rows(serving, names)), prepare)


def prepare(folder: Path) -> None:
    payload_file(FILE_BYTES)


def _with_bound(row: Row) -> Row:
    """And the same number of bytes from a loop that does nothing else."""
    size = row.body_bytes or FILE_BYTES
    payload_file(size)
    return replace(row, contenders=(*row.contenders, Contender("a bare loop", bare_sendfile(size))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every wrapped request succeeded."""
    parser = command_line("loadtests.demo", __doc__)
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(SHAPES)}; all without one")
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="how long")
    parser.add_argument("--sockets", action="store_true", help="raw sockets in place of Locust")
    parser.add_argument("--serve", action="store_true", help="serve both sides until Ctrl-C")
    add_serving_options(parser)
    add_profile_options(parser)
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.shapes if name not in SHAPES]:
        parser.error(f"no such shape: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    serving = serving_of(parser, given, APP)
    if given.serve:
        return serve(serving, given.port or 8001)
    default = PROFILES[given.profile]
    profile = Profile(
        given.seconds or default.seconds,
        given.rounds or default.rounds,
        given.row_seconds or default.row_seconds,
    )
    of = table(serving, given.shapes)
    if given.sockets:
        bounded = [_with_bound(row) for row in rows(serving, given.shapes, raw())]
        of = replace(of, name="demo-sockets", rows=bounded)
    results, status = measure([of], profile, port=given.port)
    return status or int(not given.sockets and not all(is_good(result) for result in results))


def serve(serving: Serving, port: int) -> int:
    """Serve the bundled app raw and wrapped until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        both: dict[str, dict[str, object] | None] = {RAW: None, WRAPPED: {}}
        for number, (name, options) in enumerate(both.items()):
            address = (HOST, port + number)
            command, _ = serving.side(options).placed({"{port}": str(address[1])})
            server = stack.enter_context(running(command, address))
            print(f"{name:<8} {server.url}")
        print(f"\nIn another terminal:\n  locust -f loadtests/locustfile.py -H {server.url}")
        print("Ctrl-C ends both servers.", flush=True)
        while True:
            time.sleep(1)
            server.check()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
