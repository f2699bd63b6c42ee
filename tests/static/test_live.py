"""StaticFiles on real servers: the bytes on the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wsgi_server
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for

SMALL = b"let answer = 42;\n" * 60
LARGE = bytes(range(256)) * 16_384  # 4 MiB: more than the buffers between server and client contain


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "app.js").write_bytes(SMALL)
    (root / "large.bin").write_bytes(LARGE)
    (root / "empty.txt").write_bytes(b"")
    (root / "docs").mkdir()
    (root / "docs" / "index.html").write_text("<h1>docs</h1>")
    (root / "404.html").write_text("<h1>missing</h1>")
    (root.parent / "secret").write_text("secret")
    return root


SERVERS = [
    *("gunicorn-gthread", "gunicorn-gevent", "gunicorn-fastworker", "waitress", "wsgiref"),
    *("fast-wsgiref", "uwsgi"),
]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[LiveServer]:
    env = {"STATIC_ROOT": str(root)}
    with wsgi_server(request.param, "tests.support.static_app:app", env=env) as running:
        yield running


def test_connection_serves_files_and_preconditions(server: LiveServer) -> None:
    for _ in range(2):
        small = server.get("/app.js")
        assert (small.status, small.body) == (200, SMALL), small
        tag = small.header("ETag")
        assert tag is not None
        not_modified = server.get("/app.js", headers=[("If-None-Match", tag)])
        assert (not_modified.status, not_modified.body) == (304, b"")
        # Either no length, or that of the 200 (RFC 9110, section 8.6). A cache relies on it.
        assert not_modified.header("Content-Length") is None
        assert server.get("/large.bin").body == LARGE
        middle = server.get("/large.bin", headers=[("Range", "bytes=1000000-1999999")])
        assert (middle.status, middle.body) == (206, LARGE[1_000_000:2_000_000])
        assert middle.header("Content-Range") == f"bytes 1000000-1999999/{len(LARGE)}"
        several = server.get("/large.bin", headers=[("Range", "bytes=0-9,2000000-2000009")])
        assert several.status == 206
        assert several.body.count(LARGE[:10]) >= 1
        assert server.get("/large.bin", method="HEAD").header("Content-Length") == str(len(LARGE))
        assert server.get("/empty.txt").body == b""
        assert server.get("/docs").header("Location") == "./docs/"
        assert server.get("/docs/").body == b"<h1>docs</h1>"
        assert server.get("/app.js", method="POST").status == 405


def test_missing_file_gets_the_sites_page_on_servers(server: LiveServer) -> None:
    for _ in range(2):
        missing = server.get("/none.js", headers=[("If-None-Match", "*"), ("Range", "bytes=0-1")])
        assert (missing.status, missing.body) == (404, b"<h1>missing</h1>")
        received = server.get("/none.js", method="HEAD")
        assert (received.status, received.body) == (404, b"")
        assert received.header("Content-Length") == missing.header("Content-Length") == "16"
        assert received.header("ETag") is missing.header("Cache-Control") is None


@pytest.mark.parametrize("target", ["/app.js", "/large.bin", "/empty.txt", "/docs", "/docs/", "/x"])
def test_head_has_length_ranges_and_tag_of_get(server: LiveServer, target: str) -> None:
    get, received = server.get(target), server.get(target, method="HEAD")
    assert (received.status, received.body) == (get.status, b"")
    for name in ("Content-Length", "Accept-Ranges", "ETag", "Last-Modified", "Content-Type"):
        assert received.header(name) == get.header(name), name


def test_any_target_stays_in_the_directory(server: LiveServer) -> None:
    for target in (
        *("/../secret", "/%2e%2e/secret", "/..%2fsecret", "/docs/..%2f..%2fsecret"),
        *("//etc/passwd", "/..%5csecret", "/%00", "/app.js%00.html", "/%ff%fe"),
        *("/%252e%252e/secret", "/" + "a" * 3000),
    ):
        response = server.get(target)
        assert response.status in (400, 404), f"{target}: {response}"
        assert b"secret" not in response.body, target


def test_file_shrinking_ends_connection_and_is_logged(server: LiveServer, root: Path) -> None:
    path = root / "shrinking.bin"
    path.write_bytes(LARGE * 8)
    with Connection(server.address, receive_buffer=16_384) as connection:
        connection.send_request("/shrinking.bin")
        received = connection.read_headers()
        assert received.header("Content-Length") == str(len(LARGE) * 8)
        connection.read(100_000)
        os.truncate(path, 200_000)
        rest = connection.read_to_end()
        assert len(rest) < len(LARGE) * 8 - 100_000
    wait_for(lambda: "shrank" in server.log(), lambda: f"the log tells of it: {server.log()}")
    assert server.get("/app.js").body == SMALL
