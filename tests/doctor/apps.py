"""Apps for the doctor: each path is one shape, and has the id of its expected finding."""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

from wsgifast.commands.doctor import Endpoint, Unreached
from wsgifast.commands.doctor.model import Found

_folder = tempfile.TemporaryDirectory(prefix="wsgifast-doctor-")
FILE_BYTES = 2_000_000


def file_path(size: int = FILE_BYTES) -> Path:
    path = Path(_folder.name, str(size))
    if not path.exists():
        path.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    return path


def _lines(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b"%d\n" % number


def _file_in_a_generator() -> Iterator[bytes]:
    with file_path().open("rb") as file:
        while data := file.read(8192):
            yield data


def _pausing() -> Iterator[bytes]:
    for number in range(6):
        time.sleep(0.02)
        yield b"%d\n" % number


def _endless() -> Iterator[bytes]:
    while True:
        time.sleep(0.05)
        yield b"\n"


def _raising() -> Iterator[bytes]:
    yield b"some"
    raise ValueError("no more of it")


def _wrapped_by_the_server(environ: Any) -> Any:
    return environ["wsgi.file_wrapper"](file_path().open("rb"))


# path -> (expected findings, content type, Content-Length or None, the app's body)
SHAPES: dict[str, tuple[str | None, str, int | None, Any]] = {
    "/good": (None, "text/html", 5, lambda e: [b"a" * 5]),
    "/good-stream": (None, "text/html", None, lambda e: (b"x" * 65536 for _ in range(9))),
    "/good-file": ("WF020", "video/mp4", FILE_BYTES, _wrapped_by_the_server),
    "/part-of-a-file": ("WF020", "text/plain", 1_000, _wrapped_by_the_server),
    "/list": ("WF001", "text/csv", None, lambda e: list(_lines(2_000))),
    "/generator": ("WF003", "text/csv", None, lambda e: _lines(2_000)),
    "/file": ("WF007", "text/plain", None, lambda e: file_path().open("rb")),
    "/wrapper": ("WF007", "text/plain", None, lambda e: FileWrapper(file_path().open("rb"))),
    "/small-wrapper": (
        "WF007", "text/plain", None, lambda e: FileWrapper(file_path(20).open("rb"))
    ),
    "/bytesio": ("WF007", "text/plain", None, lambda e: io.BytesIO(b"line\n" * 100_000)),
    "/file-in-generator": ("WF008", "text/plain", None, lambda e: _file_in_a_generator()),
    "/str": ("WF011", "text/plain", None, lambda e: "a str"),
    "/bytes": ("WF011", "text/plain", None, lambda e: b"bytes"),
    "/text-chunks": ("WF012", "text/plain", None, lambda e: ["a", "b"]),
    "/too-long": ("WF013", "text/plain", 3, lambda e: [b"12345"]),
    "/too-short": ("WF013", "text/plain", 9, lambda e: iter([b"12345"])),
    "/none": ("WF014", "text/plain", None, lambda e: None),
    "/raises": ("WF015", "text/plain", None, lambda e: _raising()),
    "/endless": ("WF016", "text/plain", None, lambda e: _endless()),
    "/events": ("WF023", "text/event-stream", None, lambda e: _endless()),
    "/pauses": ("WF023", "text/plain", None, lambda e: _pausing()),
}  # fmt: skip


def wsgi_app(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/write":
        start_response("200 OK", [("Content-Type", "text/plain")])(b"written")
        return []
    _, content_type, length, make = SHAPES[environ["PATH_INFO"]]
    headers = [("Content-Type", content_type)]
    if length is not None:
        headers.append(("Content-Length", str(length)))
    start_response("200 OK", headers)
    return make(environ)


ASGI_SHAPES = {
    "/good": None,
    "/messages": "WF030",
    "/file": "WF031",
    "/blocks": "WF032",
    "/raises": "WF015",
    "/str": "WF012",
    "/short": "WF013",
    "/unfinished": "WF014",
}


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["started"] = True
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    path = scope["path"]
    headers = [(b"content-length", b"9")] if path == "/short" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/messages":
        for number in range(5000):
            await send({"type": "http.response.body", "body": b"%d\n" % number, "more_body": True})
    elif path == "/file" and "http.response.pathsend" in scope["extensions"]:
        await send({"type": "http.response.pathsend", "path": str(file_path())})
        return
    elif path in ("/file", "/read-file"):
        with file_path().open("rb") as file:
            while data := await asyncio.to_thread(file.read, 65536):
                await send({"type": "http.response.body", "body": data, "more_body": True})
    elif path == "/blocks":
        time.sleep(0.2)
    elif path == "/raises":
        raise ValueError("raised by the app")
    elif path == "/unfinished":
        return
    body: Any = {"/str": "text", "/messages": b"", "/file": b"", "/read-file": b""}.get(
        path, b"12345"
    )
    await send({"type": "http.response.body", "body": body})


def parted(found: Found) -> tuple[list[Endpoint], list[Unreached]]:
    """Return the endpoints that were found, and those that cannot be requested."""
    return (
        [each for each in found if isinstance(each, Endpoint)],
        [each for each in found if isinstance(each, Unreached)],
    )


# An app's response: its status, headers and body.
Response = Callable[[], tuple[str, list[tuple[str, str]], Any]]


def wsgi(response: Response) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        status, headers, body = response()
        start_response(status, headers)
        return body

    return app


def plain(body: bytes = b"page", status: str = "200 OK", **headers: str) -> Response:
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return lambda: (status, [("Content-Type", "text/plain"), *fields], [body])


async def failing_asgi_app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})
