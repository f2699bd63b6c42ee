"""WSGI apps as data: any status, shape of body, and way to start, to fail and to close.

On a live server, `app` plays the script in its request, in the way that its path names.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import threading
import wsgiref.util
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from wsgifast import Compression, WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class AppError(Exception):
    """The error that the written apps raise."""


class CloseError(Exception):
    """The error that their close() raises."""


# These bodies are complete when the app returns them.
WHOLE = ("list", "tuple", "bare")
FILES = ("memory file", "disk file", "wrapped file")
# Only these bodies run code of the app while the server iterates.
RUNNING = ("generator", "lazy generator", "sized")
TYPES = {"bytes": bytes, "str": bytes.decode, "bytearray": bytearray, "memoryview": memoryview}


_TAGGED = [
    ("ETag", '"tag"'), ("Vary", "Cookie"), ("Cache-Control", "max-age=60"),
    ("Set-Cookie", "a=b"), ("Set-Cookie", "c=d"),
]  # fmt: skip


@dataclass(frozen=True)
class Script:
    """An app, as data.

    :ivar length: the Content-Length: "right", "short", "long", "one short" and "one long" (by a
        byte), or None for no such header.
    :ivar written: the pieces that go through write() before the app returns.
    :ivar restart: when start_response is called again with exc_info and status 500: "at once" after
        the first call, in the iterator "before" its first chunk, after an "empty" one, or "after"
        the first chunk.
    :ivar error_at: before which chunk the iterator raises.
    :ivar repeat: how often each piece is repeated, those of write() included.
    :ivar is_tagged: whether the response has an ETag, Vary, Cache-Control and cookies.
    """

    method: str = "GET"
    status: str = "200 OK"
    shape: str = "list"
    pieces: tuple[bytes, ...] = ()
    type_: str = "bytes"
    length: str | None = None
    written: tuple[bytes, ...] = ()
    restart: str | None = None
    error_at: int | None = None
    close: str | None = None
    repeat: int = 1
    is_tagged: bool = False

    @property
    def runs(self) -> bool:
        return self.shape in RUNNING

    @property
    def declared(self) -> int | None:
        total = len(b"".join((*self.written, *self.pieces)))
        lengths = {
            "right": total, "short": total // 2, "long": total + 3,
            "one short": max(0, total - 1), "one long": total + 1,
        }  # fmt: skip
        return None if self.length is None else lengths[self.length]

    def repeated(self) -> Script:
        """Return the same app without `repeat`."""
        pieces = tuple(piece * self.repeat for piece in self.pieces)
        written = tuple(piece * self.repeat for piece in self.written)
        return replace(self, pieces=pieces, written=written, repeat=1)

    def headers(self, status: str) -> list[tuple[str, str]]:
        headers = [("X-Status", status)]
        if status[:3] not in ("204", "304"):
            headers.append(("Content-Type", "text/plain"))
        if self.is_tagged:
            headers += _TAGGED
        if self.declared is not None:
            headers.append(("Content-Length", str(self.declared)))
        return headers


def lawful(script: Script) -> Script:
    """Return the app as it should have been: the result that wsgifast must give."""
    script = without_repairs(script)
    if script.shape == "memory file":
        script = replace(script, shape="wrapped file")
    elif script.shape == "disk file":
        script = replace(script, shape="iterator")
    return script


def without_repairs(script: Script) -> Script:
    """Return the app without the mistakes that servers reject and wsgifast repairs."""
    script = replace(script, type_="bytes")
    if script.shape == "bare":
        script = replace(script, shape="list")
    if script.shape in ("list", "tuple") and script.length and not script.written:
        script = replace(script, length="right")
    return script


def may_write(script: Script) -> bool:
    """Return whether wsgifast repairs it: not from inside the iterator (PEP 3333), nor where no
    body is allowed.
    """
    return script.shape != "lazy generator" and not (
        script.method == "HEAD" or script.status[:3] in ("204", "304")
    )


class ScriptedApp:
    """Play a script, and record the calls of its body's close().

    :ivar closed: the threads of these calls.
    """

    def __init__(self, script: Script) -> None:
        self.script = script.repeated()
        self.closed: list[int] = []
        self.closable = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        script = self.script
        if script.shape == "lazy generator":
            return Body(self, self._lazy(start_response))
        write = self._start(start_response)
        for piece in script.written:
            write(TYPES[script.type_](piece))  # type: ignore[operator]
        if script.runs:
            body = SizedBody if script.shape == "sized" else Body
            return body(self, self._chunks(start_response))
        pieces = [TYPES[script.type_](piece) for piece in script.pieces]  # type: ignore[operator]
        whole = b"".join(script.pieces)
        match script.shape:
            case "list":
                return pieces
            case "tuple":
                return tuple(pieces)
            case "iterator":
                return iter(pieces)
            case "bare":
                return TYPES[script.type_](whole)  # type: ignore[operator]
            case "memory file":
                return MemoryFile(self, whole)
            case "disk file":
                return disk_file(whole)
            case "wrapped file":
                return environ["wsgi.file_wrapper"](MemoryFile(self, whole))
        raise LookupError(script.shape)

    def _start(self, start_response: StartResponse) -> Callable[[Any], object]:
        status = self.script.status
        write = start_response(status, self.script.headers(status))
        return self._restart(start_response) if self.script.restart == "at once" else write

    def _restart(self, start_response: StartResponse) -> Callable[[Any], object]:
        status = "500 Restarted"
        try:
            raise AppError("restarted")
        except AppError:
            return start_response(status, self.script.headers(status), sys.exc_info())

    def _lazy(self, start_response: StartResponse) -> Iterator[Any]:
        self._start(start_response)
        yield from self._chunks(start_response)

    def _chunks(self, start_response: StartResponse) -> Iterator[Any]:
        script = self.script
        if script.restart == "empty":
            yield b""
        if script.restart in ("before", "empty"):
            self._restart(start_response)
        for number, piece in enumerate(script.pieces):
            if number == script.error_at:
                raise AppError("failed")
            yield TYPES[script.type_](piece)  # type: ignore[operator]
            if script.restart == "after":
                self._restart(start_response)
        if script.error_at == len(script.pieces):
            raise AppError("failed at the end")

    def note_close(self) -> None:
        self.closed.append(threading.get_ident())
        if self.script.close == "raises":
            raise CloseError


class Body:
    """An iterable with a close(). It has the length of a list if it is sized."""

    def __init__(self, app: ScriptedApp, chunks: Iterator[Any]) -> None:
        app.closable = app.script.close is not None
        self._chunks = chunks
        self._length = len(app.script.pieces)
        if app.closable:
            self.close = app.note_close

    def __iter__(self) -> Iterator[Any]:
        return self._chunks


class SizedBody(Body):
    def __len__(self) -> int:
        return self._length


class MemoryFile(io.BytesIO):
    def __init__(self, app: ScriptedApp, data: bytes) -> None:
        super().__init__(data)
        self._app = app
        app.closable = True

    def close(self) -> None:
        super().close()
        self._app.note_close()


def disk_file(data: bytes) -> Any:
    file = tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file


def target_of(script: Script, way: str = "") -> str:
    """Return the URL at which :data:`app` plays a script, in one of WAYS."""
    fields = asdict(script)
    for name in ("pieces", "written"):
        fields[name] = [piece.hex() for piece in fields[name]]
    return f"/{way}?" + quote(json.dumps(fields))


def _raw(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    environ.setdefault("wsgi.file_wrapper", wsgiref.util.FileWrapper)
    fields = json.loads(unquote(environ["QUERY_STRING"]))
    for name in ("pieces", "written"):
        fields[name] = tuple(bytes.fromhex(piece) for piece in fields[name])
    return ScriptedApp(Script(**fields))(environ, start_response)


_GZIP = Compression(codings=["gzip"], min_bytes=20)
WAYS: dict[str, WSGIApplication] = {
    "": WSGIFast(_raw),
    "raw": _raw,
    "compress": WSGIFast(_raw, compress=_GZIP),
    "coalesce": WSGIFast(_raw, coalesce=True, compress=_GZIP),
    "metrics": WSGIFast(_raw, metrics="prometheus", body_limit_bytes=1000, decompress=True),
}


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    return WAYS[environ["PATH_INFO"].strip("/")](environ, start_response)
