"""StaticFiles: an index, listings, a fallback, several directories."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.static.calls import Answered, app_behind, call, call_with, environ_of
from tests.support.effort import effort
from tests.support.files import settle
from wsgifast import StaticFiles


def test_directory_redirects_to_its_index(site: Path) -> None:
    app = StaticFiles(directory=site)
    assert call(app, "/").body == b"<h1>home</h1>"
    assert call(app, "/docs/").body == b"<h1>docs</h1>"
    assert call(app, "/docs/index.html").body == b"<h1>docs</h1>"
    response = call(app, "/docs")
    assert (response.status, response.headers["location"], response.body) == (302, "./docs/", b"")
    environ = {**environ_of("/docs"), "QUERY_STRING": "a=1&b=\xe9%20 \r\nX: y"}
    location = call_with(app, environ).headers["location"]
    assert location == "./docs/?a=1&b=%E9%20%20%0D%0AX:%20y"
    environ["QUERY_STRING"] = "q=\u20ac\u00e9"  # HTTP/2 servers decode a raw UTF-8 path to this
    assert call_with(app, environ).headers["location"] == "./docs/?q=%E2%82%AC%C3%A9"


def test_redirect_never_leads_to_another_host(site: Path) -> None:
    (site / "http:").mkdir()
    (site / "http:" / "index.html").write_text("x")
    app = StaticFiles(directory=site)
    assert call(app, "/http:").headers["location"] == "./http%3A/"
    assert call(app, "//evil.example/").status == 404


def ask_mount(app: Any, mount: str, path: str = "", query: str = "", **headers: str) -> Answered:
    environ = {**environ_of(path, **headers), "SCRIPT_NAME": mount, "QUERY_STRING": query}
    return call_with(app, environ)


MOUNTS = [
    ("/docs", "./docs/"),
    ("/a/b", "./b/"),
    ("/gr\xc3\xbc\xc3\x9fe", "./gr%C3%BC%C3%9Fe/"),  # UTF-8 as PEP 3333 represents it
    ("//evil.example", "./evil.example/"),
    ("/\\evil.example", "./%5Cevil.example/"),
    ("/http:", "./http%3A/"),
    ("/a\r\nX: y", "./a%0D%0AX%3A%20y/"),
    ("/a?b#c", "./a%3Fb%23c/"),
]


@pytest.mark.parametrize(("mount", "location"), MOUNTS)
@pytest.mark.parametrize("options", [{}, {"listing": True, "index": None}])
def test_wsgi_mount_point_without_its_slash_redirects(
    site: Path, mount: str, location: str, options: dict[str, Any]
) -> None:
    app = StaticFiles(directory=site, **options)
    for method in ("GET", "HEAD"):
        environ = {**environ_of("", method), "SCRIPT_NAME": mount}
        response = call_with(app, environ)
        assert (response.status, response.headers["location"]) == (302, location)
        response = call_with(app, {**environ, "QUERY_STRING": "a=1&b=//x"})
        assert response.headers["location"] == f"{location}?a=1&b=//x"
    assert ask_mount(app, mount, "/").status == 200
    assert ask_mount(app, mount, "/docs").headers["location"] == "./docs/"


@given(mount=st.text(max_size=20), query=st.text(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(200))
def test_redirect_of_a_mount_point_stays_at_its_host(site: Path, mount: str, query: str) -> None:
    mount = f"/{mount}x"
    text = mount.encode("utf-8", "surrogatepass").decode("latin-1")
    response = ask_mount(StaticFiles(directory=site), text, query=query)
    assert response.status == 302
    location = response.headers["location"]
    assert location.isascii()
    assert location.isprintable()
    base = "http://here" + quote(mount, errors="surrogatepass")
    target = urlsplit(urljoin(base, location))
    assert (target.scheme, target.netloc) == ("http", "here")
    if {"", ".", ".."}.isdisjoint(mount.split("/")[1:]):  # urljoin() leaves these out
        assert target.path == quote(mount, errors="surrogatepass") + "/"


def test_mount_point_without_index_is_no_file(site: Path) -> None:
    app = StaticFiles(directory=site, index=None)
    assert ask_mount(app, "/docs").status == 404
    behind = StaticFiles(app_behind, directory=site, index=None)
    assert ask_mount(behind, "/docs").body == b"the app: GET"


def test_mount_point_with_fallback_redirects(site: Path) -> None:
    app = StaticFiles(directory=site, index=None, fallback="index.html")
    assert ask_mount(app, "/ui", query="a").headers["location"] == "./ui/?a"
    assert ask_mount(app, "/ui", "/").body == b"<h1>home</h1>"
    assert ask_mount(app, "/ui", "/route").body == b"<h1>home</h1>"


def test_root_without_a_path_is_no_mount_point(site: Path) -> None:
    """The request line is `GET http://host HTTP/1.1`, or the mount's name ends with a slash."""
    app = StaticFiles(directory=site)
    for mount in ("", "/docs/"):
        assert ask_mount(app, mount).body == b"<h1>home</h1>"


