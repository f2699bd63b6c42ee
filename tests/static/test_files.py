"""StaticFiles: paths, and the files that they may and must not lead to."""

from __future__ import annotations

import errno
import gzip
import logging
import os
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.static.calls import (
    EPOCH,
    LARGE,
    app_behind,
    call,
    call_with,
    environ_of,
    write_precompressed,
)  # fmt: skip
from tests.support.effort import effort
from tests.support.files import settle
from wsgifast import StaticFiles
from wsgifast.bodies.files import FileSlice


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_file_is_served_whole(site: Path, cache_bytes: int) -> None:
    app = StaticFiles(directory=site, cache_bytes=cache_bytes)
    settle(site / "app.js")
    for _ in range(3):
        for name in ("app.js", "large.bin", "nothing.txt"):
            response = call(app, f"/{name}")
            assert (response.status, response.body) == (200, (site / name).read_bytes())
            assert response.headers["content-length"] == str(len(response.body))
            assert response.headers["accept-ranges"] == "bytes"
            assert {"etag", "last-modified", "content-type"} <= set(response.headers)
            assert len(response.names) == len(set(response.names))


def test_small_file_is_one_block_large_is_wrapped(site: Path) -> None:
    app = StaticFiles(directory=site)
    assert len(call(app, "/app.js").iterable) == 1
    for headers in ({}, {"Range": "bytes=100000-200000"}):
        wrapped = call(app, "/large.bin", **headers).iterable
        assert isinstance(wrapped, FileWrapper)
        assert isinstance(wrapped.filelike, FileSlice)


def test_file_without_a_wrapper_is_iterated_and_closed(site: Path) -> None:
    environ = environ_of("/large.bin")
    del environ["wsgi.file_wrapper"]
    response = call_with(StaticFiles(directory=site), environ)
    assert response.body == LARGE
    assert response.iterable.owner is None


NO_FILES = [
    "/none",
    "/app.js/",
    "/app.js/x",
    "/../site/app.js",
    "/docs/../app.js",
    "/docs/..",
    "//app.js",
    "/docs//index.html",
    "/./app.js",
    "/.",
    "/docs/.",
    "/docs//",
    "/docs\\app.js",
    "/app.js\0",
    "/\0",
    "/..\\..\\etc\\passwd",
    "/empty/",
    "/empty",
    "/" + "x" * 300,
    "/" + "x/" * 5000,
    "/\udcff",
    "/%2e%2e/site/app.js",
    "*",
    "app.js",
]


# Paths of files that exist.
HIDDEN = [".env", ".git/config", "docs/.htaccess", "docs/.well-known/x", ".well-known/.env"]


def test_path_without_a_file_is_404(site: Path) -> None:
    for name in (*HIDDEN, "docs\\app.js"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("SECRET=1")
    app = StaticFiles(directory=site)
    for path in (*NO_FILES, *(f"/{name}" for name in HIDDEN)):
        response = call(app, path)
        assert response.status == 404, f"{path}: {response}"
        assert b"SECRET" not in response.body, path


def test_name_with_dots_is_served_hidden_by_option(site: Path) -> None:
    for name in ("a..b", "..c.", "%2e%2e/x", *HIDDEN):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(name)
    (site / ".well-known/security.txt").write_text("Contact: x")
    app = StaticFiles(directory=site, hidden_files=True)
    for name in ("a..b", "..c.", "%2e%2e/x", *HIDDEN):
        assert call(app, f"/{name}").body == name.encode()
    app = StaticFiles(directory=site)
    for name in ("a..b", "%2e%2e/x", ".well-known/security.txt"):
        assert call(app, f"/{name}").status == 200


def test_empty_path_is_the_root(site: Path) -> None:
    assert call(StaticFiles(directory=site), "").body == b"<h1>home</h1>"


@given(path=st.text(st.sampled_from("/.adocs\\\0%2eé"), max_size=15))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(100))
def test_any_path_is_no_server_error(site: Path, path: str) -> None:
    response = call(StaticFiles(directory=site, listing=True), "/" + path)
    assert response.status in (200, 302, 404)
    assert b"SECRET" not in response.body


def test_name_that_is_not_ascii_is_served(site: Path) -> None:
    (site / "café.txt").write_text("utf-8")
    (site / os.fsdecode(b"caf\xe9.txt")).write_text("latin-1")
    app = StaticFiles(directory=site)
    assert call(app, "/café.txt").body == b"utf-8"
    assert call(app, "/caf\udce9.txt").body == b"latin-1"


