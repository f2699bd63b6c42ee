"""StaticFiles, called as a server calls it."""

from __future__ import annotations

import errno
import gc
import gzip
import logging
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from wsgiref.headers import Headers
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import asgifast
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.descriptors import open_descriptors
from tests.support.effort import effort
from wsgifast import ConfigurationError, StaticFiles
from wsgifast.bodies.files import FileSlice
from wsgifast.bodies.segments import SegmentedBody
from wsgifast.files import RequestFacts
from wsgifast.files import directory as directory_module
from wsgifast.files.rules import HeaderRules
from wsgifast.sockets.sendfile import FileTruncated

pytestmark = pytest.mark.long

EPOCH = "Thu, 01 Jan 1970 00:00:00 GMT"
LARGE = bytes(range(256)) * 2048  # 512 KiB: over what is kept in memory


@dataclass
class Answered:
    """What a server would send."""

    status: int
    headers: dict[str, str]
    body: bytes
    # The iterable that the app returned, closed by now.
    iterable: Any
    names: list[str] = field(default_factory=list)


def environ_of(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    """A request's environ; headers as Accept_Encoding="gzip"."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": "",
        "wsgi.file_wrapper": FileWrapper,
    }
    environ.update({f"HTTP_{name.upper()}": value for name, value in headers.items()})
    return environ


def call(app: Any, path: str, method: str = "GET", **headers: str) -> Answered:
    return call_with(app, environ_of(path, method, **headers))


def call_with(app: Any, environ: dict[str, Any]) -> Answered:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    iterable = app(
        environ, lambda status, headers, exc_info=None: started.append((status, headers))
    )
    try:
        body = b"".join(iterable)
    finally:
        if hasattr(iterable, "close"):
            iterable.close()
    [(status, fields)] = started
    names = [name.lower() for name, _ in fields]
    return Answered(int(status[:3]), {n.lower(): v for n, v in fields}, body, iterable, names)


def settle(*paths: Path) -> None:
    """Wait until files and their directories are old enough to be kept in memory."""
    newest = max(path.lstat().st_ctime_ns for path in [*paths, *(path.parent for path in paths)])
    while time.time_ns() - newest < 60_000_000:
        time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "docs").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "index.html").write_text("<h1>home</h1>")
    (root / "docs" / "index.html").write_text("<h1>docs</h1>")
    (root / "app.js").write_text("let answer = 42;\n" * 40)
    (root / "large.bin").write_bytes(LARGE)
    (root / "nothing.txt").write_bytes(b"")
    (root / ".env").write_text("SECRET=1")
    return root


def app_behind(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The app that StaticFiles stands in front of."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"the app: " + environ["REQUEST_METHOD"].encode()]


# Files and paths


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_file_is_served_whole(site: Path, cache_bytes: int) -> None:
    app = StaticFiles(directory=site, cache_bytes=cache_bytes)
    settle(site / "app.js")
    for _ in range(3):
        for name in ("app.js", "large.bin", "nothing.txt"):
            answer = call(app, f"/{name}")
            assert (answer.status, answer.body) == (200, (site / name).read_bytes())
            assert answer.headers["content-length"] == str(len(answer.body))
            assert answer.headers["accept-ranges"] == "bytes"
            assert {"etag", "last-modified", "content-type"} <= set(answer.headers)
            assert len(answer.names) == len(set(answer.names))


def test_head_has_the_headers_and_no_body(site: Path) -> None:
    app = StaticFiles(directory=site)
    for path in ("/app.js", "/large.bin", "/none", "/"):
        get, head = call(app, path), call(app, path, "HEAD")
        assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")


def test_a_small_file_is_one_block_and_a_large_one_in_the_servers_wrapper(site: Path) -> None:
    app = StaticFiles(directory=site)
    assert len(call(app, "/app.js").iterable) == 1
    for headers in ({}, {"Range": "bytes=100000-200000"}):
        wrapped = call(app, "/large.bin", **headers).iterable
        assert isinstance(wrapped, FileWrapper)
        assert isinstance(wrapped.filelike, FileSlice)


def test_without_a_wrapper_a_file_iterates_and_closes_by_itself(site: Path) -> None:
    environ = environ_of("/large.bin")
    del environ["wsgi.file_wrapper"]
    answer = call_with(StaticFiles(directory=site), environ)
    assert answer.body == LARGE
    assert answer.iterable.closed


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
    "/app.js\0",
    "/\0",
    "/..\\..\\etc\\passwd",
    "/.env",
    "/docs/.htaccess",
    "/empty/",
    "/empty",
    "/" + "x" * 300,
    "/" + "x/" * 5000,
    "/\udcff",
    "/%2e%2e/site/app.js",
    "*",
    "app.js",
]


def test_what_is_no_file_is_404(site: Path) -> None:
    app = StaticFiles(directory=site)
    for path in NO_FILES:
        answer = call(app, path)
        assert answer.status == 404, f"{path}: {answer}"
        assert b"SECRET" not in answer.body, path


def test_an_empty_path_is_the_root(site: Path) -> None:
    assert call(StaticFiles(directory=site), "").body == b"<h1>home</h1>"


@given(path=st.text(st.sampled_from("/.adocs\\\0%2eé"), max_size=15))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(100))
def test_no_path_is_a_server_error(site: Path, path: str) -> None:
    answer = call(StaticFiles(directory=site, listing=True), "/" + path)
    assert answer.status in (200, 302, 404)
    assert b"SECRET" not in answer.body


def test_names_that_are_not_ascii(site: Path) -> None:
    (site / "café.txt").write_text("utf-8")
    (site / os.fsdecode(b"caf\xe9.txt")).write_text("latin-1")
    app = StaticFiles(directory=site)
    assert call(app, "/café.txt").body == b"utf-8"
    assert call(app, "/caf\udce9.txt").body == b"latin-1"


def test_special_files_are_404_and_do_not_block(site: Path) -> None:
    os.mkfifo(site / "fifo")
    (site / "null").symlink_to("/dev/null")
    for app in (
        StaticFiles(directory=site),
        StaticFiles(directory=site, follow_symlinks=True),
    ):
        assert call(app, "/fifo").status == 404
        assert call(app, "/null").status == 404


def test_links_out_of_the_directory(site: Path) -> None:
    (site.parent / "secret.txt").write_text("outside")
    (site / "link.txt").symlink_to("../secret.txt")
    assert call(StaticFiles(directory=site), "/link.txt").status == 404
    assert call(StaticFiles(directory=site, follow_symlinks=True), "/link.txt").body == b"outside"


def test_a_path_that_a_server_has_left_as_text(site: Path) -> None:
    (site / "\u20ac.txt").write_text("euro")
    environ = {**environ_of("/"), "PATH_INFO": "/\u20ac.txt"}  # against PEP 3333: no latin-1
    assert call_with(StaticFiles(directory=site), environ).body == b"euro"


def test_a_precompressed_sibling_out_of_the_directory_is_not_sent(site: Path) -> None:
    (site.parent / "secret.gz").write_bytes(b"secret")
    (site / "app.js.gz").symlink_to("../secret.gz")
    answer = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip")
    assert "content-encoding" not in answer.headers
    assert answer.body == (site / "app.js").read_bytes()


def test_a_file_that_may_not_be_read_is_403_and_logged(
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


# Directories, index, listing, fallback


def test_index_and_the_redirect_to_it(site: Path) -> None:
    app = StaticFiles(directory=site)
    assert call(app, "/").body == b"<h1>home</h1>"
    assert call(app, "/docs/").body == b"<h1>docs</h1>"
    assert call(app, "/docs/index.html").body == b"<h1>docs</h1>"
    answer = call(app, "/docs")
    assert (answer.status, answer.headers["location"], answer.body) == (302, "./docs/", b"")
    environ = {**environ_of("/docs"), "QUERY_STRING": "a=1&b=\xe9%20 \r\nX: y"}
    location = call_with(app, environ).headers["location"]
    assert location == "./docs/?a=1&b=%E9%20%20%0D%0AX:%20y"
    environ["QUERY_STRING"] = "q=\u20ac\u00e9"  # as HTTP/2 servers have it from a raw UTF-8 path
    assert call_with(app, environ).headers["location"] == "./docs/?q=%E2%82%AC%C3%A9"


def test_a_redirect_cannot_lead_to_another_host(site: Path) -> None:
    (site / "http:").mkdir()
    (site / "http:" / "index.html").write_text("x")
    app = StaticFiles(directory=site)
    assert call(app, "/http:").headers["location"] == "./http%3A/"
    assert call(app, "//evil.example/").status == 404


def test_no_index(site: Path) -> None:
    app = StaticFiles(directory=site, index=None)
    assert [call(app, path).status for path in ("/", "/docs", "/docs/")] == [404, 404, 404]
    assert call(app, "/docs/index.html").status == 200


SHOWN_SIZES = [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"),
]  # fmt: skip


def test_listing(site: Path) -> None:
    hostile = '<img src=x onerror="a">&.txt'
    (site / "empty" / hostile).write_text("x")
    (site / "empty" / "a:b").mkdir()
    (site / "empty" / ".hidden").write_text("x")
    (site / "empty" / "back\\slash").write_text("x")  # never served
    for size, _ in SHOWN_SIZES:
        with (site / "empty" / f"size{size}").open("wb") as file:
            file.truncate(size)
    (site / "empty" / "out").symlink_to("../../..")
    (site / "empty" / "in").symlink_to("../app.js")
    os.mkfifo(site / "empty" / "fifo")
    app = StaticFiles(directory=site, listing=True)
    answer = call(app, "/empty/")
    page = answer.body.decode()
    assert answer.status == 200
    assert "<img" not in page
    assert "&lt;img src=x onerror=&quot;a&quot;&gt;&amp;.txt" in page
    assert 'href="./a%3Ab/"' in page
    assert 'href="./in"' in page
    assert 'href="../"' in page
    for size, shown_size in SHOWN_SIZES:
        assert f'"./size{size}">size{size}</a></td><td>{shown_size}</td>' in page
    assert not any(name in page for name in (".hidden", "slash", "fifo", "./out"))
    assert "script" not in answer.headers["content-security-policy"]
    assert call(app, "/empty").headers["location"] == "./empty/"
    assert call(app, "/").body == b"<h1>home</h1>"
    assert b'"../"' not in call(StaticFiles(directory=site, listing=True, index=None), "/").body
    shown = call(StaticFiles(directory=site, listing=True, hidden_files=True), "/empty/")
    assert b".hidden" in shown.body


def test_hidden_files_when_asked(site: Path) -> None:
    assert call(StaticFiles(directory=site, hidden_files=True), "/.env").body == b"SECRET=1"
    (site / ".well-known").mkdir()
    (site / ".well-known" / "security.txt").write_text("Contact: x")
    assert call(StaticFiles(directory=site), "/.well-known/security.txt").status == 200


def test_fallback_answers_routes_but_not_missing_assets(site: Path) -> None:
    app = StaticFiles(directory=site, fallback="index.html")
    for path in ("/users/7", "/none/", "/empty"):
        assert call(app, path).body == b"<h1>home</h1>", path
    assert call(app, "/assets/gone.js").status == 404
    assert call(app, "/app.js").body == (site / "app.js").read_bytes()
    prefixed = StaticFiles(directory=site, fallback="index.html", prefix="/ui")
    assert call(prefixed, "/ui/users").status == 200
    assert call(prefixed, "/users").status == 404
    (site / "index.html").unlink()
    assert call(app, "/users/7").status == 404


def test_several_directories_the_first_wins_also_when_it_gets_the_file_later(
    site: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    app = StaticFiles(directory=[first, site])
    settle(site / "app.js", site / "docs" / "index.html")
    for _ in range(2):
        assert call(app, "/app.js").body.startswith(b"let")
        assert call(app, "/docs/").body == b"<h1>docs</h1>"
    (first / "app.js").write_text("first")
    (first / "docs").mkdir()
    assert call(app, "/app.js").body == b"first"
    assert call(app, "/docs/").body == b"<h1>docs</h1>"
    (first / "docs" / "index.html").write_text("first docs")
    assert call(app, "/docs/").body == b"first docs"
    listing = StaticFiles(directory=[first, site], listing=True, index=None)
    page = call(listing, "/").body
    assert page.count(b"app.js</a>") == 1
    assert b"large.bin" in page


# As app and as middleware


def test_as_an_app_it_answers_everything(site: Path) -> None:
    app = StaticFiles(directory=site)
    answer = call(app, "/app.js", "POST")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert call(app, "/none").headers["content-type"].startswith("text/plain")
    assert call(StaticFiles(directory=site, prefix="/static"), "/app.js").status == 404


def test_as_middleware_it_passes_on_what_it_has_not(site: Path) -> None:
    app = StaticFiles(app_behind, directory=site, prefix="/static/")
    assert call(app, "/static/app.js").body.startswith(b"let")
    assert call(app, "/static/none").body == b"the app: GET"
    assert call(app, "/static").body == b"the app: GET"
    assert call(app, "/app.js").body == b"the app: GET"
    assert call(app, "/static/app.js", "POST").body == b"the app: POST"
    assert call(app, "/staticapp.js").body == b"the app: GET"


def test_it_keeps_to_wsgi(site: Path) -> None:
    app: Any = validator(StaticFiles(app_behind, directory=site))
    for path in ("/app.js", "/large.bin", "/none", "/docs", "/nothing.txt"):
        for method in ("GET", "HEAD"):
            environ = {
                **environ_of(path, method),
                "SERVER_NAME": "x",
                "SERVER_PORT": "80",
                "SCRIPT_NAME": "",
                "wsgi.version": (1, 0),
                "wsgi.url_scheme": "http",
                "wsgi.input": _Input(),
                "wsgi.errors": _Errors(),
                "wsgi.multithread": True,
                "wsgi.multiprocess": False,
                "wsgi.run_once": False,
            }
            call_with(app, environ)


class _Input:
    def read(self, size: int = -1) -> bytes:
        return b""

    readline = read

    def readlines(self, hint: int = -1) -> list[bytes]:
        return []

    def __iter__(self) -> Any:
        return iter(())


class _Errors:
    def write(self, text: str) -> None: ...
    def writelines(self, lines: list[str]) -> None: ...
    def flush(self) -> None: ...


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_no_answer_leaves_a_descriptor_open(site: Path, cache_bytes: int) -> None:
    write_sibling(site / "app.js", ".gz", b"packed")
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


def test_a_refusing_start_response_leaks_no_descriptor(site: Path) -> None:
    def refusing(*args: object) -> None:
        raise RuntimeError("headers sent")

    app = StaticFiles(directory=site)
    before = open_descriptors()
    with pytest.raises(RuntimeError):
        app(environ_of("/large.bin"), refusing)  # type: ignore[arg-type]
    assert open_descriptors() <= before


def test_a_failure_at_a_sibling_leaks_no_descriptor(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".zst", ".br", ".gz"):
        write_sibling(site / "app.js", suffix, b"packed")
    app = StaticFiles(directory=site)
    open_file = os.open

    def no_third_sibling(path: str, flags: int, **options: int) -> int:
        if str(path).endswith(".gz"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, flags, **options)

    before = open_descriptors()
    monkeypatch.setattr(os, "open", no_third_sibling)
    with pytest.raises(OSError, match="Too many open files"):
        call(app, "/app.js")
    monkeypatch.undo()
    assert open_descriptors() <= before


# Headers


def test_types_and_charset(site: Path) -> None:
    names = {
        "a.js": "text/javascript; charset=utf-8",
        "a.mjs": "text/javascript; charset=utf-8",
        "a.CSS": "text/css; charset=utf-8",
        "a.wasm": "application/wasm",
        "a.woff2": "font/woff2",
        "a.svg": "image/svg+xml",
        "a.tar.gz": "application/gzip",
        "a.unknown": "application/octet-stream",
        "README": "application/octet-stream",
        "special": "application/x-special",
        "a.foo": "text/foo; charset=utf-8",
        "a.bar": 'text/bar; charset="x"',
    }
    for name in names:
        (site / name).write_text("x")
    types = {
        ".foo": "text/foo",
        "special": "application/x-special",
        ".BAR": 'text/bar; charset="x"',
    }
    app = StaticFiles(directory=site, mimetypes=types)
    assert {name: call(app, f"/{name}").headers["content-type"] for name in names} == names
    plain = StaticFiles(directory=site, charset=None)
    assert call(plain, "/a.js").headers["content-type"] == "text/javascript"


def test_caching_and_cors_headers(site: Path) -> None:
    assert call(StaticFiles(directory=site), "/app.js").headers["cache-control"] == (
        "max-age=60, public"
    )
    assert "access-control-allow-origin" not in call(StaticFiles(directory=site), "/").headers
    app = StaticFiles(directory=site, max_age=None, allow_all_origins=True, immutable=r"^/app\.")
    assert call(app, "/app.js").headers["cache-control"] == "max-age=31536000, public, immutable"
    assert "cache-control" not in call(app, "/").headers
    assert call(app, "/").headers["access-control-allow-origin"] == "*"
    seen = []

    def rule(path: str, url: str) -> bool:
        seen.append((path, url))
        return False

    call(StaticFiles(directory=site, immutable=rule, prefix="/s"), "/s/app.js")
    assert seen == [(str(site / "app.js"), "/s/app.js")]


def test_add_headers_changes_them_for_every_status(site: Path) -> None:
    def add(headers: Headers, path: str, url: str) -> None:
        headers["X-Path"] = f"{path} {url}"
        headers["Cache-Control"] = "no-store"
        if url.endswith("large.bin"):
            headers["ETag"] = '"mine"'

    app = StaticFiles(directory=site, add_headers=add, allow_all_origins=True)
    whole = call(app, "/app.js")
    assert whole.headers["x-path"] == f"{site / 'app.js'} /app.js"
    assert whole.headers["cache-control"] == "no-store"
    for headers in ({"If_None_Match": "*"}, {"Range": "bytes=9999999-"}, {"If_Match": '"x"'}):
        answer = call(app, "/app.js", **headers)
        assert answer.status in (304, 416, 412)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert ("cache-control" in answer.headers) == (answer.status == 304)
    assert call(app, "/large.bin", If_None_Match='"mine"').status == 304


def test_entity_tags_by_stat_by_content_or_none(site: Path) -> None:
    by_stat, by_content = StaticFiles(directory=site), StaticFiles(directory=site, etag="content")
    for name in ("app.js", "large.bin"):
        stat_tag = call(by_stat, f"/{name}").headers["etag"]
        content_tag = call(by_content, f"/{name}").headers["etag"]
        os.utime(site / name, (1_700_000_000, 1_700_000_000))
        assert call(by_stat, f"/{name}").headers["etag"] != stat_tag
        assert call(by_content, f"/{name}").headers["etag"] == content_tag
    assert "etag" not in call(StaticFiles(directory=site, etag=None), "/app.js").headers


# Conditions and ranges reach the core


@pytest.mark.parametrize("name", ["app.js", "large.bin"])
@pytest.mark.parametrize("kept", [True, False])
def test_conditions_and_ranges(site: Path, name: str, kept: bool) -> None:
    app = StaticFiles(directory=site, cache_bytes=(1 << 20) * kept)
    settle(site / name)
    content = (site / name).read_bytes()
    whole = call(app, f"/{name}")
    tag, date = whole.headers["etag"], whole.headers["last-modified"]
    assert call(app, f"/{name}", If_None_Match=tag).status == 304
    assert call(app, f"/{name}", If_None_Match=tag, If_Match='"other"').status == 412
    assert call(app, f"/{name}", If_Modified_Since=date).status == 304
    assert call(app, f"/{name}", If_None_Match='"x"', If_Modified_Since=date).status == 200
    assert call(app, f"/{name}", If_Unmodified_Since=date).status == 200
    assert call(app, f"/{name}", If_Unmodified_Since=EPOCH).status == 412
    assert call(app, f"/{name}", If_Unmodified_Since=EPOCH, If_None_Match=tag).status == 412
    for header, part in (
        ("bytes=0-0", content[:1]),
        ("bytes=10-19", content[10:20]),
        ("bytes=-5", content[-5:]),
        ("bytes=100-", content[100:]),
    ):
        answer = call(app, f"/{name}", Range=header)
        assert (answer.status, answer.body) == (206, part)
        assert answer.headers["content-length"] == str(len(part))
    assert call(app, f"/{name}", Range="bytes=0-9", If_Range='"old"').body == content
    assert call(app, f"/{name}", Range="bytes=0-9", If_Range=tag).status == 206
    assert call(app, f"/{name}", Range="bytes=99999999-").status == 416
    several = call(app, f"/{name}", Range="bytes=0-9,20-29")
    assert several.status == 206
    assert several.headers["content-type"].startswith("multipart/byteranges")
    assert len(several.body) == int(several.headers["content-length"])
    assert content[:10] in several.body
    assert content[20:30] in several.body
    assert isinstance(several.iterable, SegmentedBody) == (name == "large.bin" or not kept)


MALFORMED = st.text(st.sampled_from('bytes=0123456789-, ;"W/*gziprqGMTMon:é\x00\x7f'), max_size=40)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("RANGE", "IF_RANGE", "IF_MATCH", "IF_NONE_MATCH", "ACCEPT_ENCODING"),
                *("IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE"),
            ]
        ),
        MALFORMED,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(100))
def test_malformed_headers_get_a_legal_answer(site: Path, headers: dict[str, str]) -> None:
    app = StaticFiles(directory=site)
    answer = call(app, "/app.js", **headers)
    assert answer.status in (200, 206, 304, 412, 416)
    if answer.status != 304:
        assert int(answer.headers["content-length"]) == len(answer.body)


CONDITIONS = {
    "ACCEPT_ENCODING": ["gzip", "br;q=0, *", "identity", ""],
    "IF_NONE_MATCH": ["*", '"other"', "<tag>", "W/<tag>", '"other", <tag>'],
    "IF_MODIFIED_SINCE": ["<date>", EPOCH, "never"],
    "IF_MATCH": ["*", "<tag>", '"other"'],
    "IF_UNMODIFIED_SINCE": ["<date>", EPOCH],
    "RANGE": ["bytes=0-3", "bytes=9999999-", "lines=1-2"],
    "IF_RANGE": ["<tag>", "<date>", '"other"'],
}


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    headers=st.fixed_dictionaries(
        {}, optional={k: st.sampled_from(v) for k, v in CONDITIONS.items()}
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_kept_file_is_answered_as_one_that_is_not(
    site: Path, method: str, headers: dict[str, str]
) -> None:
    """The short way for kept files says what the whole of the core says."""
    if not (site / "app.js.gz").exists():
        write_sibling(site / "app.js", ".gz", b"packed")
        settle(site / "app.js", site / "app.js.gz")
    kept, unkept = StaticFiles(directory=site), StaticFiles(directory=site, cache_bytes=0)
    whole = call(kept, "/app.js").headers
    filled = {
        name: value.replace("<tag>", whole["etag"]).replace("<date>", whole["last-modified"])
        for name, value in headers.items()
    }
    one, other = (call(app, "/app.js", method, **filled) for app in (kept, unkept))
    assert (one.status, one.headers, one.body) == (other.status, other.headers, other.body)
    assert kept.cached_bytes


# Encoded siblings


def write_sibling(original: Path, suffix: str, content: bytes, *, age_s: float = 0) -> Path:
    """A sibling as new as its original, or older by some seconds."""
    sibling = original.with_name(original.name + suffix)
    sibling.write_bytes(content)
    mtime = original.stat().st_mtime_ns - int(age_s * 1e9)
    os.utime(sibling, ns=(mtime, mtime))
    return sibling


@pytest.mark.parametrize("settled", [True, False])
def test_siblings_appear_change_and_disappear_at_once(site: Path, settled: bool) -> None:
    original = site / "app.js"
    packed = gzip.compress(original.read_bytes())
    app = StaticFiles(directory=site)

    def ask(encodings: str = "gzip, br") -> Answered:
        if settled:
            settle(*site.glob("app.js*"))
            call(app, "/app.js", Accept_Encoding=encodings)
        return call(app, "/app.js", Accept_Encoding=encodings)

    assert "vary" not in ask().headers
    sibling = write_sibling(original, ".gz", packed)
    answer = call(app, "/app.js", Accept_Encoding="gzip, br")
    assert (answer.body, answer.headers["content-encoding"]) == (packed, "gzip")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    identity = ask("identity")
    assert identity.headers["vary"] == "Accept-Encoding"
    assert identity.headers["etag"] != answer.headers["etag"]
    assert ask("gzip;q=0").body == original.read_bytes()
    assert call(app, "/app.js", Accept_Encoding="gzip", Range="bytes=0-3").body == packed[:4]
    ask()
    repacked = gzip.compress(original.read_bytes(), 1)
    write_sibling(original, ".gz", repacked)  # in place: the directory does not change
    assert call(app, "/app.js", Accept_Encoding="gzip").body == repacked
    ask()
    write_sibling(original, ".br", b"brotli")
    assert ask().body == b"brotli"
    (site / "app.js.br").unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip, br").body == repacked
    ask()
    sibling.unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


def test_a_stale_sibling_is_not_sent(site: Path) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", b"of an earlier content", age_s=1)
    app = StaticFiles(directory=site)
    answer = call(app, "/app.js", Accept_Encoding="gzip")
    assert answer.body == original.read_bytes()
    assert "vary" not in answer.headers
    write_sibling(original, ".gz", b"fresh")
    settle(*site.glob("app.js*"))
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"fresh"
    original.write_text("let answer = 43;\n" * 40)
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


@pytest.mark.parametrize(
    ("content", "age_s"), [(b"of an earlier content", 1), (b"", 0), (b"x" * 10_000, 0)]
)
def test_a_sibling_of_no_use_is_sent_once_it_is(site: Path, content: bytes, age_s: float) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", content, age_s=age_s)
    settle(*site.glob("app.js*"))
    app = StaticFiles(directory=site)
    for _ in range(2):
        assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()
    assert app.cached_bytes > 0
    write_sibling(original, ".gz", b"fresh")  # in place: the directory does not change
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"fresh"


def test_siblings_that_are_no_use(site: Path) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", b"x" * 10_000)  # larger than the original
    (site / "app.js.br").mkdir()
    os.mkfifo(site / "app.js.zst")
    answer = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip, br, zstd")
    assert answer.body == original.read_bytes()


def test_a_large_sibling_is_sent_from_its_file(site: Path) -> None:
    (site / "big.txt").write_bytes(LARGE * 2)
    write_sibling(site / "big.txt", ".zst", LARGE)
    app = StaticFiles(directory=site)
    for _ in range(2):
        answer = call(app, "/big.txt", Accept_Encoding="zstd")
        assert answer.body == LARGE
        assert answer.headers["content-encoding"] == "zstd"
        assert isinstance(answer.iterable, FileWrapper)


STEPS = st.tuples(
    st.sampled_from(["", ".gz", ".br"]),
    # Write so many hundred bytes, or ...
    st.integers(1, 9) | st.sampled_from(["delete", "older", "newer"]),
)


@given(steps=st.lists(STEPS, min_size=3, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(30))
def test_what_is_kept_is_what_the_disk_says(
    site: Path, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, Any]]
) -> None:
    """Beside a model that looks at everything each time."""
    # Kept at once: every step below shows, since each content has a length of its own.
    monkeypatch.setattr("wsgifast.files.lookup._SETTLED_NS", -1)
    app = StaticFiles(directory=site)
    original = site / "model.txt"
    siblings = {"br": site / "model.txt.br", "gzip": site / "model.txt.gz"}
    for path in siblings.values():
        path.unlink(missing_ok=True)
    original.write_bytes(b"x" * 555)
    for number, (suffix, change) in enumerate(steps):
        path = site / f"model.txt{suffix}"
        if isinstance(change, int):
            path.write_bytes(bytes([change]) * (change * 100 + number))
        elif change == "delete":
            path.unlink(missing_ok=True)
        elif path.exists():
            moment = path.stat().st_mtime + (-1 if change == "older" else 1)
            os.utime(path, (moment, moment))
        time.sleep(0.011)  # a tick of the kernel's clock: the directory's change is to be seen
        for asked in ("identity", "gzip", "br", "gzip, br"):
            answer = call(app, "/model.txt", Accept_Encoding=asked)
            assert answer.status == (200 if original.exists() else 404)
            if not original.exists():
                continue
            facts = original.stat()
            fitting = [
                path
                for coding, path in siblings.items()
                if coding in asked
                and path.exists()
                and path.stat().st_size < facts.st_size
                and path.stat().st_mtime_ns >= facts.st_mtime_ns
            ]
            best = min(fitting, key=lambda path: path.stat().st_size, default=original)
            assert answer.body == best.read_bytes(), (asked, steps[: number + 1])


# Changes, races, memory


@pytest.mark.parametrize("name", ["app.js", "large.bin"])
def test_changes_are_seen_at_once(site: Path, name: str) -> None:
    app = StaticFiles(directory=site)
    path = site / name
    size = path.stat().st_size
    for number in range(30):
        if number % 10 == 5:
            settle(path)  # kept in memory from here on
            call(app, f"/{name}")
        # Of the same length, as fast as the disk goes: times and sizes alone would not tell.
        content = bytes([number]) * size
        path.write_bytes(content)
        # A GET is answered in the short way, if it can be; a range never is.
        for byte_range in [{"Range": "bytes=1-"}, {}] if number % 2 else [{}]:
            answer = call(app, f"/{name}", **byte_range)
            expected = content[1:] if byte_range else content
            assert answer.body == expected, f"write {number} is not seen"
    path.unlink()
    assert call(app, f"/{name}").status == 404
    path.write_bytes(b"back")
    assert call(app, f"/{name}").body == b"back"
    (site / "new").write_bytes(b"replaced")
    os.replace(site / "new", path)
    assert call(app, f"/{name}").body == b"replaced"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, in seconds, as the one element of a list."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_recheck_lets_a_look_at_the_disk_hold(site: Path, clock: list[float]) -> None:
    app = StaticFiles(directory=site, recheck_s=5)
    settle(site / "app.js")
    before = call(app, "/app.js").body
    (site / "app.js").write_text("changed")
    clock[0] += 4.9
    assert call(app, "/app.js").body == before
    clock[0] += 0.2
    assert call(app, "/app.js").body == b"changed"


def test_a_look_at_one_encoding_does_not_hold_for_another(site: Path, clock: list[float]) -> None:
    write_sibling(site / "app.js", ".gz", b"old gzip")
    write_sibling(site / "app.js", ".br", b"brotli of app.js")
    settle(*site.glob("app.js*"))
    app = StaticFiles(directory=site, recheck_s=5)
    for encodings in ("gzip", "br", "identity"):
        call(app, "/app.js", Accept_Encoding=encodings)
    assert app.cached_bytes
    write_sibling(site / "app.js", ".gz", b"new gzip")  # in place: the directory does not change
    for _ in range(3):
        clock[0] += 2
        call(app, "/app.js")
        call(app, "/app.js", Accept_Encoding="br")
        call(app, "/app.js", Accept_Encoding="identity")
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"new gzip"


def test_a_swapped_directory_is_not_followed_out(site: Path) -> None:
    app = StaticFiles(directory=site)
    settle(site / "docs" / "index.html")
    assert call(app, "/docs/").body == b"<h1>docs</h1>"
    outside = site.parent / "outside"
    outside.mkdir()
    (outside / "index.html").write_text("secret")
    (site / "docs").rename(site / "old")
    (site / "docs").symlink_to("../outside")
    assert call(app, "/docs/").status == 404


def test_a_file_that_is_replaced_before_it_is_opened_again_is_looked_up_anew(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and bytes are of one file, whichever it is, even if it always changes in between."""
    app = StaticFiles(directory=site)
    real = directory_module.Directory.reopen
    swaps = []

    def swapping(self: Any, path: str, identity: Any) -> int | None:
        swaps.append(path)
        (site / "new").write_bytes(bytes([len(swaps)]) * (300_000 + len(swaps)))
        os.replace(site / "new", site / "large.bin")
        return real(self, path, identity)

    monkeypatch.setattr(directory_module.Directory, "reopen", swapping)
    before = open_descriptors()
    for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=0-9,20-29"}):
        settle(site / "large.bin")
        call(app, "/large.bin", "HEAD")  # kept from here on
        answer = call(app, "/large.bin", **headers)
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert bytes([len(swaps)]) in answer.body
    assert len(swaps) == 3
    assert call(app, "/large.bin", "HEAD").headers["content-length"] == str(300_000 + len(swaps))
    assert call(app, "/large.bin", Range="bytes=999999-").status == 416
    assert open_descriptors() <= before


def test_a_file_that_shrinks_while_sent_ends_in_an_error(site: Path) -> None:
    app = StaticFiles(directory=site)
    for headers in ({}, {"Range": "bytes=400000-"}, {"Range": "bytes=0-9,400000-400009"}):
        (site / "large.bin").write_bytes(LARGE)
        iterable = app(environ_of("/large.bin", **headers), lambda *args: None)  # type: ignore[arg-type]
        os.truncate(site / "large.bin", 100)
        with pytest.raises(FileTruncated, match="shrank"):
            b"".join(iterable)
        with pytest.raises(FileTruncated):
            iterable.close()  # type: ignore[attr-defined]


def test_a_growing_file_is_sent_to_its_declared_length(site: Path) -> None:
    app = StaticFiles(directory=site)
    iterable = app(environ_of("/large.bin"), lambda *args: None)  # type: ignore[arg-type]
    with (site / "large.bin").open("ab") as file:
        file.write(b"more")
    assert b"".join(iterable) == LARGE
    iterable.close()  # type: ignore[attr-defined]


def grow(answer: Callable[..., Answered], path: str) -> None:
    """Ask for every kind of answer, since each leaves something that is remembered."""
    for method in ("GET", "HEAD"):
        for headers in (
            {},
            {"If_None_Match": "*"},
            {"If_Match": '"none"'},
            {"Range": "bytes=1-2"},
            {"Range": "bytes=999999999-"},
            {"Accept_Encoding": "gzip"},
            {"Accept_Encoding": "br", "Range": "bytes=1-2"},
            {"Accept_Encoding": "br", "If_None_Match": "*"},
        ):
            answer(path, method, **headers)


@pytest.mark.parametrize("etag", ["stat", "content"])
def test_memory_stays_within_cache_bytes(tmp_path: Path, etag: str) -> None:
    """Proved by what Python allocates, not by the cache's own accounts."""
    root = tmp_path / "many"
    root.mkdir()
    files = [root / f"file-{number:04}.txt" for number in range(200)]
    for number, path in enumerate(files):
        path.write_bytes(os.urandom(10 + number * 80))
        if number % 3 == 0:
            write_sibling(path, ".gz", b"1234567")
            write_sibling(path, ".br", b"123456")
    bound = 1 << 19

    def add(headers: Headers, path: str, url: str) -> None:
        headers["X-Long"] = url * 20

    def raw(app: StaticFiles) -> None:
        # What the ASGI half remembers beside.
        for found in app._cache._kept.values():
            for source in found.sources():
                for facts in (
                    RequestFacts(),
                    RequestFacts("HEAD"),
                    RequestFacts(if_none_match="*"),
                    RequestFacts(if_match='"none"'),
                    RequestFacts(range="bytes=999999999-"),
                ):
                    _ = source.representation.plan(facts).raw_headers

    app = StaticFiles(
        directory=root, cache_bytes=bound, etag=etag, add_headers=add, allow_all_origins=True
    )
    settle(*files)
    grow(lambda *args, **headers: call(app, *args, **headers), "/file-0000.txt")
    gc.collect()
    tracemalloc.start()
    try:
        for path in files:
            grow(lambda *args, **headers: call(app, *args, **headers), f"/{path.name}")
            call(app, f"/none-{path.name}")
        raw(app)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert app.cached_bytes <= bound
    assert app.cached_bytes > bound * 0.8, "the cache is not full: nothing was proved"
    assert used <= bound


def test_threads_share_one_app(site: Path) -> None:
    app = StaticFiles(directory=site, cache_bytes=60_000)
    wrong: list[object] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            for name in ("app.js", "large.bin", "index.html"):
                answer = call(app, f"/{name}", Accept_Encoding="gzip")
                if answer.status != 200 or len(answer.body) != int(
                    answer.headers["content-length"]
                ):
                    wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        (site / "new").write_bytes(b"x" * (1000 + number))
        os.replace(site / "new", site / "app.js")
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_large_tree_costs_nothing_at_the_start(tmp_path: Path) -> None:
    for folder in range(10):
        (tmp_path / str(folder)).mkdir()
        for number in range(200):
            (tmp_path / str(folder) / str(number)).touch()
    tracemalloc.start()
    try:
        app = StaticFiles(directory=tmp_path)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 200_000, "bytes; a table of the tree's 2,000 files would be larger"
    assert call(app, "/7/100").status == 200


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directory": []}, "at least one"),
        ({"directory": "/nonexistent-dir"}, "/nonexistent-dir"),
        ({"directory": __file__}, "test_static.py"),
        ({"prefix": "static"}, "prefix='static'"),
        ({"index": "a/b"}, "index='a/b'"),
        ({"index": ""}, "index=''"),
        ({"index": ".."}, "index='..'"),
        ({"max_age": -1}, "max_age=-1"),
        ({"max_age": "60"}, "max_age='60'"),
        ({"max_age": 1.5}, "max_age=1.5"),
        ({"immutable": "("}, "immutable='('"),
        ({"immutable": 7}, "immutable=7"),
        ({"mimetypes": {".x": "nonsense"}}, "nonsense"),
        ({"mimetypes": {".x": "text/x\r\nX: y"}}, "mimetypes"),
        ({"charset": "utf 8"}, "charset"),
        ({"add_headers": "x"}, "add_headers='x'"),
        ({"fallback": "../x"}, "fallback='../x'"),
        ({"fallback": ""}, "fallback=''"),
        ({"fallback": "nope.html"}, "fallback='nope.html': there is no such file in"),
        ({"fallback": "docs"}, "fallback='docs'"),
        ({"fallback": "x", "app": app_behind}, "fallback"),
        ({"cache_bytes": -1}, "cache_bytes=-1"),
        ({"cache_bytes": "1M"}, "cache_bytes='1M'"),
        ({"etag": "md5"}, "etag='md5'"),
        ({"recheck_s": -1}, "recheck_s=-1"),
        ({"recheck_s": float("nan")}, "recheck_s=nan"),
        ({"app": "module:app"}, "app='module:app'"),
        ({"directory": ""}, "directory=''"),
        ({"directory": None}, "directory=None"),
        ({"directory": b"/srv"}, "directory=b'/srv'"),
        ({"index": 5}, "index=5"),
        ({"fallback": True}, "fallback=True"),
        ({"mimetypes": ["x"]}, "mimetypes=['x']"),
        ({"mimetypes": {".x": 5}}, "'.x': 5"),
        ({"charset": 5}, "charset=5"),
        ({"immutable": b"x"}, "immutable=b'x'"),
        ({"cache_bytes": True}, "cache_bytes=True"),
        ({"recheck_s": True}, "recheck_s=True"),
        ({"listing": "no"}, "listing is True or False, not 'no'"),
        ({"hidden_files": "false"}, "hidden_files is True or False, not 'false'"),
        ({"follow_symlinks": 0}, "follow_symlinks is True or False, not 0"),
        ({"allow_all_origins": "*"}, "allow_all_origins is True or False, not '*'"),
    ],
)
def test_wrong_options_are_named_when_the_object_is_made(
    site: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StaticFiles(**{"directory": site, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("static_files", [StaticFiles, asgifast.StaticFiles])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "way_out"),
    [
        (("site",), {}, TypeError, "'directory'"),
        (("site",), {"directory": "."}, ConfigurationError, "StaticFiles(directory='site')"),
        ((), {"directory": ".", "listings": True}, TypeError, "'listings'"),
    ],
)
def test_wrong_arguments_are_told_by_the_name_of_the_class(
    static_files: Any,
    arguments: tuple[str, ...],
    options: dict[str, Any],
    error: type[Exception],
    way_out: str,
) -> None:
    with pytest.raises(error) as caught:
        static_files(*arguments, **options)
    assert "StaticFiles" in str(caught.value)
    assert way_out in str(caught.value)


def test_rules_do_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's own mime.types must not change what is sent."""
    import mimetypes

    monkeypatch.setattr(mimetypes, "types_map", {".js": "x/wrong"})
    mimetypes.add_type("x/wrong", ".jpg")
    try:
        rules = HeaderRules(
            max_age=None,
            immutable=None,
            mimetypes=None,
            charset=None,
            add_headers=None,
            allow_all_origins=False,
        )
        assert rules.content_type("/x/a.jpg") == "image/jpeg"
    finally:
        mimetypes.init()
