"""The WSGI and the ASGI StaticFiles send equal responses.

The last tests are of features that only ASGI has.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from pathlib import Path
from typing import Any

import asgifast
import pytest
from asgifast.messages import Message

import wsgifast
from tests.static.calls import call_with, environ_of
from tests.support.process import open_descriptors

from .support import body, call, noting, raising, recording, scope_of, sending, start_message

pytestmark = pytest.mark.long

LARGE = bytes(range(256)) * 2048
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "prefix": {"prefix": "/assets"},
    "caching": {"max_age": 600, "immutable": r"\.[0-9a-f]{8}\.", "allow_all_origins": True},
    "page-app": {"fallback": "index.html"},
    "listing": {"listing": True, "index": None, "hidden_files": True},
    "no-cache": {"cache_bytes": 0, "etag": "content"},
    "plain": {"etag": None, "charset": None, "max_age": None},
    "links": {"follow_symlinks": True},
}
PATHS = [
    "/",
    "/index.html",
    "/docs",
    "/docs/",
    "/a.txt",
    "/grüße.txt",
    "/app.0123abcd.js",
    "/large.bin",
    "/empty",
    "/missing",
    "/missing.txt",
    "/.hidden",
    "/../secret",
    "/docs/../a.txt",
    "//a.txt",
    "/a.txt/",
    "/a\0.txt",
    "/link",
    "/version",
    "/drawing.svgz",
    "/fifo",
    "/\udcff",
    "",
]
REQUESTS: list[dict[str, str]] = [
    {},
    {"accept_encoding": "gzip, br"},
    {"accept_encoding": "gzip;q=0, identity"},
    {"range": "bytes=2-5"},
    {"range": "bytes=0-1,100000-300000"},
    {"range": "bytes=9999999-"},
    {"range": "bytes=x", "if_range": '"x"'},
    {"if_none_match": "*"},
    {"if_match": '"other"'},
    {"if_modified_since": "Sun, 06 Nov 2044 08:49:37 GMT"},
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files, precompressed files, and files that must not be served."""
    root = tmp_path_factory.mktemp("twins") / "site"
    (root / "docs").mkdir(parents=True)
    (root / "index.html").write_text("<h1>home</h1>")
    (root / "docs" / "index.html").write_text("<h1>docs</h1>")
    (root / "a.txt").write_text("plain text " * 100)
    (root / "a.txt.gz").write_bytes(gzip.compress(b"plain text " * 100, mtime=0))
    (root / "grüße.txt").write_text("Grüße")
    (root / "app.0123abcd.js").write_text("let x = 1")
    (root / "large.bin").write_bytes(LARGE)
    (root / "empty").touch()
    (root / ".hidden").write_text("hidden")
    (root.parent / "secret").write_text("secret")
    (root / "link").symlink_to(root.parent / "secret")
    (root / "version").symlink_to("/proc/version")  # it reports no size
    (root / "drawing.svgz").write_bytes(gzip.compress(b"<svg/>"))
    os.mkfifo(root / "fifo")
    past = time.time() - 3600  # these files are old, so small files are cached
    for path in [*root.rglob("*"), root]:
        os.utime(path, (past, past), follow_symlinks=False)
    return root


