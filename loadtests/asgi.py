"""The ASGI half against what is there: uvicorn as it is, and granian; and on servers that stay.

    python -m loadtests.asgi [asgi. | others.] [--profile release]

One worker each, access logs off, kept-alive connections. `others` is what ASGIFast alone does on
hypercorn, granian, anycorn, daphne and gunicorn's own asgi worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .bench import (
    BYTES,
    REQUESTS,
    Case,
    Client,
    Contender,
    Row,
    Server,
    Table,
    Unit,
    case_rows,
    raw,
    wrk,
)
from .command import main
from .peers import anycorn, bare_receive, daphne, granian, gunicorn_asgi, hypercorn, uvicorn
from .shapes import FILE_BYTES, MIB, payload_files
from .uploading import upload

__all__ = ["APP", "TABLES"]

APP = "loadtests.asgi_app:app"
FAST = "loadtests.asgi_app:fast"
OUR_LARGE = f"/our-file/{FILE_BYTES}.bin"
LARGE, SMALL = f"/file/{FILE_BYTES}.bin", "/file/1024.bin"
PLAIN, OURS, ALONE = "uvicorn", "our protocol", "uvicorn + ASGIFast"
SERVERS = {
    PLAIN: uvicorn(APP),
    OURS: uvicorn(APP, ours=True),
    ALONE: uvicorn(FAST),
    "our protocol + ASGIFast": uvicorn(FAST, ours=True),
    "uvicorn + a bare middleware": uvicorn("loadtests.asgi_app:limit"),
    "granian": granian(APP),
    "asyncio's loop": uvicorn(APP, "--loop=asyncio"),
    "our protocol, asyncio's loop": uvicorn(APP, "--loop=asyncio", ours=True),
    "asyncio's loop + ASGIFast": uvicorn(FAST, "--loop=asyncio"),
}


def _row(
    key: str, title: str, unit: Unit, *sides: tuple[str, str], headers: tuple[str, ...] = ()
) -> Row:
    """:param sides: pairs of a server's name and a path; a server that comes twice is told apart
    by its path."""
    names = [name for name, _ in sides]
    contenders = tuple(
        Contender(f"{name} {path}" if names.count(name) > 1 else name, SERVERS[name], path)
        for name, path in sides
    )
    client: Client = raw() if unit is BYTES else wrk(8)
    return Row(f"asgi.{key}", title, contenders, client, unit, headers=headers)


ROWS = [
    _row(
        "file-large", "FileResponse 10 MiB", BYTES,
        (PLAIN, LARGE), (OURS, LARGE), (ALONE, LARGE), ("granian", LARGE),
    ),
    _row(
        "file-ranges", "FileResponse 10 MiB by 1 MiB ranges", BYTES,
        (PLAIN, LARGE), (OURS, OUR_LARGE), (ALONE, OUR_LARGE), ("granian", LARGE),
        headers=(f"Range: bytes={3 * MIB}-{4 * MIB - 1}",),
    ),
    _row(
        "file-small", "FileResponse 1 KiB", REQUESTS,
        (PLAIN, SMALL), (OURS, SMALL), (OURS, "/our-file/1024.bin"), ("granian", SMALL),
    ),
    _row(
        "static-small", "StaticFiles 1 KiB", REQUESTS,
        (PLAIN, "/static/1024.bin"), (OURS, "/static/1024.bin"),
        (PLAIN, "/our-static/1024.bin"), (OURS, "/our-static/1024.bin"),
    ),
    _row(
        "crumbs", "100,000 messages of 100 bytes", BYTES,
        (PLAIN, "/crumbs/"), (OURS, "/crumbs/"), (ALONE, "/crumbs/"),
    ),
    _row(
        "crumbs-asyncio", "the same on asyncio's own loop", BYTES,
        ("asyncio's loop", "/crumbs/"), ("our protocol, asyncio's loop", "/crumbs/"),
        ("asyncio's loop + ASGIFast", "/crumbs/"),
    ),
    _row(
        "response", "Response 1 KiB", REQUESTS,
        *((name, "/plain") for name in (
            PLAIN, OURS, ALONE, "uvicorn + a bare middleware", "our protocol + ASGIFast"
        )),
    ),
]  # fmt: skip


# One upload a run, into memory: what a disk takes is not what is compared.
IN_MEMORY = (("TMPDIR", "/dev/shm"),) if Path("/dev/shm").is_dir() else ()
ROWS += [
    Row(
        f"asgi.upload.{key}",
        f"1 GiB {title} (in a short run 128 MiB)",
        tuple(
            Contender(name, replace(server, env=IN_MEMORY), f"/upload/{path}")
            for name, server in sides
        ),
        upload(form=path == "form"),
        BYTES,
    )
    for key, title, path, sides in (
        (
            "stream",
            "read by request.stream()",
            "stream",
            (
                *((name, SERVERS[name]) for name in (PLAIN, OURS, "granian")),
                ("a bare loop", bare_receive()),
            ),
        ),
        (
            "multipart",
            "in a form, read by request.form()",
            "form",
            tuple((name, SERVERS[name]) for name in (PLAIN, OURS, "granian")),
        ),
        (
            "h11",
            "read by request.stream() under h11",
            "stream",
            (
                ("uvicorn --http h11", uvicorn(APP, "--http=h11")),
                ("our H11Protocol", uvicorn(APP, "--http=asgifast.uvicorn:H11Protocol")),
            ),
        ),
    )
]


CASES: list[Case] = [
    ("file", "FileResponse 10 MiB", LARGE, BYTES, raw()),
    ("crumbs", "100,000 messages of 100 bytes", "/crumbs/", BYTES, raw()),
    ("response", "Response 1 KiB", "/plain", REQUESTS, wrk(8)),
]
# uvicorn's zttp protocol, and gunicorn's own ASGI worker, beside ours of each.
ROWS += case_rows(
    "asgi.zttp",
    "uvicorn --http zttp",
    {
        "uvicorn --http zttp": uvicorn(APP, "--http=zttp"),
        "our ZttpProtocol": uvicorn(APP, "--http=asgifast.uvicorn:ZttpProtocol"),
    },
    CASES,
)
ROWS += case_rows(
    "asgi.gunicorn-worker",
    "gunicorn -k asgi",
    {
        "gunicorn -k asgi": gunicorn_asgi(APP),
        "FastASGIWorker": gunicorn_asgi(APP, "asgifast.workers.FastASGIWorker"),
    },
    CASES,
)
OTHERS: dict[str, Callable[[str], Server]] = {
    "hypercorn-asyncio": lambda app: hypercorn(app, "asyncio"),
    "hypercorn-uvloop": lambda app: hypercorn(app, "uvloop"),
    "hypercorn-trio": lambda app: hypercorn(app, "trio"),
    "granian": granian,
    "gunicorn-asgi": gunicorn_asgi,
    "anycorn-trio": anycorn,
    "daphne": daphne,
}
OTHER_ROWS = [
    row
    for name, server in OTHERS.items()
    for row in case_rows(
        f"others.{name}", name, {name: server(APP), f"{name} + ASGIFast": server(FAST)}, CASES
    )
]


prepare = payload_files(1024, FILE_BYTES)
TABLES = [
    Table("asgi", "ASGIFast and asgifast's protocol beside uvicorn and granian", ROWS, prepare),
    Table("asgi-others", "ASGIFast alone, on servers that stay as they are", OTHER_ROWS, prepare),
]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.asgi", __doc__, TABLES))
