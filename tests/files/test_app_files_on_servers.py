"""Ranges and preconditions on live servers, for frameworks and for an app that supports neither."""

from __future__ import annotations

import email.parser
import email.policy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WSGI_SERVERS, wsgi_server
from tests.files.conftest import CONTENT
from tests.support import files
from tests.support.file_frameworks import FRAMEWORKS
from tests.support.http import Connection, Response
from tests.support.servers import LiveServer, wait_for

SIZE = len(CONTENT)
# Servers that must log a shrinking file.
SHRINKING = (
    *("gunicorn-gthread", "gunicorn-sync", "gunicorn-fastworker", "waitress", "wsgiref", "uwsgi"),
    *("fast-wsgiref", "fast-werkzeug"),
)
# Apache applies Range to each 200 without the app's help.
WITHOUT_RANGES = [name for name in WSGI_SERVERS if name != "mod_wsgi"]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=WSGI_SERVERS)
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[LiveServer]:
    """A live server with one file, behind the wrapped app and behind every framework."""
    env = {"FILES_ROOT": str(root)}
    with wsgi_server(request.param, "tests.support.file_frameworks:app", env=env) as started:
        yield started


def parts(response: Response) -> list[tuple[str, bytes]]:
    content_type = response.header("Content-Type")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        f"Content-Type: {content_type}\r\n\r\n".encode() + response.body
    )
    return [(p["Content-Range"], p.get_payload(decode=True)) for p in message.iter_parts()]  # type: ignore[misc]


