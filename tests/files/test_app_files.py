"""Ranges and conditions for an app that knows of neither, live and in process."""

from __future__ import annotations

import email.parser
import email.policy
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import bottle
import pytest

from tests.conftest import WSGI_SERVERS, gunicorn
from tests.support import files
from tests.support.http import Connection, Response
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.bodies.files import FileSlice, SegmentedBody
from wsgifast.files.app_files import is_made_for_one_answer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

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
    files.write_old(Path(folder, "file"), CONTENT)
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


def test_whole_file_offers_ranges(server: LiveServer) -> None:
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


def test_one_range_is_a_206(server: LiveServer) -> None:
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


def test_several_ranges_are_multipart(server: LiveServer) -> None:
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
        response = server.get("/sparse", headers=[("Range", header)])
        assert response.status == 206, str(response)
        assert response.header("Content-Range") == f"bytes {size - 5}-{size - 1}/{size}"
        assert response.body == b"\0\0end"
    assert server.get("/sparse", method="HEAD").header("Content-Length") == str(size)


def test_preconditions_are_evaluated(server: LiveServer) -> None:
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


def test_304_does_not_poison_the_next_response(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        response = connection.request("/file", headers=[("If-None-Match", "*")])
        assert response.status == 304
        if response.keep_alive:
            assert connection.request("/file").body == CONTENT
        else:
            assert connection.read_to_end() == b""


def test_unsatisfiable_range_is_a_416(server: LiveServer) -> None:
    response = server.get("/file", headers=[("Range", f"bytes={SIZE}-")])
    assert response.status == 416
    assert response.header("Content-Range") == f"bytes */{SIZE}"
    assert response.header("Content-Length") == "0"
    assert response.header("Access-Control-Allow-Origin") == "*"


def test_if_range_uses_the_validators_of_the_app(server: LiveServer) -> None:
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
def test_range_of_other_methods_is_ignored(server: LiveServer, method: str) -> None:
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


def test_malformed_range_gets_the_whole_file(server: LiveServer) -> None:
    for headers in MALFORMED_HEADERS:
        response = server.get("/file?date", headers=headers)
        assert response.status == 200, f"{headers}: {response}"
        assert response.body == CONTENT, headers


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "header", [("X-Nothing", ""), ("Range", "bytes=500-"), ("Range", "bytes=0-9,500-900000")]
)
def test_file_that_shrinks_is_never_padded(
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


def test_206_of_the_app_is_left_alone(root: Path) -> None:
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
    def test_temporary_file_has_no_ranges(self, query: str) -> None:
        """Its bytes may be others at the next request, and no validator would tell."""
        call = Call(files.app, f"/file?{query}", range="bytes=0-0", if_none_match="*")
        assert call.status == "200 OK"
        assert not call.headers.keys() & {"etag", "accept-ranges"}
        # With a validator of the app's own they are its promise, to those who ask by it.
        tagged = f"/file?{query}&etag=%22x%22"
        assert Call(files.app, tagged, range="bytes=0-0", if_range='"x"').content == CONTENT[:1]
        for headers in ({}, {"if_range": '"y"'}, {"if_range": files.DATE}):
            call = Call(files.app, f"{tagged}&date", range="bytes=0-0", **headers)
            assert (call.status, call.content) == ("200 OK", CONTENT)
            assert "accept-ranges" not in call.headers
        assert Call(files.app, tagged, if_none_match='"x"').status == "304 Not Modified"

    def test_accept_ranges_none_of_the_app_is_kept(self) -> None:
        call = Call(files.app, "/file?none", range="bytes=0-0")
        assert (call.status, call.headers["accept-ranges"]) == ("200 OK", "none")
        assert call.content == CONTENT

    @pytest.mark.parametrize("status", ["201 Created", "404 Not Found", "203 Transformed"])
    def test_other_status_than_200_is_left_alone(self, status: str) -> None:
        call = Call(files.app, f"/file?status={status}", range="bytes=0-0", if_none_match="*")
        assert call.status == status
        assert call.content == CONTENT

    def test_phrase_of_the_app_is_kept(self) -> None:
        assert Call(files.app, "/file?status=200 Here it is").status == "200 Here it is"

    def test_file_that_was_read_from_is_its_rest(self) -> None:
        call = Call(files.app, "/file?read", range="bytes=0-4,-5")
        rest = SIZE - 10
        assert f"Content-Range: bytes 0-4/{rest}\r\n".encode() in call.content
        assert CONTENT[10:15] in call.content
        assert CONTENT[-5:] in call.content

    def test_content_length_of_the_app_is_the_whole(self) -> None:
        call = Call(files.app, "/file?length=100", range="bytes=-5")
        assert call.headers["content-range"] == "bytes 95-99/100"
        assert call.content == CONTENT[95:100]

    def test_different_files_have_different_tags(self, root: Path) -> None:
        Path(root, "other").write_bytes(CONTENT)
        facts = os.stat(root / "file")
        os.utime(root / "other", ns=(facts.st_atime_ns, facts.st_mtime_ns))
        files.wait_until_old(root / "other")
        tags = [
            Call(files.app, target).headers["etag"]
            for target in ("/file", "/file?read", "/file?length=100", "/other")
        ]
        assert len(set(tags)) == 4
        assert Call(files.app, "/file").headers["etag"] == tags[0]

    def test_empty_file_has_preconditions(self, root: Path) -> None:
        files.write_old(root / "empty")
        whole = Call(files.app, "/empty")
        assert (whole.status, whole.headers["content-length"]) == ("200 OK", "0")
        etag = whole.headers["etag"]
        assert Call(files.app, "/empty", if_none_match=etag).status == "304 Not Modified"
        assert Call(files.app, "/empty", if_match='"x"').status == "412 Precondition Failed"
        assert Call(files.app, "/empty", range="bytes=0-").status == "200 OK"

    def test_options_switch_ranges_and_preconditions_off(self) -> None:
        for options, ranged, conditioned in (
            ({"ranges": False}, "200 OK", "304 Not Modified"),
            ({"conditional": False}, "206 Partial Content", "200 OK"),
            ({"ranges": False, "conditional": False}, "200 OK", "200 OK"),
        ):
            app = WSGIFast(files.raw, **options)  # type: ignore[arg-type]
            assert Call(app, "/file", range="bytes=0-0").status == ranged
            assert Call(app, "/file", if_none_match="*").status == conditioned


class Exports:
    """An app that makes a file for each answer, and names the content by a letter."""

    def __init__(self, folder: Path, make: Callable[[Path, bytes], Any]) -> None:
        self._folder, self._make = folder, make
        self.count = 0
        self.headers: list[tuple[str, str]] = [("Content-Type", "text/csv")]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        content = b"abcdefgh"[self.count : self.count + 1] * 1000
        self.count += 1
        start_response("200 OK", self.headers)
        return self._make(self._folder / "export.csv", content)


def _replaced(path: Path, content: bytes) -> Any:
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)
    return FileWrapper(path.open("rb"))


