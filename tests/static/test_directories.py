"""StaticFiles: an index, listings, a fallback, several directories."""

from __future__ import annotations

import os
from pathlib import Path

from tests.static.calls import call, call_with, environ_of, settle
from wsgifast import StaticFiles


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
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"),
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