def comparable(headers: list[tuple[str, str]], body: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Replace the random boundary of a multipart response by a fixed one."""
    for _, value in headers:
        if "boundary=" in value:
            boundary = value.partition("boundary=")[2]
            fixed = [(n, v.replace(boundary, "BOUNDARY")) for n, v in headers]
            return fixed, body.replace(boundary.encode(), b"BOUNDARY")
    return headers, body


@pytest.mark.parametrize(
    "page", [None, b"<h1>missing</h1>", LARGE], ids=["no page", "page", "large"]
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_asgi_static_files_answer_as_wsgi_ones(
    site: Path, options: dict[str, Any], page: bytes | None
) -> None:
    (site / "404.html").unlink(missing_ok=True)
    if page is not None:
        (site / "404.html").write_bytes(page)
    ours = asgifast.StaticFiles(directory=site, **options)
    theirs = wsgifast.StaticFiles(directory=site, **options)
    seen = set()
    for prefix in {"", options.get("prefix", "")}:
        for path in PATHS:
            for headers in REQUESTS:
                for method in ("GET", "HEAD", "POST"):
                    if method != "GET" and len(headers) > 1:
                        continue
                    scope = scope_of(prefix + path, method, **headers)
                    response = call(ours, scope)
                    environ = environ_of(prefix + path, method, **headers)
                    del environ["wsgi.file_wrapper"]
                    wsgi = call_with(theirs, environ)
                    what = f"{method} {path!r} {headers}"
                    assert response.status == wsgi.status, what
                    fields = [*wsgi.headers.items()]
                    assert len(fields) == len(wsgi.names), what
                    assert comparable(response.headers, response.body) == comparable(
                        fields, wsgi.body
                    ), what
                    seen.add(response.status)
    assert {200, 206, 304, 404, 405, 412, 416} <= seen


@pytest.mark.parametrize(
    ("path", "method", "headers", "body"),
    [
        ("/a.txt", "GET", {}, b"plain text " * 100),
        ("/a.txt", "GET", {"range": "bytes=2-5"}, b"ain "),
        ("/a.txt", "HEAD", {}, b""),
        ("/a.txt", "GET", {"if_none_match": "*"}, b""),
        ("/empty", "GET", {}, b""),
        ("/missing", "GET", {}, b"Not Found\n"),
        ("/a.txt", "POST", {}, b"Method Not Allowed\n"),
    ],
)
def test_small_response_is_two_messages(
    site: Path, path: str, method: str, headers: dict[str, str], body: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (site / "404.html").unlink(missing_ok=True)
    monkeypatch.setattr("asgifast.static.FileSender", raising(AssertionError, "no file is sent"))
    response = call(asgifast.StaticFiles(directory=site), scope_of(path, method, **headers))
    assert response.types == ["http.response.start", "http.response.body"]
    assert response.body == body


def test_static_files_in_starlette_redirect_and_404(site: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/static", app=asgifast.StaticFiles(directory=site))])
    assert call(app, scope_of("/static/docs/")).body == b"<h1>docs</h1>"
    redirect = call(app, scope_of("/static/docs"))
    assert (redirect.status, dict(redirect.headers)["location"]) == (302, "./docs/")
    assert call(app, scope_of("/static/missing")).status == 404


def test_redirect_to_a_folder_keeps_the_query(site: Path) -> None:
    scope = {**scope_of("/docs"), "query_string": b"a=b&c"}
    redirect = call(asgifast.StaticFiles(directory=site), scope)
    assert (redirect.status, dict(redirect.headers)["location"]) == (302, "./docs/?a=b&c")


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/a", "/a/a.txt", 200),
        ("/a", "/a.txt", 200),
        ("/a", "/a", 302),
        ("/a", "/a/", 200),
        ("/a/", "/a/", 200),
        ("/b", "/a.txt", 200),
        ("/a.txt", "/a.txt", 302),
    ],
)
def test_root_path_is_taken_off_where_it_is_there(
    site: Path, root: str, path: str, status: int
) -> None:
    """The path starts with root_path, as the ASGI specification now requires, or excludes it."""
    scope = {**scope_of(path), "root_path": root}
    assert call(asgifast.StaticFiles(directory=site), scope).status == status


@pytest.mark.parametrize(
    ("root", "location"),
    [
        ("/docs", "./docs/?a=b&c"),
        ("/a/grüße", "./gr%C3%BC%C3%9Fe/?a=b&c"),
        ("//evil.example", "./evil.example/?a=b&c"),
        ("/a//evil.example", "./evil.example/?a=b&c"),
    ],
)
def test_asgi_mount_point_without_its_slash_redirects(site: Path, root: str, location: str) -> None:
    for method in ("GET", "HEAD"):
        scope = {**scope_of(root, method), "root_path": root, "query_string": b"a=b&c"}
        response = call(asgifast.StaticFiles(directory=site), scope)
        assert (response.status, dict(response.headers)["location"]) == (302, location)
        assert response.body == b""


def test_file_in_memory_needs_no_thread(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = asgifast.StaticFiles(directory=site)
    first = call(app, scope_of("/a.txt"))

    async def no_thread(*args: object) -> None:
        raise AssertionError("a thread was asked")

    monkeypatch.setattr("asgifast.static.in_thread", no_thread)
    assert call(app, scope_of("/a.txt")).body == first.body


def test_static_files_before_an_app_pass_on_the_others(site: Path) -> None:
    seen: list[str] = []
    app = noting(seen, "type", sending(start_message(status=299), body(b"the app", False)))
    both = asgifast.StaticFiles(app, directory=site)
    assert call(both, scope_of("/a.txt")).status == 200
    assert call(both, scope_of("/other")).body == b"the app"
    assert call(both, scope_of("/a.txt", "POST")).body == b"the app"
    call(both, {"type": "lifespan"})
    assert seen == ["http", "http", "lifespan"]


def test_static_files_alone_close_websockets(site: Path) -> None:
    alone = asgifast.StaticFiles(directory=site)
    sent: list[Message] = []
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        return incoming.pop(0)

    asyncio.run(alone({"type": "lifespan"}, receive, recording(sent)))
    assert [m["type"] for m in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert call(alone, {"type": "websocket"}).types == ["websocket.close"]


def test_no_look_at_a_path_blocks_the_loop(site: Path, blocking_calls: list[str]) -> None:
    app = asgifast.StaticFiles(directory=site)
    for path in 2 * ("/a.txt", "/large.bin", "/missing", "/docs"):
        assert call(app, scope_of(path)).status in (200, 302, 404)
    assert not blocking_calls


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_cached_file_that_has_changed_blocks_no_loop(
    tmp_path: Path, size: int, blocking_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file is read again for its body, a large one for its entity tag."""
    monkeypatch.setattr("wsgifast.files.found._SETTLED_NS", 0)  # the file is cached at once
    app = asgifast.StaticFiles(directory=tmp_path, etag="content")
    file = tmp_path / "file"
    for content in (b"a" * size, b"b" * (size + 1)):
        file.write_bytes(content)
        assert call(app, scope_of("/file")).body == content
        assert app._cache.used_bytes, "the file is kept"
        assert call(app, scope_of("/file")).body == content
    file.unlink()
    assert call(app, scope_of("/file")).status == 404
    assert not blocking_calls


def test_descriptors_are_closed_when_the_client_fails(site: Path) -> None:
    app = asgifast.StaticFiles(directory=site)

    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="has left"):
            call(app, scope_of("/large.bin"), on_send=raising(OSError, "the client has left"))
    assert open_descriptors() <= before