def _copied_with_its_time(path: Path, content: bytes) -> Any:
    files.write_old(path, content)
    return path.open("rb")


def _written_and_rewound(path: Path, content: bytes) -> Any:
    file = path.open("w+b")
    file.write(content)
    file.seek(0)
    return file


def _in_memory(path: Path, content: bytes) -> Any:
    fd = os.memfd_create("export")
    os.pwrite(fd, content, 0)
    return os.fdopen(fd, "rb")


def _unlinked(path: Path, content: bytes) -> Any:
    files.write_old(path, content)
    file = path.open("rb", buffering=0)
    path.unlink()
    return file


def _spooled(path: Path, content: bytes) -> Any:
    file = tempfile.SpooledTemporaryFile(max_size=1)
    file.write(content)
    file.seek(0)
    return file


def _kept_temporary(path: Path, content: bytes) -> Any:
    file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)
    file.write(content)
    file.seek(0)
    return FileWrapper(file)


@pytest.mark.parametrize(
    "make",
    [
        *(_replaced, _copied_with_its_time, _written_and_rewound, _in_memory, _unlinked),
        *(_spooled, _kept_temporary),
    ],
)
def test_file_made_for_one_answer_offers_no_parts(
    tmp_path: Path, make: Callable[[Path, bytes], Any]
) -> None:
    """A client that downloads in parts would put several of them together."""
    app = Exports(tmp_path, make)
    wrapped = WSGIFast(app)
    for method in ("HEAD", "GET"):
        whole = Call(wrapped, "/", method=method)
        assert not whole.headers.keys() & {"etag", "accept-ranges", "last-modified"}
        assert whole.headers["content-length"] == "1000"
    part = Call(wrapped, "/", range="bytes=5-9", if_none_match="*")
    assert (part.status, part.content) == ("200 OK", b"c" * 1000)
    # With an ETag of the app's own, to those alone who ask for a part of that one.
    app.headers.append(("ETag", '"d"'))
    assert Call(wrapped, "/", range="bytes=5-9").content == b"d" * 1000
    assert Call(wrapped, "/", range="bytes=5-9", if_range='"c"').content == b"e" * 1000
    part = Call(wrapped, "/", range="bytes=5-9", if_range='"d"')
    assert (part.status, part.content) == ("206 Partial Content", b"f" * 5)