def test_file_arrives_whole(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file")
        assert (response.status, response.body) == (200, CONTENT), f"{framework}: {response}"
        assert response.header("Content-Length") == str(SIZE), f"{framework}: {response}"
        if framework == "plain":
            assert response.header("Accept-Ranges") == "bytes"
            assert response.header("ETag")
            # From this, caches would conclude that the file is fresh for days.
            assert response.header("Last-Modified") is None


ONE_RANGE = [
    ("bytes=0-1", 0, 1),
    ("bytes=100000-899999", 100_000, 899_999),
    (f"bytes={SIZE - 5}-", SIZE - 5, SIZE - 1),
    ("bytes=-70000", SIZE - 70_000, SIZE - 1),
]
# Some frameworks respond differently to these requests.
OTHER_RANGES = [
    ("bytes=0-0", 0, 0),
    ("bytes=0-", 0, SIZE - 1),
    ("bytes=-1", SIZE - 1, SIZE - 1),
    ("bytes=999999-99999999", 999_999, SIZE - 1),
    ("bytes=0-9,5-19", 0, 19),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_range_of_an_apps_file_is_a_206(server: LiveServer, framework: str) -> None:
    for header, first, last in ONE_RANGE + (OTHER_RANGES if framework == "plain" else []):
        with Connection(server.address) as connection:
            for _ in range(2):  # the second request uses the same connection if it stays open
                response = connection.request(f"/{framework}/file", headers=[("Range", header)])
                details = f"{header}: {response}"
                assert response.status == 206, details
                assert response.header("Content-Range") == f"bytes {first}-{last}/{SIZE}", details
                assert response.header("Content-Length") == str(last - first + 1), details
                assert response.body == CONTENT[first : last + 1], details
                if framework == "plain":
                    assert response.header("Access-Control-Allow-Origin") == "*", details
                if not response.keep_alive:
                    assert connection.read_to_end() == b"", details
                    break


def test_several_ranges_of_an_apps_file_are_multipart(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        response = connection.request(
            "/plain/file", headers=[("Range", "bytes=900000-999999,0-0,-300000,5-9,2000000-")]
        )
        assert response.status == 206, str(response)
        assert parts(response) == [
            (f"bytes 700003-{SIZE - 1}/{SIZE}", CONTENT[700_003:]),
            (f"bytes 0-0/{SIZE}", CONTENT[:1]),
            (f"bytes 5-9/{SIZE}", CONTENT[5:10]),
        ]
        if response.keep_alive:
            assert connection.request("/plain/file").body == CONTENT
        else:
            assert connection.read_to_end() == b""


def test_range_beyond_four_gigabytes_is_sent(server: LiveServer, root: Path) -> None:
    size = (5 << 30) + 3
    Path(root, "sparse").touch()
    os.truncate(root / "sparse", size)
    with open(root / "sparse", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"end")
    os.utime(root / "sparse", (1.7e9, 1.7e9))
    files.wait_until_old(root / "sparse")
    for header in ("bytes=-5", f"bytes={size - 5}-"):
        response = server.get("/plain/sparse", headers=[("Range", header)])
        assert response.status == 206, str(response)
        assert response.header("Content-Range") == f"bytes {size - 5}-{size - 1}/{size}"
        assert response.body == b"\0\0end"
    assert server.get("/plain/sparse", method="HEAD").header("Content-Length") == str(size)


def test_preconditions_are_evaluated(server: LiveServer) -> None:
    etag = server.get("/plain/file").header("ETag")
    assert etag
    for header, value, status in (
        ("If-None-Match", etag, 304),
        ("If-None-Match", '"other"', 200),
        ("If-Match", '"other"', 412),
        ("If-Match", etag, 200),
    ):
        response = server.get("/plain/file", headers=[(header, value)])
        assert response.status == status, str(response)
        assert response.header("ETag") == (None if status == 412 else etag)
        assert response.header("Access-Control-Allow-Origin") == "*"
        assert response.body == (CONTENT if status == 200 else b"")


def test_304_does_not_poison_the_next_response(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        response = connection.request("/plain/file", headers=[("If-None-Match", "*")])
        assert response.status == 304
        if response.keep_alive:
            assert connection.request("/plain/file").body == CONTENT
        else:
            assert connection.read_to_end() == b""


def test_unsatisfiable_range_of_an_apps_file_is_a_416(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file", headers=[("Range", f"bytes={SIZE}-")])
        assert response.status == 416, f"{framework}: {response}"
        if framework == "plain":
            assert response.header("Content-Range") == f"bytes */{SIZE}"
            assert response.header("Content-Length") == "0"
            assert response.header("Access-Control-Allow-Origin") == "*"


def test_if_range_uses_the_validators_of_the_app(server: LiveServer) -> None:
    target = "/plain/file?etag=%22mine%22&date"
    for validator, status in (
        ('"mine"', 206),
        ('W/"mine"', 200),
        ('"other"', 200),
        (files.DATE, 206),
        ("Sun, 06 Nov 1994 08:49:38 GMT", 200),
        ("junk", 200),
    ):
        headers = [("Range", "bytes=0-9"), ("If-Range", validator)]
        response = server.get(target, headers=headers)
        assert response.status == status, f"{validator}: {response}"
        assert response.header("ETag") == '"mine"'
        assert response.body == CONTENT[: 10 if status == 206 else SIZE]


@pytest.mark.parametrize("server", WITHOUT_RANGES, indirect=True)
@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_range_of_head_and_post_is_ignored(server: LiveServer, method: str) -> None:
    headers = [("Range", "bytes=0-0")]
    response = server.get("/plain/file", method=method, headers=headers)
    assert response.status == 200
    assert response.header("Content-Length") == str(SIZE)
    assert response.body == (b"" if method == "HEAD" else CONTENT)


def test_head_has_no_body(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file", method="HEAD")
        assert (response.status, response.body) == (200, b""), f"{framework}: {response}"


def test_no_file_stays_open(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        for range_ in ("bytes=0-9", "bytes=9-"):
            server.get(f"/{framework}/file", headers=[("Range", range_)])
    wait_for(lambda: not server.open_files("*/file"), "every framework's file is closed")


MALFORMED_HEADERS = [
    [("Range", "bytes=+1-+5")],
    [("Range", "bytes=1_0-2_0")],
    [("Range", "bytes=" + "0-0," * 500)],
    [("Range", "bytes=" + "0-," * 500)],
    [("Range", "lines=1-2")],
    [("Range", "\xb2\xff=\xb2")],
    [("Range", "bytes=0-0"), ("If-Range", "\xff")],
    [("If-None-Match", '"\xff')],
    [("If-Modified-Since", "\xb2" * 29)],
    [("If-Unmodified-Since", "0")],
    [("Accept-Encoding", "gzip;q=\xb2, *;q=0, identity;q=0")],
]


@pytest.mark.parametrize("server", WITHOUT_RANGES, indirect=True)
def test_malformed_range_gets_the_whole_file(server: LiveServer) -> None:
    for headers in MALFORMED_HEADERS:
        response = server.get("/plain/file?date", headers=headers)
        assert response.status == 200, f"{headers}: {response}"
        assert response.body == CONTENT, headers


@pytest.mark.parametrize("name", SHRINKING)
@pytest.mark.parametrize(
    "header", [("X-Nothing", ""), ("Range", "bytes=500-"), ("Range", "bytes=0-9,500-900000")]
)
def test_file_that_shrinks_is_never_padded(
    name: str, header: tuple[str, str], tmp_path: Path
) -> None:
    Path(tmp_path, "file").write_bytes(CONTENT)
    app, env = "tests.support.files:shrinking_app", {"FILES_ROOT": str(tmp_path)}
    with wsgi_server(name, app, env=env) as server, Connection(server.address) as client:
        client.send_request("/file", headers=[header])
        received = client.read_headers()
        assert received.status in (200, 206)
        body = client.read_to_end()  # this waits and times out if the connection stays open
        assert len(body) < 2000
        start = 500 if header[1] == "bytes=500-" else 0
        if not header[1].startswith("bytes=0-9"):
            assert body == CONTENT[start:1000]
        wait_for(lambda: "shrank" in server.log(), "the log tells of the file that shrank")


def test_206_of_the_app_is_left_alone(server: LiveServer) -> None:
    response = server.get("/plain/file?part", headers=[("Range", "bytes=5-9")])
    assert response.status == 206
    assert response.body == b"part"
