"""Ranges and preconditions for an app that supports neither, in this process."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import bottle
import pytest

from tests.files.conftest import CONTENT
from tests.static.calls import Answered, call_with, environ_of
from tests.support import files
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.bodies.files import FileSlice, SegmentedBody
from wsgifast.files.app_files import _CHANGE_TICK_NS, _change_tick_ns, is_made_for_one_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

SIZE = len(CONTENT)


def ask(app: Any, target: str, *, method: str = "GET", **headers: str) -> Answered:
    path, _, query = target.partition("?")
    return call_with(app, {**environ_of(path, method, **headers), "QUERY_STRING": query})


@pytest.fixture
def served(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROOT", str(root))


@pytest.mark.usefixtures("served")
class TestInProcess:
    def test_file_is_sent_as_file_segments_or_nothing(self) -> None:
        one = ask(files.app, "/file", range="bytes=1-2")
        assert one.environ["wsgifast.sent_as"] == "file"
        assert isinstance(one.iterable, FileWrapper)
        assert isinstance(one.iterable.filelike, FileSlice)
        several = ask(files.app, "/file", range="bytes=1-2,5-6")
        assert several.environ["wsgifast.sent_as"] == "segments"
        assert isinstance(several.iterable, SegmentedBody)
        assert ask(files.app, "/file", if_none_match="*").environ["wsgifast.sent_as"] == "no-body"

    @pytest.mark.parametrize("query", ["temporary", "named"])
    def test_temporary_file_has_no_ranges(self, query: str) -> None:
        """The next request may find other bytes, and no validator would tell."""
        call = ask(files.app, f"/file?{query}", range="bytes=0-0", if_none_match="*")
        assert call.line == "200 OK"
        assert not call.headers.keys() & {"etag", "accept-ranges"}
        # With a validator of the app's own, parts are the app's promise to clients that send it.
        tagged = f"/file?{query}&etag=%22x%22"
        assert ask(files.app, tagged, range="bytes=0-0", if_range='"x"').body == CONTENT[:1]
        for headers in ({}, {"if_range": '"y"'}, {"if_range": files.DATE}):
            call = ask(files.app, f"{tagged}&date", range="bytes=0-0", **headers)
            assert (call.line, call.body) == ("200 OK", CONTENT)
            assert "accept-ranges" not in call.headers
        assert ask(files.app, tagged, if_none_match='"x"').line == "304 Not Modified"

    def test_accept_ranges_none_of_the_app_stays(self) -> None:
        call = ask(files.app, "/file?none", range="bytes=0-0")
        assert (call.line, call.headers["accept-ranges"]) == ("200 OK", "none")
        assert call.body == CONTENT

    @pytest.mark.parametrize("status", ["201 Created", "404 Not Found", "203 Transformed"])
    def test_other_status_than_200_is_left_alone(self, status: str) -> None:
        call = ask(files.app, f"/file?status={status}", range="bytes=0-0", if_none_match="*")
        assert call.line == status
        assert call.body == CONTENT

    def test_phrase_of_the_app_stays(self) -> None:
        assert ask(files.app, "/file?status=200 Here it is").line == "200 Here it is"

    def test_file_that_was_read_from_is_its_rest(self) -> None:
        call = ask(files.app, "/file?read", range="bytes=0-4,-5")
        rest = SIZE - 10
        assert f"Content-Range: bytes 0-4/{rest}\r\n".encode() in call.body
        assert CONTENT[10:15] in call.body
        assert CONTENT[-5:] in call.body

    def test_content_length_of_the_app_is_the_whole(self) -> None:
        call = ask(files.app, "/file?length=100", range="bytes=-5")
        assert call.headers["content-range"] == "bytes 95-99/100"
        assert call.body == CONTENT[95:100]

    def test_different_files_have_different_tags(self, root: Path) -> None:
        Path(root, "other").write_bytes(CONTENT)
        stat_result = os.stat(root / "file")
        os.utime(root / "other", ns=(stat_result.st_atime_ns, stat_result.st_mtime_ns))
        files.wait_until_old(root / "other")
        tags = [
            ask(files.app, target).headers["etag"]
            for target in ("/file", "/file?read", "/file?length=100", "/other")
        ]
        assert len(set(tags)) == 4
        assert ask(files.app, "/file").headers["etag"] == tags[0]

    def test_empty_file_has_preconditions(self, root: Path) -> None:
        files.write_old(root / "empty")
        whole = ask(files.app, "/empty")
        assert (whole.line, whole.headers["content-length"]) == ("200 OK", "0")
        etag = whole.headers["etag"]
        assert ask(files.app, "/empty", if_none_match=etag).line == "304 Not Modified"
        assert ask(files.app, "/empty", if_match='"x"').line == "412 Precondition Failed"
        assert ask(files.app, "/empty", range="bytes=0-").line == "200 OK"

    def test_options_switch_ranges_and_preconditions_off(self) -> None:
        for options, ranged, conditioned in (
            ({"ranges": False}, "200 OK", "304 Not Modified"),
            ({"conditional": False}, "206 Partial Content", "200 OK"),
            ({"ranges": False, "conditional": False}, "200 OK", "200 OK"),
        ):
            app = WSGIFast(files.raw, **options)  # type: ignore[arg-type]
            assert ask(app, "/file", range="bytes=0-0").line == ranged
            assert ask(app, "/file", if_none_match="*").line == conditioned


class Exports:
    """An app that makes a file for each response, and names the content by a letter."""

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


def _open_temporary(path: Path, content: bytes) -> Any:
    file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)
    file.write(content)
    file.seek(0)
    return FileWrapper(file)


@pytest.mark.parametrize(
    "make",
    [
        *(_replaced, _copied_with_its_time, _written_and_rewound, _in_memory, _unlinked),
        *(_spooled, _open_temporary),
    ],
)
def test_file_made_for_one_response_offers_no_parts(
    tmp_path: Path, make: Callable[[Path, bytes], Any]
) -> None:
    """A client that downloads in parts would join parts of several contents."""
    app = Exports(tmp_path, make)
    wrapped = WSGIFast(app)
    for method in ("HEAD", "GET"):
        whole = ask(wrapped, "/", method=method)
        assert not whole.headers.keys() & {"etag", "accept-ranges", "last-modified"}
        assert whole.headers["content-length"] == "1000"
    part = ask(wrapped, "/", range="bytes=5-9", if_none_match="*")
    assert (part.line, part.body) == ("200 OK", b"c" * 1000)
    # With an ETag of the app's own, only clients that request a part of that ETag's content get
    # one.
    app.headers.append(("ETag", '"d"'))
    assert ask(wrapped, "/", range="bytes=5-9").body == b"d" * 1000
    assert ask(wrapped, "/", range="bytes=5-9", if_range='"c"').body == b"e" * 1000
    part = ask(wrapped, "/", range="bytes=5-9", if_range='"d"')
    assert (part.line, part.body) == ("206 Partial Content", b"f" * 5)


def test_file_of_before_the_request_offers_parts(tmp_path: Path) -> None:
    path = tmp_path / "cached"

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if not path.exists():
            path.write_bytes(CONTENT)
        start_response("200 OK", [])
        return path.open("rb")

    assert "etag" not in ask(WSGIFast(app), "/").headers
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 50_000_000))
    files.wait_until_old(path)
    call = ask(WSGIFast(app), "/", range="bytes=0-4")
    assert (call.body, call.line) == (CONTENT[:5], "206 Partial Content")


def test_file_counts_as_made_for_response_by_its_times(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        fd, second = file.fileno(), 10**9
        changed = os.fstat(fd).st_ctime_ns
        for modified, began, is_made in (
            (changed + 5 * second, changed + 5 * second, True),
            # The kernel's clock is behind by up to a tick.
            (changed + 5 * second + 1, changed + 5 * second + 9_000_000, True),
            (changed + 5 * second + 1, changed + 5 * second + 11_000_000, False),
            # The time of a file system with whole seconds is behind, too.
            (changed // second * second, changed + second, True),
            (changed // second * second, changed + 4 * second, False),
            # Copied with its time.
            (5 * second, changed, True),
            # Replaced just before the request, if the kernel's change times are exact.
            (5 * second, changed + 9_000_000, bool(_CHANGE_TICK_NS)),
            # Replaced more than a tick before the request.
            (5 * second, changed + 11_000_000, False),
            (5 * second, changed + 1 * second, False),
        ):
            os.utime(fd, ns=(0, modified))
            began += os.fstat(fd).st_ctime_ns - changed if modified == 5 * second else 0
            details = (modified - changed, began - changed)
            now = max(began, changed) + 1
            assert is_made_for_one_response(file, fd, began, now) == is_made, details
        assert not is_made_for_one_response(file, fd, None)


@pytest.mark.parametrize(
    ("system", "release", "is_exact"),
    [
        ("Linux", "6.13.0-generic", True),
        ("Linux", "7.0", True),
        ("Linux", "6.12.90", False),
        ("Linux", "unknown", False),
        ("Darwin", "24.1.0", False),
    ],
)
def test_change_times_are_exact_on_new_kernels(system: str, release: str, is_exact: bool) -> None:
    assert (_change_tick_ns(system, release) == 0) is is_exact


@pytest.mark.parametrize("ahead_s", [60, 86_400, 20 * 365 * 86_400])
def test_file_ahead_of_the_clock_is_not_made_now(tmp_path: Path, ahead_s: int) -> None:
    with open(tmp_path / "file", "wb") as file:
        fd = file.fileno()
        changed = os.fstat(fd).st_ctime_ns
        os.utime(fd, ns=(0, changed + ahead_s * 10**9))
        began = os.fstat(fd).st_ctime_ns + 11_000_000  # more than a tick later
        assert not is_made_for_one_response(file, fd, began)
        # An inode that was changed before the clock was set back.
        assert not is_made_for_one_response(file, fd, began - ahead_s * 10**9, began - 10 * 10**9)


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
def test_tag_is_independent_of_descriptor_number(
    tmp_path: Path, reopen: Callable[[Path], Any]
) -> None:
    path = tmp_path / "film.mp4"
    files.write_old(path, CONTENT)
    files.write_old(tmp_path / "other", CONTENT)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        return reopen(path if environ["PATH_INFO"] == "/" else tmp_path / "other")

    first = ask(WSGIFast(app), "/")
    with open(os.devnull), open(os.devnull):  # these files get the number of the first one
        second = ask(WSGIFast(app), "/", if_none_match=first.headers["etag"])
        part = ask(WSGIFast(app), "/", range="bytes=5-9", if_range=first.headers["etag"])
    assert second.line == "304 Not Modified"
    assert part.body == CONTENT[5:10]
    assert ask(WSGIFast(app), "/other").headers["etag"] != first.headers["etag"]


class PathLike:
    """A response whose repr() is different each time."""

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
    tag = ask(WSGIFast(app), "/file").headers["etag"]
    assert '"' not in tag
    for sent in (tag, f'"{tag}"', f'W/"{tag}"', f'"other", "{tag}"', '"other"', "*"):
        headers = {condition: sent, "range": range_}
        alone, wrapped = (ask(side, "/file", **headers) for side in (app, WSGIFast(app)))
        assert wrapped.line == alone.line, headers
        assert wrapped.body == alone.body, headers
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
def test_wrong_switches_for_files_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WSGIFast(files.raw, **options)