def test_file_of_before_the_request_offers_parts(tmp_path: Path) -> None:
    path = tmp_path / "cached"

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if not path.exists():
            path.write_bytes(CONTENT)
        start_response("200 OK", [])
        return path.open("rb")

    assert "etag" not in Call(WSGIFast(app), "/").headers
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 50_000_000))
    files.wait_until_old(path)
    call = Call(WSGIFast(app), "/", range="bytes=0-4")
    assert (call.content, call.status) == (CONTENT[:5], "206 Partial Content")


def test_file_counts_as_made_for_an_answer_by_its_times(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        fd, second = file.fileno(), 10**9
        changed = os.fstat(fd).st_ctime_ns
        for modified, began, is_made in (
            (changed + 5 * second, changed + 5 * second, True),
            # The kernel's clock is behind by up to a tick.
            (changed + 5 * second + 1, changed + 5 * second + 9_000_000, True),
            (changed + 5 * second + 1, changed + 5 * second + 11_000_000, False),
            # So is a file system's with whole seconds.
            (changed // second * second, changed + second, True),
            (changed // second * second, changed + 4 * second, False),
            # Copied with its time.
            (5 * second, changed, True),
            # Put in place just before the request: no tick is allowed for.
            (5 * second, changed + 1, False),
            (5 * second, changed + 1 * second, False),
        ):
            os.utime(fd, ns=(0, modified))
            began += os.fstat(fd).st_ctime_ns - changed if modified == 5 * second else 0
            told = (modified - changed, began - changed)
            assert is_made_for_one_answer(file, fd, began) == is_made, told
        assert not is_made_for_one_answer(file, fd, None)


@pytest.mark.parametrize(
    "reopen",
    [
        lambda path: os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb"),
        lambda path: open(os.open(path, os.O_RDONLY), "rb", buffering=0),
        lambda path: io.FileIO(os.open(path, os.O_RDONLY)),
        lambda path: _by_path_of_descriptor(path, "/dev/fd/{}"),
        lambda path: _by_path_of_descriptor(path, "/proc/self/fd/{}"),
        lambda path: _by_path_of_descriptor(path, f"/proc/{os.getpid()}/fd/{{}}"),
        lambda path: io.FileIO(PathLike(path)),
        lambda path: open(path, "rb", opener=lambda name, flags: os.open(name, flags)),
    ],
)
def test_tag_does_not_depend_on_the_number_of_a_descriptor(
    tmp_path: Path, reopen: Callable[[Path], Any]
) -> None:
    path = tmp_path / "film.mp4"
    files.write_old(path, CONTENT)
    files.write_old(tmp_path / "other", CONTENT)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        return reopen(path if environ["PATH_INFO"] == "/" else tmp_path / "other")

    first = Call(WSGIFast(app), "/")
    with open(os.devnull), open(os.devnull):  # which take the first one's number
        second = Call(WSGIFast(app), "/", if_none_match=first.headers["etag"])
        part = Call(WSGIFast(app), "/", range="bytes=5-9", if_range=first.headers["etag"])
    assert second.status == "304 Not Modified"
    assert part.content == CONTENT[5:10]
    assert Call(WSGIFast(app), "/other").headers["etag"] != first.headers["etag"]


class PathLike:
    """Its repr() is another one each time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def _by_path_of_descriptor(path: Path, name: str) -> Any:
    fd = os.open(path, os.O_RDONLY)
    try:
        return open(name.format(fd), "rb")
    finally:
        os.close(fd)


@pytest.mark.parametrize("range_", ["", "bytes=5-9"])
@pytest.mark.parametrize("condition", ["if_match", "if_none_match", "if_range"])
def test_tag_without_quotes_is_left_to_bottle(root: Path, condition: str, range_: str) -> None:
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
