"""Ranges and conditions for an app that knows of neither, live and in process."""

from __future__ import annotations

import email.parser
import email.policy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import bottle
import pytest

from tests.conftest import WSGI_SERVERS, gunicorn
from tests.support import files
from tests.support.http import Connection, Response
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.bodies.files import FileSlice
from wsgifast.bodies.segments import SegmentedBody

# Longer than a block, so that a range has a beginning, blocks and an end.
CONTENT = os.urandom(1_000_003)
SIZE = len(CONTENT)
# Servers that know a body of several runs of a file, and send it by sendfile.
OURS = ("fast-wsgiref", "fast-werkzeug", "wsgifast.workers.FastWorker")
SERVERS = ("gunicorn-gthread", "gunicorn-sync", "waitress", "wsgiref", "uwsgi", *OURS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file in it."""
    folder = tmp_path_factory.mktemp("files")
    Path(folder, "file").write_bytes(CONTENT)
    return folder


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[LiveServer]:
    """A live server with the wrapped app."""
    with running(request.param, "app", root) as started:
        yield started


def running(name: str, app: str, root: Path) -> Any:
    port, app = free_port(), f"tests.support.files:{app}"
    argv = WSGI_SERVERS[name](port, app) if name in WSGI_SERVERS else gunicorn(name, port, app)
    return live_server(argv, ("127.0.0.1", port), env={"FILES_ROOT": str(root)})


def parts(response: Response) -> list[tuple[str, bytes]]:
    content_type = response.header("Content-Type")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        f"Content-Type: {content_type}\r\n\r\n".encode() + response.body
    )
    return [(p["Content-Range"], p.get_payload(decode=True)) for p in message.iter_parts()]  # type: ignore[misc]


def test_the_whole_file_offers_ranges(server: LiveServer) -> None:
    response = server.get("/file")
    assert response.status == 200
    assert response.body == CONTENT
    assert response.header("Accept-Ranges") == "bytes"
    assert response.header("ETag")
    # Caches would conclude from it that the file is good for days.
    assert response.header("Last-Modified") is None


ONE_RANGE = [
    ("bytes=0-0", 0, 0),
    ("bytes=0-", 0, SIZE - 1),
    ("bytes=-1", SIZE - 1, SIZE - 1),
    ("bytes=10-", 10, SIZE - 1),
    ("bytes=100000-899999", 100_000, 899_999),
    ("bytes=999999-99999999", 999_999, SIZE - 1),
    ("bytes=0-9,5-19", 0, 19),
]


def test_one_range(server: LiveServer) -> None:
    for header, first, last in ONE_RANGE:
        with Connection(server.address) as connection:
            for _ in range(2):  # the second time on the same connection, where it stays open
                response = connection.request("/file", headers=[("Range", header)])
                told = f"{header}: {response}"
                assert response.status == 206, told
                assert response.header("Content-Range") == f"bytes {first}-{last}/{SIZE}", told
                assert response.header("Content-Length") == str(last - first + 1), told
                assert response.header("Access-Control-Allow-Origin") == "*", told
                assert response.body == CONTENT[first : last + 1], told
                if not response.keep_alive:
                    assert connection.read_to_end() == b"", told
                    break


def test_several_ranges(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        response = connection.request(
            "/file", headers=[("Range", "bytes=900000-999999,0-0,-300000,5-9,2000000-")]
        )
        assert response.status == 206, str(response)
        assert parts(response) == [
            (f"bytes 700003-{SIZE - 1}/{SIZE}", CONTENT[700_003:]),
            (f"bytes 0-0/{SIZE}", CONTENT[:1]),
            (f"bytes 5-9/{SIZE}", CONTENT[5:10]),
        ]
        if response.keep_alive:
            assert connection.request("/file").body == CONTENT
        else:
            assert connection.read_to_end() == b""


def test_beyond_four_gigabytes(server: LiveServer, root: Path) -> None:
    size = (5 << 30) + 3
    Path(root, "sparse").touch()
    os.truncate(root / "sparse", size)
    with open(root / "sparse", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"end")
    for header in ("bytes=-5", f"bytes={size - 5}-"):
        response = server.get("/sparse", headers=[("Range", header)])
        assert response.status == 206, str(response)
        assert response.header("Content-Range") == f"bytes {size - 5}-{size - 1}/{size}"
        assert response.body == b"\0\0end"
    assert server.get("/sparse", method="HEAD").header("Content-Length") == str(size)


def test_conditions(server: LiveServer) -> None:
    etag = server.get("/file").header("ETag")
    assert etag
    for header, value, status in (
        ("If-None-Match", etag, 304),
        ("If-None-Match", '"other"', 200),
        ("If-Match", '"other"', 412),
        ("If-Match", etag, 200),
    ):
        response = server.get("/file", headers=[(header, value)])
        assert response.status == status, str(response)
        assert response.header("ETag") == (None if status == 412 else etag)
        assert response.header("Access-Control-Allow-Origin") == "*"
        assert response.body == (CONTENT if status == 200 else b"")


def test_a_304_does_not_poison_the_next_response(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        response = connection.request("/file", headers=[("If-None-Match", "*")])
        assert response.status == 304
        if response.keep_alive:
            assert connection.request("/file").body == CONTENT
        else:
            assert connection.read_to_end() == b""


def test_unsatisfiable(server: LiveServer) -> None:
    response = server.get("/file", headers=[("Range", f"bytes={SIZE}-")])
    assert response.status == 416
    assert response.header("Content-Range") == f"bytes */{SIZE}"
    assert response.header("Content-Length") == "0"
    assert response.header("Access-Control-Allow-Origin") == "*"


def test_if_range_with_the_validators_of_the_app(server: LiveServer) -> None:
    target = "/file?etag=%22mine%22&date"
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


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_range_is_for_get_alone(server: LiveServer, method: str) -> None:
    headers = [("Range", "bytes=0-0")]
    response = server.get("/file", method=method, headers=headers)
    assert response.status == 200
    assert response.header("Content-Length") == str(SIZE)
    assert response.body == (b"" if method == "HEAD" else CONTENT)


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


def test_malformed_headers_get_the_whole_file(server: LiveServer) -> None:
    for headers in MALFORMED_HEADERS:
        response = server.get("/file?date", headers=headers)
        assert response.status == 200, f"{headers}: {response}"
        assert response.body == CONTENT, headers


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "header", [("X-Nothing", ""), ("Range", "bytes=500-"), ("Range", "bytes=0-9,500-900000")]
)
def test_a_file_that_shrinks_is_never_padded(
    name: str, header: tuple[str, str], tmp_path: Path
) -> None:
    Path(tmp_path, "file").write_bytes(CONTENT)
    with running(name, "shrinking_app", tmp_path) as server, Connection(server.address) as client:
        client.send_request("/file", headers=[header])
        head = client.read_head()
        assert head.status in (200, 206)
        body = client.read_to_end()  # hangs, and times out, if the connection stays open
        assert len(body) < 2000
        start = 500 if header[1] == "bytes=500-" else 0
        if not header[1].startswith("bytes=0-9"):
            assert body == CONTENT[start:1000]
        wait_for(lambda: "shrank" in server.log(), "the log tells of the file that shrank")


def test_the_apps_own_part_is_left_alone(root: Path) -> None:
    with running("gunicorn-gthread", "app", root) as server:
        response = server.get("/file?part", headers=[("Range", "bytes=5-9")])
        assert response.status == 206
        assert response.body == b"part"


# In process


class Call:
    """One request to a wrapped app, and what the server was given."""

    def __init__(self, app: Any, target: str, *, method: str = "GET", **headers: str) -> None:
        path, _, query = target.partition("?")
        self.environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "wsgi.file_wrapper": FileWrapper,
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
        }
        self.status, self.headers = "", dict[str, str]()
        self.body = app(self.environ, self.start)
        self.content = b"".join(self.body)
        if hasattr(self.body, "close"):
            self.body.close()

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self.status, self.headers = status, {name.lower(): value for name, value in headers}

    @property
    def sent_as(self) -> str:
        return str(self.environ["wsgifast.sent_as"])


@pytest.fixture
def served(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROOT", str(root))


@pytest.mark.usefixtures("served")
class TestInProcess:
    def test_sent_as(self) -> None:
        one = Call(files.app, "/file", range="bytes=1-2")
        assert one.sent_as == "file"
        assert isinstance(one.body, FileWrapper)
        assert isinstance(one.body.filelike, FileSlice)
        several = Call(files.app, "/file", range="bytes=1-2,5-6")
        assert several.sent_as == "segments"
        assert isinstance(several.body, SegmentedBody)
        assert Call(files.app, "/file", if_none_match="*").sent_as == "no-body"

    @pytest.mark.parametrize("query", ["temporary", "named"])
    def test_a_temporary_file_has_no_ranges(self, query: str) -> None:
        """Its bytes may be others at the next request, and no validator would tell."""
        call = Call(files.app, f"/file?{query}", range="bytes=0-0", if_none_match="*")
        assert call.status == "200 OK"
        assert not call.headers.keys() & {"etag", "accept-ranges"}
        # With a validator of the app's own they are its promise.
        call = Call(files.app, f"/file?{query}&etag=%22x%22", range="bytes=0-0")
        assert call.content == CONTENT[:1]

    def test_the_apps_accept_ranges_none_stands(self) -> None:
        call = Call(files.app, "/file?none", range="bytes=0-0")
        assert (call.status, call.headers["accept-ranges"]) == ("200 OK", "none")
        assert call.content == CONTENT

    @pytest.mark.parametrize("status", ["201 Created", "404 Not Found", "203 Transformed"])
    def test_only_200_is_looked_at(self, status: str) -> None:
        call = Call(files.app, f"/file?status={status}", range="bytes=0-0", if_none_match="*")
        assert call.status == status
        assert call.content == CONTENT

    def test_a_phrase_of_the_apps_own_stays(self) -> None:
        assert Call(files.app, "/file?status=200 Here it is").status == "200 Here it is"

    def test_a_file_that_was_read_from_is_the_rest(self) -> None:
        call = Call(files.app, "/file?read", range="bytes=0-4,-5")
        rest = SIZE - 10
        assert f"Content-Range: bytes 0-4/{rest}\r\n".encode() in call.content
        assert CONTENT[10:15] in call.content
        assert CONTENT[-5:] in call.content

    def test_a_content_length_of_the_app_is_the_whole(self) -> None:
        call = Call(files.app, "/file?length=100", range="bytes=-5")
        assert call.headers["content-range"] == "bytes 95-99/100"
        assert call.content == CONTENT[95:100]

    def test_tags_tell_files_apart(self, root: Path) -> None:
        Path(root, "other").write_bytes(CONTENT)
        facts = os.stat(root / "file")
        os.utime(root / "other", ns=(facts.st_atime_ns, facts.st_mtime_ns))
        tags = [
            Call(files.app, target).headers["etag"]
            for target in ("/file", "/file?read", "/file?length=100", "/other")
        ]
        assert len(set(tags)) == 4
        assert Call(files.app, "/file").headers["etag"] == tags[0]

    def test_an_empty_file_has_conditions_too(self, root: Path) -> None:
        (root / "empty").touch()
        whole = Call(files.app, "/empty")
        assert (whole.status, whole.headers["content-length"]) == ("200 OK", "0")
        etag = whole.headers["etag"]
        assert Call(files.app, "/empty", if_none_match=etag).status == "304 Not Modified"
        assert Call(files.app, "/empty", if_match='"x"').status == "412 Precondition Failed"
        assert Call(files.app, "/empty", range="bytes=0-").status == "200 OK"

    def test_switched_off(self) -> None:
        for options, ranged, conditioned in (
            ({"ranges": False}, "200 OK", "304 Not Modified"),
            ({"conditional": False}, "206 Partial Content", "200 OK"),
            ({"ranges": False, "conditional": False}, "200 OK", "200 OK"),
        ):
            app = WSGIFast(files.raw, **options)  # type: ignore[arg-type]
            assert Call(app, "/file", range="bytes=0-0").status == ranged
            assert Call(app, "/file", if_none_match="*").status == conditioned


@pytest.mark.parametrize("range_", ["", "bytes=5-9"])
@pytest.mark.parametrize("condition", ["if_match", "if_none_match", "if_range"])
def test_bottles_tag_without_quotes_is_left_to_bottle(
    root: Path, condition: str, range_: str
) -> None:
    app = bottle.Bottle()
    app.get("/<name>", callback=lambda name: bottle.static_file(name, str(root)))
    tag = Call(WSGIFast(app), "/file").headers["etag"]
    assert '"' not in tag
    for sent in (tag, f'"{tag}"', f'W/"{tag}"', f'"other", "{tag}"', '"other"', "*"):
        headers = {condition: sent, "range": range_}
        alone, wrapped = (Call(side, "/file", **headers) for side in (app, WSGIFast(app)))
        assert wrapped.status == alone.status, headers
        assert wrapped.content == alone.content, headers
        assert wrapped.headers.get("content-range") == alone.headers.get("content-range"), headers


@pytest.mark.parametrize(
    "options",
    [
        {"ranges": "yes"},
        {"conditional": 1},
        {"ranges": "take-over"},
        {"accel_redirect": {}},
        {"accel_redirect": "/srv"},
        {"accel_redirect": {"/nonexistent": "/x/"}},
        {"accel_redirect": {"/": "http://elsewhere/"}},
        {"accel_redirect": {"/": "/a b/"}},
        {"accel_redirect": {"/": "/x/\r\nX: y"}},
        {"x_sendfile": []},
        {"x_sendfile": "/srv"},
        {"x_sendfile": b"/srv"},
        {"x_sendfile": Path("/srv")},
        {"x_sendfile": [5]},
        {"accel_redirect": {5: "/x/"}},
        {"x_sendfile": ["/nonexistent"]},
        {"x_sendfile": {"/": "/x/"}},
        {"accel_redirect": {"/": "/x/"}, "x_sendfile": ["/"]},
    ],
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WSGIFast(files.raw, **options)