def test_link_out_of_the_directory_needs_the_option(site: Path) -> None:
    (site.parent / "secret.txt").write_text("outside")
    (site / "link.txt").symlink_to("../secret.txt")
    assert call(StaticFiles(directory=site), "/link.txt").status == 404
    assert call(StaticFiles(directory=site, follow_symlinks=True), "/link.txt").body == b"outside"


def test_path_left_as_text_by_the_server_is_served(site: Path) -> None:
    (site / "\u20ac.txt").write_text("euro")
    # Not latin-1, in violation of PEP 3333
    environ = {**environ_of("/"), "PATH_INFO": "/\u20ac.txt"}
    assert call_with(StaticFiles(directory=site), environ).body == b"euro"


def test_precompressed_out_of_directory_is_not_sent(site: Path) -> None:
    (site.parent / "secret.gz").write_bytes(b"secret")
    (site / "app.js.gz").symlink_to("../secret.gz")
    response = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip")
    assert "content-encoding" not in response.headers
    assert response.body == (site / "app.js").read_bytes()


def test_unreadable_file_is_403_and_logged(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.open

    def refusing(path: str, *args: int, **options: int) -> int:
        if path == "app.js":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **options)

    app = StaticFiles(app_behind, directory=site)
    monkeypatch.setattr(os, "open", refusing)
    with caplog.at_level(logging.WARNING, "wsgifast.files"):
        assert call(app, "/app.js").status == 403
        assert call(app, "/app.js", "HEAD").body == b""
    assert str(site / "app.js") in caplog.text


# Files that report no size, or the size of a page, and contain something else.
UNSIZED = ["/proc/sys/kernel/ostype", "/proc/version", "/sys/class/net/lo/address"]


@pytest.mark.parametrize("path", UNSIZED)
@pytest.mark.parametrize("etag", ["stat", "content", None])
def test_file_with_a_wrong_size_is_read_to_its_end(path: str, etag: str | None) -> None:
    if not os.path.exists(path):
        pytest.skip(f"there is no {path} here")
    folder, name = os.path.split(path)
    content = Path(path).read_bytes()
    app = StaticFiles(directory=folder, etag=etag)
    for _ in range(2):
        for headers in ({}, {"Range": "bytes=0-1"}, {"If_Modified_Since": EPOCH}):
            response = call(app, f"/{name}", **headers)
            assert (response.status, response.body) == (200, content)
            assert response.headers["content-length"] == str(len(content))
            assert {"accept-ranges", "last-modified"}.isdisjoint(response.headers)
            assert ("etag" in response.headers) == (etag == "content")
        received = call(app, f"/{name}", "HEAD")
        assert (received.status, received.headers, received.body) == (200, response.headers, b"")
    assert app._cache.used_bytes == 0


def test_file_of_wrong_size_behind_index_and_link(tmp_path: Path) -> None:
    content = Path("/proc/version").read_bytes()
    (tmp_path / "index.html").symlink_to("/proc/version")
    (tmp_path / "app.js").write_bytes(b"x" * 500)
    (tmp_path / "app.js.gz").symlink_to("/proc/version")  # not a precompressed file of this file
    app = StaticFiles(directory=tmp_path, follow_symlinks=True, fallback="index.html")
    for path in ("/", "/index.html", "/some/route"):
        assert call(app, path, Accept_Encoding="gzip").body == content
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"x" * 500


def test_file_without_an_end_is_forbidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wsgifast.files.lookup._UNSIZED_BYTES", 10)
    app = StaticFiles(directory="/proc")
    with caplog.at_level(logging.WARNING):
        assert call(app, "/version").status == 403
        assert call(app, "/version", "HEAD").body == b""
        # This file reports no size, and fails when it is read at the address 0.
        assert call(StaticFiles(directory="/proc/self"), "/mem").status == 403
    assert "/proc/version reports no size" in caplog.text
    assert "/proc/self/mem cannot be read: Input/output error" in caplog.text


HEAD_PATHS = [
    *("/app.js", "/large.bin", "/nothing.txt", "/", "/docs", "/docs/", "/docs/index.html"),
    *("/empty", "/empty/", "/none", "/none.txt", "/drawing.svgz", "/.env", "//x", "/version"),
]


