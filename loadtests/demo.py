"""Every shape of body, raw and wrapped, under Locust: `make demo`. ASGI's are at the end.

python -m loadtests.demo                       two minutes; --profile release ten
python -m loadtests.demo demo.list demo.small  some shapes; --list tells all
python -m loadtests.demo sockets               over raw sockets, beside the bound of a bare loop
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .bench import Client, Contender, Locust, Profile, Row, Table, raw, sides
from .command import main
from .peers import bare_sendfile
from .shapes import FILE_BYTES, SHAPES, Shape, payload_files

__all__ = ["TABLES", "rows"]

APP, ASGI_APP = "loadtests.app:app", "loadtests.asgi_app:app"
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


def rows(locust: Locust) -> Iterator[Row]:
    """All shapes on gunicorn's gthread worker, and ASGI's on uvicorn."""
    for shape in _shown():
        users = SMALL_USERS if shape.name == "small" else 1
        yield _row("demo", shape, locust.client(users))
    for name, text, path, users in ASGI_ROWS:
        found = sides(ASGI_APP, "uvicorn")
        contenders = tuple(Contender(name, server, path) for name, server in found.items())
        yield Row(f"demo.asgi-{name}", text, contenders, locust.client(users))


def _row(table: str, shape: Shape, client: Client, *more: Contender) -> Row:
    gathered = shape.name in GATHERED
    found = sides(APP, "gunicorn", ["gthread"], {"coalesce": True} if gathered else {})
    contenders = tuple(Contender(name, server, shape.path) for name, server in found.items())
    text = f"{shape.text}, coalesced" if gathered else shape.text
    key = f"{table}.{shape.name}"
    return Row(key, text, (*contenders, *more), client, body_bytes=shape.size)


def _shown() -> list[Shape]:
    names = list(SHAPES)
    return [SHAPES[name] for name in names[: names.index(LAST) + 1]]


def _beside_the_bound() -> Iterator[Row]:
    """And the same number of bytes from a loop that does nothing else."""
    for shape in _shown():
        bound = Contender("a bare loop", bare_sendfile(shape.size))
        yield _row("sockets", shape, raw(), bound)


LOCUST = Locust()
TABLES = [Table("demo", "What an app returns", list(rows(LOCUST)), payload_files(FILE_BYTES))]
SOCKETS = Table(
    "demo-sockets",
    "What an app returns, over raw sockets",
    list(_beside_the_bound()),
    payload_files(*{shape.size for shape in _shown()}),
)

if __name__ == "__main__":
    of = [*TABLES, SOCKETS] if "sockets" in "".join(sys.argv) else TABLES
    with LOCUST:
        raise SystemExit(main("loadtests.demo", __doc__, of, profiles=PROFILES, judged=True))
