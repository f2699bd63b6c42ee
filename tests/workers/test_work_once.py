"""A response's file, headers and compression are each examined once, on each server.

The tests also count the functions that WSGIFast calls for a response.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import wsgiref.util
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper
from werkzeug.wsgi import ClosingIterator

import wsgifast
from tests.support.wsgi import Server, new_environ
from tests.workers.stepped_worker import SteppedWorker
from wsgifast import StaticFiles, WSGIFast
from wsgifast.compression import response
from wsgifast.http import fields
from wsgifast.sockets import sending

ROOT = str(Path(wsgifast.__file__).parent)
GET = b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
SIZE = 200_000

EXAMINES = {sending.regular_segment.__code__}
CHECKS = {fields.read_headers.__code__, fields.ResponseStart.__init__.__code__}

SOCKET = socket.socket()
# Each of these responses has different headers, so that no cache contains them.
COOKIES = itertools.count()

App = Callable[[dict[str, Any], Any], Any]
# Call an app twice, and return the code that the second call runs.
Runs = Callable[[App], list[CodeType]]


class Watch:
    """Record the functions of wsgifast that this thread calls."""

    def __init__(self) -> None:
        self.called: list[CodeType] = []

    def __enter__(self) -> Watch:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        # Headers that consist of checked ones are not checked again.
        if code not in CHECKS or frame.f_locals["headers"]:
            self.called.append(code)


def in_process(app: App, **extra: Any) -> list[CodeType]:
    """Send a response like gthread, which sends its file wrapper by sendfile."""
    for _ in range(2):
        environ = new_environ(**{"HTTP_ACCEPT_ENCODING": "gzip", **extra})
        environ["gunicorn.socket"] = SOCKET
        with Watch() as watch:
            server = Server(app, environ)
            # Sendfile sends a file.
            if not isinstance(server.result, FileWrapper):
                list(server.result)
            if hasattr(server.result, "close"):
                server.result.close()
    return watch.called


@pytest.fixture(params=["gunicorn's wrapper", "wsgiref's wrapper", "no wrapper", "FastWorker"])
def run(request: pytest.FixtureRequest) -> Runs:
    wrappers = {"gunicorn's wrapper": FileWrapper, "wsgiref's wrapper": wsgiref.util.FileWrapper}
    if request.param != "FastWorker":
        extra = {"wsgi.file_wrapper": wrappers.get(request.param)}
        return lambda app: in_process(app, **extra)
    make: Callable[..., SteppedWorker] = request.getfixturevalue("make_stepped")

    def by_fast_worker(app: App) -> list[CodeType]:
        stepped = make(app, keepalive=5)
        for _ in range(2):
            with Watch() as watch:
                assert b"200 OK" in stepped.begin(GET).receive_all_there_is()
        return watch.called

    return by_fast_worker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    os.utime(path, (1.5e9, 1.5e9))
    return path


def of(body: Callable[[dict[str, Any]], Any], kind: str = "text/plain") -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        headers = [("Content-Type", kind), ("Content-Length", str(SIZE))]
        start_response("200 OK", [*headers, ("Set-Cookie", f"number={next(COOKIES)}")])
        return body(environ)

    return app


def pieces() -> Iterable[bytes]:
    yield b"x" * (SIZE // 2)
    yield b"x" * (SIZE // 2)


BODIES: dict[str, Callable[[Path], Callable[[dict[str, Any]], Any]]] = {
    "list": lambda path: lambda environ: [b"x" * SIZE],
    "list of pieces": lambda path: lambda environ: list(pieces()),
    "list in a wrapper": lambda path: lambda environ: ClosingIterator([b"x" * SIZE]),
    "generator": lambda path: lambda environ: pieces(),
    "file": lambda path: lambda environ: path.open("rb"),
    "raw file": lambda path: lambda environ: path.open("rb", buffering=0),
    "file in a framework's wrapper": lambda path: (
        lambda environ: wsgiref.util.FileWrapper(path.open("rb"))
    ),
    "file in the server's wrapper": lambda path: (
        lambda environ: (environ.get("wsgi.file_wrapper") or wsgiref.util.FileWrapper)(
            path.open("rb")
        )
    ),
}


@pytest.mark.parametrize("kind", ["text/plain", "image/png"])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_each_is_looked_at_once(
    body: str, compress: bool, kind: str, path: Path, run: Runs
) -> None:
    called = run(WSGIFast(of(BODIES[body](path), kind), compress=compress))
    assert sum(code in EXAMINES for code in called) == ("file" in body)
    # A type that does not shrink decides about a body whose bytes exist.
    is_decided_by_type = kind == "image/png" and ("list" in body or "file" in body)
    assert called.count(response.decide.__code__) == (compress and not is_decided_by_type)
    assert sum(code in CHECKS for code in called) == 1


@pytest.mark.parametrize("body", ["file", "file in the server's wrapper"])
def test_raw_file_is_examined_once(body: str, path: Path, run: Runs) -> None:
    called = run(of(BODIES[body](path)))
    assert sum(code in EXAMINES for code in called) <= 1


def test_file_of_static_files_is_not_examined(path: Path, run: Runs) -> None:
    called = run(StaticFiles(directory=path.parent, fallback=path.name))
    assert not any(code in EXAMINES for code in called)


MAX_CALLS: dict[str, tuple[Callable[[Path], App], int]] = {
    "open file": (lambda path: of(lambda environ: path.open("rb"), "image/png"), 45),
    "compressed list": (lambda path: of(lambda environ: [b"x" * SIZE], "application/json"), 30),
    "small list": (lambda path: small, 14),
}


def small(environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"x" * 512]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("case", MAX_CALLS)
def test_second_response_takes_few_calls(case: str, coding: str, path: Path) -> None:
    fields._one_line_names.clear()  # the names of other tests may fill this cache
    make, most = MAX_CALLS[case]
    app = WSGIFast(make(path), compress=True)
    called = in_process(app, **{"HTTP_ACCEPT_ENCODING": coding, "wsgi.file_wrapper": FileWrapper})
    assert len(called) <= most, [code.co_qualname for code in called]