@given(
    path=st.sampled_from(HEAD_PATHS),
    accepted=st.sampled_from(["gzip, br", "identity", "gzip;q=0", None]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "listing": st.booleans(),
            "index": st.none(),
            "cache_bytes": st.just(0),
            "etag": st.sampled_from(["content", None]),
            "fallback": st.just("app.js"),
            "follow_symlinks": st.booleans(),
            "allow_all_origins": st.booleans(),
        },
    ),
    has_page=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(150))
def test_head_has_status_and_headers_of_get(
    site: Path, path: str, accepted: str | None, options: dict[str, Any], has_page: bool
) -> None:
    if not (site / "version").is_symlink():
        (site / "version").symlink_to("/proc/version")
        (site / "drawing.svgz").write_bytes(b"packed")
        write_precompressed(site / "app.js", ".gz", b"packed")
    (site / "404.html").unlink(missing_ok=True)
    if has_page:
        (site / "404.html").write_text("<h1>missing</h1>")
    app = StaticFiles(directory=site, **options)
    headers = {} if accepted is None else {"Accept_Encoding": accepted}
    for _ in range(2):
        get, received = call(app, path, **headers), call(app, path, "HEAD", **headers)
        assert (received.status, received.headers, received.body) == (get.status, get.headers, b"")
        assert received.names == get.names
        assert get.headers["content-length"] == str(len(get.body))


def test_missing_file_gets_the_sites_page(site: Path) -> None:
    page = b"<h1>missing</h1>" * 30
    (site / "404.html").write_bytes(page)
    packed = gzip.compress(page)
    write_precompressed(site / "404.html", ".gz", packed)
    app = StaticFiles(directory=site, allow_all_origins=True, immutable=".", prefix="/site")
    tag = call(app, "/site/404.html").headers["etag"]
    settle(site / "404.html", site / "404.html.gz")
    for _ in range(3):
        for path in ("/site/none", "/site/none.js", "/site/empty/", "/other", "/site/../x"):
            for headers in (
                {},
                {"Range": "bytes=0-3"},
                {"If_None_Match": tag},
                {"If_None_Match": "*"},
                {"If_Match": '"other"'},
                {"If_Modified_Since": "Sun, 06 Nov 2044 08:49:37 GMT"},
            ):
                response = call(app, path, **headers)
                assert (response.status, response.body) == (404, page)
                assert response.headers["content-type"] == "text/html; charset=utf-8"
                assert response.headers["access-control-allow-origin"] == "*"
                omitted = {"etag", "last-modified", "cache-control", "accept-ranges"}
                assert omitted.isdisjoint(response.headers)
            compressed = call(app, path, Accept_Encoding="gzip")
            assert (compressed.status, compressed.body) == (404, packed)
            assert compressed.headers["content-encoding"] == "gzip"
            assert compressed.headers["content-length"] == str(len(packed))
            assert compressed.headers["vary"] == response.headers["vary"] == "Accept-Encoding"
    direct = call(app, "/site/404.html")
    assert (direct.status, direct.headers["etag"]) == (200, tag)
    assert call(app, "/site/none", "POST").status == 405
    (site / "404.html").unlink()
    assert call(app, "/site/none").body == b"Not Found\n"


def test_large_404_page_is_sent_from_its_file(site: Path) -> None:
    (site / "404.html").write_bytes(LARGE)
    settle(site / "404.html")
    app = StaticFiles(directory=site)
    for _ in range(2):
        response = call(app, "/none")
        assert (response.status, response.body) == (404, LARGE)
        assert isinstance(response.iterable, FileWrapper)


def test_404_page_has_the_lowest_priority(
    site: Path,
) -> None:
    (site / "404.html").write_text("missing")
    assert call(StaticFiles(app_behind, directory=site), "/none").body == b"the app: GET"
    app = StaticFiles(directory=site, fallback="index.html")
    assert call(app, "/route").status == 200
    assert call(app, "/none.js").body == b"missing"


@pytest.mark.parametrize("kind", ["directory", "fifo", "link out"])
def test_404_page_must_be_a_file_of_the_site(site: Path, kind: str) -> None:
    page = site / "404.html"
    if kind == "directory":
        page.mkdir()
        (page / "index.html").write_text("index")
    elif kind == "fifo":
        os.mkfifo(page)
    else:
        (site.parent / "outside").write_text("secret")
        page.symlink_to(site.parent / "outside")
    assert call(StaticFiles(directory=site), "/none").body == b"Not Found\n"
