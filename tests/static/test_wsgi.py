"""StaticFiles as an app and as middleware. It closes its files after any error."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import pytest

from tests.static.calls import app_behind, call, call_with, environ_of, write_precompressed
from tests.support.calls import raising
from tests.support.files import settle
from tests.support.process import open_descriptors
from tests.support.wsgi import new_environ
from wsgifast import StaticFiles


def test_app_without_another_answers_everything(site: Path) -> None:
    app = StaticFiles(directory=site)
    response = call(app, "/app.js", "POST")
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
    assert call(app, "/none").headers["content-type"].startswith("text/plain")
    assert call(StaticFiles(directory=site, prefix="/static"), "/app.js").status == 404


def test_middleware_passes_other_requests_on(site: Path) -> None:
    app = StaticFiles(app_behind, directory=site, prefix="/static/")
    assert call(app, "/static/app.js").body.startswith(b"let")
    assert call(app, "/static/none").body == b"the app: GET"
    assert call(app, "/static").body == b"the app: GET"
    assert call(app, "/app.js").body == b"the app: GET"
    assert call(app, "/static/app.js", "POST").body == b"the app: POST"
    assert call(app, "/staticapp.js").body == b"the app: GET"


def test_static_files_under_validator_keeps_to_wsgi(site: Path) -> None:
    app: Any = validator(StaticFiles(app_behind, directory=site))
    for path in ("/app.js", "/large.bin", "/none", "/docs", "/nothing.txt"):
        for method in ("GET", "HEAD"):
            call_with(app, new_environ(method, path))


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_any_response_leaves_no_descriptor_open(site: Path, cache_bytes: int) -> None:
    write_precompressed(site / "app.js", ".gz", b"packed")
    settle(site / "app.js", site / "app.js.gz", site / "large.bin")
    app = StaticFiles(directory=site, cache_bytes=cache_bytes, listing=True, etag="content")
    tag = call(app, "/large.bin").headers["etag"]
    before = open_descriptors()
    for path in ("/app.js", "/large.bin", "/", "/empty", "/empty/", "/missing", "/../x"):
        for method in ("GET", "HEAD"):
            for headers in (
                {}, {"Accept_Encoding": "gzip"}, {"Range": "bytes=0-9,20-29"},
                {"Range": "bytes=99999999-"}, {"If_None_Match": tag}, {"If_Match": '"other"'},
            ):  # fmt: skip
                call(app, path, method, **headers)
                assert open_descriptors() <= before, (path, method, headers)


def test_failing_start_response_leaves_no_descriptor(site: Path) -> None:
    app = StaticFiles(directory=site)
    before = open_descriptors()
    with pytest.raises(RuntimeError):
        app(environ_of("/large.bin"), raising(RuntimeError, "headers sent"))
    assert open_descriptors() <= before


def test_failing_precompressed_leaves_no_descriptor(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".zst", ".br", ".gz"):
        write_precompressed(site / "app.js", suffix, b"packed")
    app = StaticFiles(directory=site)
    open_file = os.open

    def no_third_file(path: str, flags: int, **options: int) -> int:
        if str(path).endswith(".gz"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, flags, **options)

    before = open_descriptors()
    monkeypatch.setattr(os, "open", no_third_file)
    with pytest.raises(OSError, match="Too many open files"):
        call(app, "/app.js")
    monkeypatch.undo()
    assert open_descriptors() <= before