def test_prefix_without_slash_redirects_without_app(site: Path) -> None:
    app = StaticFiles(directory=site, prefix="/a/b")
    environ = {**environ_of("/a/b"), "QUERY_STRING": "x=y"}
    assert call_with(app, environ).headers["location"] == "./b/?x=y"
    assert call(app, "/a/b/").body == b"<h1>home</h1>"
    assert call(app, "/a").status == 404
    behind = StaticFiles(app_behind, directory=site, prefix="/a/b")
    assert call(behind, "/a/b").body == b"the app: GET"


def test_directory_without_index_is_404(site: Path) -> None:
    app = StaticFiles(directory=site, index=None)
    assert [call(app, path).status for path in ("/", "/docs", "/docs/")] == [404, 404, 404]
    assert call(app, "/docs/index.html").status == 200


SHOWN_SIZES = [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"),
]  # fmt: skip


def test_directory_with_listing_lists_its_files(site: Path) -> None:
    hostile = '<img src=x onerror="a">&.txt'
    (site / "empty" / hostile).write_text("x")
    (site / "empty" / "a:b").mkdir()
    (site / "empty" / ".hidden").write_text("x")
    (site / "empty" / "back\\slash").write_text("x")  # this file is never served
    for size, _ in SHOWN_SIZES:
        with (site / "empty" / f"size{size}").open("wb") as file:
            file.truncate(size)
    (site / "empty" / "out").symlink_to("../../..")
    (site / "empty" / "in").symlink_to("../app.js")
    os.mkfifo(site / "empty" / "fifo")
    app = StaticFiles(directory=site, listing=True)
    response = call(app, "/empty/")
    page = response.body.decode()
    assert response.status == 200
    assert "<img" not in page
    assert "&lt;img src=x onerror=&quot;a&quot;&gt;&amp;.txt" in page
    assert 'href="./a%3Ab/"' in page
    assert 'href="./in"' in page
    assert 'href="../"' in page
    for size, shown_size in SHOWN_SIZES:
        assert f'"./size{size}">size{size}</a></td><td>{shown_size}</td>' in page
    assert not any(name in page for name in (".hidden", "slash", "fifo", "./out"))
    assert response.headers["content-security-policy"] == "default-src 'none'"
    assert call(app, "/empty").headers["location"] == "./empty/"
    assert call(app, "/").body == b"<h1>home</h1>"
    assert b'"../"' not in call(StaticFiles(directory=site, listing=True, index=None), "/").body
    shown = call(StaticFiles(directory=site, listing=True, hidden_files=True), "/empty/")
    assert b".hidden" in shown.body


@pytest.mark.parametrize("character", "\x01\n\x1b\x7f\x85\u061c\u200e\u2028\u202e\u2066\u2069")
def test_listing_escapes_invisible_characters(site: Path, character: str) -> None:
    name = f"a{character}gpj.exe"
    (site / "empty" / name).write_bytes(b"")
    page = call(StaticFiles(directory=site, listing=True), "/empty/").body.decode()
    escaped = character.encode("unicode_escape").decode()
    assert f">a{escaped}gpj.exe</a>" in page
    assert f'"./{quote(name)}"' in page  # the link leads to the file
    assert name not in page


def test_listing_leaves_out_what_cannot_be_read(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EACCES, "Permission denied")
    for name in ("open.txt", "secret.txt"):
        (site / "empty" / name).write_text("x")
    open_ = os.open

    def open_if_readable(path: str, *args: Any, **kwargs: Any) -> int:
        if path.endswith("secret.txt"):
            raise error
        return open_(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_if_readable)
    page = call(StaticFiles(directory=site, listing=True), "/empty/").body
    assert b"open.txt" in page
    assert b"secret" not in page
    error = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(OSError, match="Too many"):
        call(StaticFiles(directory=site, listing=True), "/empty/")


def test_listing_has_no_date_beyond_the_calendar(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat_result = os.stat_result((stat.S_IFREG, *[0] * 7, 1 << 60, 0))
    monkeypatch.setattr(
        "wsgifast.files.listing._entries", lambda *_, **__: {"far.txt": stat_result}
    )
    assert b"far.txt" in call(StaticFiles(directory=site, listing=True), "/empty/").body


def test_add_headers_waits_for_the_fallback(site: Path) -> None:
    calls: list[object] = []
    app = StaticFiles(
        directory=site, fallback="index.html", add_headers=lambda *each: calls.append(each)
    )
    assert not calls
    assert (call(app, "/users/7").status, len(calls)) == (200, 1)


def test_fallback_answers_routes_not_missing_assets(site: Path) -> None:
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


def test_first_directory_that_has_the_file_wins(site: Path, tmp_path: Path) -> None:
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
