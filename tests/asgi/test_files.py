"""Files by their paths through ASGIFast: the messages that each kind of server receives."""

from __future__ import annotations

import errno
import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast, FileResponse
from asgifast.messages import PATHSEND, ZEROCOPYSEND, Message, Scope

from wsgifast import BodyError
from wsgifast.files import ByteRange
from wsgifast.sockets.sending import FileTruncated

from .support import (
    DATA,
    END,
    START,
    app_of,
    bytes_of,
    call,
    noting,
    offering,
    pathsend,
    raising,
    scope_of,
    sending,
    start_message,
    zerocopy,
)

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.mark.parametrize("status", [203, 404])
def test_file_behind_another_status_is_sent_as_it_is(path: str, status: int) -> None:
    app = app_of(start_message((b"content-length", b"5"), status=status), pathsend(path))
    response = call(app, scope_of(range="bytes=0-1", if_none_match="*"))
    assert (response.status, response.body) == (status, DATA[:5])
    assert response.headers == [("content-length", "5")]
    assert call(app, offering(PATHSEND)).types == ["http.response.start", PATHSEND]


@pytest.mark.parametrize("status", [200, 203])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("extensions", [(), (PATHSEND,)])
def test_missing_file_leaves_the_headers_to_the_server(
    path: str, status: int, ranges: bool, extensions: tuple[str, ...]
) -> None:
    """A server with pathsend would send the headers before it opens the file."""
    sent: list[Message] = []
    app = app_of(
        start_message(status=status), pathsend(path + "x"), ranges=ranges, conditional=ranges
    )
    with pytest.raises(FileNotFoundError):
        call(app, offering(*extensions), on_send=sent.append)
    assert not sent


def test_file_without_headers_is_refused_by_the_server(path: str) -> None:
    response = call(app_of(pathsend(path)), offering(PATHSEND), whole=False)
    assert response.types == [PATHSEND]


def test_post_has_no_ranges(path: str) -> None:
    response = call(app_of(START, pathsend(path)), scope_of(method="POST", range="bytes=0-1"))
    assert (response.status, response.headers, response.body) == (200, [], DATA)


@pytest.mark.parametrize("extensions", [(), (PATHSEND,), (PATHSEND, ZEROCOPYSEND)])
def test_head_sends_no_byte_of_a_file(path: str, extensions: tuple[str, ...]) -> None:
    part = {**pathsend(path), "offset": 5, "count": 7}
    with open(path, "rb") as file:
        descriptors = zerocopy(file, count=3, more_body=True), zerocopy(file, count=4)
        for messages in ((pathsend(path),), (part,), descriptors):
            response = call(app_of(START, *messages), offering(*extensions, method="HEAD"))
            assert response.body == b""
            assert response.types == ["http.response.start", "http.response.body"]
    other = app_of(start_message(status=203), pathsend(path))
    assert call(other, offering(*extensions, method="HEAD")).body == b""


def test_app_that_knows_ranges_is_not_corrected(path: str) -> None:
    headers = ((b"ETag", b'"x"'), (b"Accept-Ranges", b"bytes"))
    app = app_of(start_message(*headers), pathsend(path))
    assert call(app, scope_of()).messages[0]["headers"] == list(headers)
    part = call(app, scope_of(range="bytes=1-2"))
    assert (part.status, part.body, dict(part.headers)["etag"]) == (206, DATA[1:3], '"x"')
    assert call(app, scope_of(if_none_match='"x"')).status == 304


def test_condition_in_several_lines_is_one(path: str) -> None:
    app = app_of(start_message((b"etag", b'"x"')), pathsend(path))
    lines = [(b"if-none-match", tag) for tag in (b'"w"', b'"x"', b'"y"')]
    assert call(app, {**scope_of(), "headers": lines}).status == 304
    assert call(app, {**scope_of(), "headers": [lines[0], lines[2]]}).status == 200


@pytest.mark.parametrize("name", ["if_match", "if_none_match", "if_range"])
@pytest.mark.parametrize("sent", ["x", '"x"', '"y"'])
def test_tag_without_quotes_is_not_compared(path: str, name: str, sent: str) -> None:
    app = app_of(start_message((b"etag", b"x")), pathsend(path))
    conditions: dict[str, Any] = {name: sent}
    response = call(app, scope_of(range="bytes=1-2", **conditions))
    assert (response.status, response.body, dict(response.headers)["etag"]) == (200, DATA, "x")


def test_missing_etag_and_accept_ranges_are_added(path: str) -> None:
    with_etag = dict(
        call(app_of(start_message((b"etag", b'"x"')), pathsend(path)), scope_of()).headers
    )
    assert with_etag["accept-ranges"] == "bytes"
    with_ranges = call(
        app_of(start_message((b"accept-ranges", b"bytes")), pathsend(path)), scope_of()
    )
    assert "etag" in dict(with_ranges.headers)


def test_apps_own_part_is_sent_as_it_is(path: str) -> None:
    app = app_of(
        start_message((b"content-range", b"bytes 0-9/10"), (b"content-length", b"10")),
        pathsend(path),
    )
    response = call(app, scope_of(range="bytes=0-1"))
    assert (response.status, response.body) == (200, DATA[:10])


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length"])
def test_file_is_cut_at_its_declared_length(path: str, name: bytes) -> None:
    app = app_of(start_message((name, b"5")), pathsend(path))
    assert call(app, scope_of()).body == DATA[:5]
    part = call(app, scope_of(range="bytes=-2"))
    assert (part.body, dict(part.headers)["content-range"]) == (DATA[3:5], "bytes 3-4/5")


@pytest.mark.parametrize("length", [b"+5", b"5_0", b"\xb2", b""])
def test_malformed_length_is_left_to_the_server(path: str, length: bytes) -> None:
    app = app_of(start_message((b"content-length", length), status=203), pathsend(path))
    assert call(app, scope_of()).body == DATA


def test_headers_of_any_iterable_are_read(path: str) -> None:
    start: Message = {**START, "headers": iter([(b"content-length", b"5")])}
    response = call(app_of(start, pathsend(path)), scope_of())
    assert dict(response.headers)["content-length"] == "5"
    assert response.body == DATA[:5]


@pytest.mark.parametrize("extensions", [(), (ZEROCOPYSEND,), (PATHSEND,), (PATHSEND, ZEROCOPYSEND)])
def test_empty_file_is_one_empty_body(tmp_path: Path, extensions: tuple[str, ...]) -> None:
    (tmp_path / "empty").touch()
    for app in (
        app_of(START, pathsend(str(tmp_path / "empty"))),
        app_of(start_message(status=203), pathsend(str(tmp_path / "empty"))),
        FileResponse(tmp_path / "empty"),
    ):
        response = call(app, offering(*extensions))
        assert response.body == b""
        assert ZEROCOPYSEND not in response.types


def test_server_that_fails_leaves_no_descriptor(path: str) -> None:
    for app in (
        app_of(START, pathsend(path)),
        app_of(start_message(status=203), pathsend(path)),
        FileResponse(path),
    ):
        with pytest.raises(OSError, match="gone"):
            call(app, scope_of(), on_send=raising(OSError, "gone"))


@pytest.mark.parametrize("ranges", [[(2, 4)], [(1, 2), (9, 12)]])
def test_ranges_are_sent_by_descriptor(path: str, ranges: list[tuple[int, int]]) -> None:
    """The helper `call` checks the order of the messages.

    This test checks the bytes of each part.
    """
    parts: list[bytes] = []

    def read(message: Message) -> None:
        if message["type"] == ZEROCOPYSEND:
            parts.append(bytes_of(message))

    app = app_of(START, pathsend(path))
    requested = "bytes=" + ",".join(f"{first}-{last}" for first, last in ranges)
    scope = offering(PATHSEND, ZEROCOPYSEND, range=requested)
    assert call(app, scope, on_send=read).status == 206
    assert parts == [DATA[first : last + 1] for first, last in ranges]


@pytest.mark.parametrize("extensions", [(), (PATHSEND, ZEROCOPYSEND)])
@pytest.mark.parametrize("depth", [1, 2])
def test_file_response_in_asgifast_answers_its_range(
    path: str, extensions: tuple[str, ...], depth: int
) -> None:
    parts: list[bytes] = []

    def read(message: Message) -> None:
        assert message["type"] != PATHSEND, "it would be the whole file"
        parts.append(bytes_of(message))

    app: Any = FileResponse(path)
    for _ in range(depth):
        app = ASGIFast(app)
    assert call(app, offering(*extensions, range="bytes=5-9"), on_send=read).status == 206
    assert b"".join(parts) == DATA[5:10]


def with_files(scope: Scope) -> Scope:
    """Return a request to a server that sends open files."""
    scope["extensions"][PATHSEND] = {"ranges": True, "files": True}
    return scope


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_open_file_may_be_sent_after_its_sender(path: str, depth: int) -> None:
    """Starlette's BaseHTTPMiddleware passes messages on through a queue."""
    app: Any = FileResponse(path)
    for _ in range(depth):
        app = ASGIFast(app, pathsend=True)
    response = call(app, with_files(offering(PATHSEND, ZEROCOPYSEND, range="bytes=5-9")))
    assert response.types == ["http.response.start", PATHSEND]
    message = response.messages[1]
    with message["file"] as file:
        [part] = message["parts"]
        assert os.pread(file.fileno(), part.size, part.offset) == DATA[5:10]


@pytest.mark.parametrize("extensions", [(), (ZEROCOPYSEND,), (PATHSEND,)])
def test_open_file_is_closed_by_whoever_sends_it(path: str, extensions: tuple[str, ...]) -> None:
    def opened() -> Message:
        parts = [b"<", ByteRange(5, 3), b">"]
        return {**pathsend("/nowhere"), "file": io.FileIO(path), "parts": parts}

    parts: list[bytes] = []

    def read(message: Message) -> None:
        parts.append(bytes_of(message))

    def fail(message: Message) -> None:
        if message["type"] != "http.response.start":
            raise OSError("gone")

    message = opened()
    call(app_of(START, message), offering(*extensions), on_send=read)
    assert b"".join(parts) == b"<" + DATA[5:8] + b">"
    assert message["file"].closed
    message = opened()
    with pytest.raises(OSError, match="gone"):
        call(app_of(START, message), offering(*extensions), on_send=fail)
    assert message["file"].closed


@pytest.mark.parametrize(
    "error",
    [BlockingIOError(errno.EAGAIN, "cold"), OSError(errno.EOPNOTSUPP, "no such flag")],
    ids=["cold", "unsupported"],
)
def test_file_not_in_memory_is_read_in_a_thread(
    tmp_path: Path, error: OSError, blocking_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "file").write_bytes(data)
    preadv = os.preadv

    def in_memory_at_first(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and offset:
            raise error
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", in_memory_at_first)
    assert call(app_of(START, pathsend(str(tmp_path / "file"))), scope_of()).body == data
    assert not blocking_calls


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_path_of_no_regular_file_is_refused(tmp_path: Path, make: Any) -> None:
    """The FIFO has no writer, and opening the FIFO must not wait for one."""
    make(tmp_path / "none")
    with pytest.raises(OSError, match="not a regular file"):
        call(app_of(START, pathsend(str(tmp_path / "none"))), scope_of())


def test_error_of_the_disk_reaches_the_app(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", raising(OSError, errno.EIO, "the disk is broken"))
    with pytest.raises(OSError, match="is broken"):
        call(app_of(START, pathsend(path)), scope_of())


# pathsend of a range of bytes


RANGES: Scope = {**scope_of(), "extensions": {PATHSEND: {"ranges": True}}}


def with_range(scope: Scope, value: str) -> Scope:
    return {**scope, "headers": [(b"range", value.encode())]}


def test_app_is_offered_parts_by_path(path: str) -> None:
    offered: list[Any] = []
    app = ASGIFast(noting(offered, "extensions", sending(START, END)), pathsend=True)
    for scope in (scope_of(), offering(PATHSEND), RANGES):
        call(app, scope)
    assert [each[PATHSEND] for each in offered] == [{"ranges": True, "files": True}] * 3


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"offset": 5, "count": 7}, DATA[5:12]),
        ({"offset": 1000}, DATA[1000:]),
        ({"count": 3}, DATA[:3]),
        ({"offset": len(DATA)}, b""),
        ({"offset": 0, "count": 0}, b""),
    ],
)
@pytest.mark.parametrize("status", [200, 206])
def test_part_by_path_is_the_same_on_every_server(
    path: str, run: dict[str, int], expected: bytes, status: int
) -> None:
    length = (b"content-length", b"%d" % len(expected))
    app = app_of(start_message(length, status=status), {**pathsend(path), **run})
    read: list[bytes] = []

    def note(message: Message) -> None:
        read.append(bytes_of(message))

    for scope in (scope_of(range="bytes=0-1"), offering(PATHSEND), offering(ZEROCOPYSEND)):
        read.clear()
        response = call(app, scope, on_send=note)
        assert (response.status, b"".join(read)) == (status, expected)
        assert response.headers == [("content-length", str(len(expected)))]
    [_, message] = call(app, RANGES).messages
    offset = run.get("offset", 0)
    count = message.get("count")
    end = len(DATA) if count is None else offset + count
    assert (message["type"], message["path"]) == (PATHSEND, path)
    assert DATA[message.get("offset", 0) : end] == expected


def test_part_by_path_is_cut_at_its_declared_length(path: str) -> None:
    app = app_of(
        start_message((b"content-length", b"3")), {**pathsend(path), "offset": 5, "count": 7}
    )
    assert call(app, scope_of()).body == DATA[5:8]


@pytest.mark.parametrize("run", [{"offset": -1}, {"count": -1}, {"offset": "5"}])
def test_invalid_offset_or_count_of_a_path_is_refused(path: str, run: dict[str, Any]) -> None:
    [(name, value)] = run.items()
    with pytest.raises(BodyError, match=f"{name} is a number of bytes, not {value!r}"):
        call(app_of(START, {**pathsend(path), **run}), RANGES)


@pytest.mark.parametrize("kind", ["response", "response inside", "middleware"])
def test_range_is_a_part_by_path_if_possible(path: str, kind: str) -> None:
    response: Any = FileResponse(path)
    app = {
        "response": response,
        "response inside": ASGIFast(response),
        "middleware": app_of(start_message((b"content-length", b"%d" % len(DATA))), pathsend(path)),
    }[kind]
    [start, message] = call(app, with_range(RANGES, "bytes=5-9")).messages
    assert start["status"] == 206
    assert message == {"type": PATHSEND, "path": path, "offset": 5, "count": 5}
    several = call(app, with_range(RANGES, "bytes=5-9,20-29"))
    assert (several.status, set(several.types[1:])) == (206, {"http.response.body"})
    without = call(app, with_range(offering(PATHSEND), "bytes=5-9"))
    assert (without.types[1:], without.body) == (["http.response.body"], DATA[5:10])


# Descriptors


def test_server_of_descriptors_gets_offset_and_count(path: str) -> None:
    """A server may require a file object, and need not change its position."""
    for opened in (open(path, "rb"), os.open(path, os.O_RDONLY)):
        app = app_of(START, zerocopy(opened, count=3, more_body=True), zerocopy(opened, count=4))
        _, first, second = call(app, offering(ZEROCOPYSEND)).messages
        assert (first["offset"], first["count"], first["more_body"]) == (0, 3, True)
        assert (second["offset"], second["count"], second["more_body"]) == (3, 4, False)
        if isinstance(opened, int):
            assert first["file"].fileno() == opened
            assert os.lseek(opened, 0, os.SEEK_CUR) == 7
            os.close(opened)
        else:
            with opened:
                assert first["file"].fileno() == opened.fileno()
                assert opened.tell() == 7


def test_server_of_ours_gets_the_message_unchanged(path: str) -> None:
    with open(path, "rb") as file:
        message = zerocopy(file, count=3)
        scope = with_files(offering(PATHSEND, ZEROCOPYSEND))
        assert call(app_of(START, message), scope).messages[1] is message
        assert file.tell() == 0, "the server moves it"


def test_descriptor_moves_on_where_no_offset_is_given(path: str) -> None:
    with open(path, "rb") as file:
        file.seek(2)
        messages = (
            zerocopy(file, count=3, more_body=True),
            zerocopy(file, count=0, more_body=True),
            zerocopy(file, count=4, offset=100, more_body=True),
            zerocopy(file, more_body=True),
        )
        response = call(app_of(START, *messages, END), scope_of())
        assert response.body == DATA[2:5] + DATA[100:104] + DATA[5:] + b"."
        assert file.tell() == len(DATA)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.lseek(fd, 7, os.SEEK_SET)
        response = call(app_of(START, zerocopy(fd, count=3, more_body=True), END), scope_of())
        assert response.body == DATA[7:10] + b"."
        assert os.lseek(fd, 0, os.SEEK_CUR) == 10
        call(app_of(START, zerocopy(fd, count=3, offset=50)), scope_of())
        assert os.lseek(fd, 0, os.SEEK_CUR) == 10
    finally:
        os.close(fd)


def test_offset_behind_the_end_sends_nothing(path: str) -> None:
    with open(path, "rb") as file:
        assert call(app_of(START, zerocopy(file, offset=5000)), scope_of()).body == b""


def test_count_beyond_the_end_of_a_descriptor_raises(path: str) -> None:
    sent: list[Message] = []
    with open(path, "rb") as file:
        app = app_of(START, zerocopy(file, offset=0, count=len(DATA) + 1))
        with pytest.raises(FileTruncated, match="1 of 1025 bytes"):
            call(app, scope_of(), on_send=sent.append)
    assert sent[-1]["more_body"], "the body must not look complete"


@pytest.mark.parametrize("option", ["offset", "count"])
@pytest.mark.parametrize("value", [-1, "1", 1.5])
def test_invalid_offset_or_count_is_refused(path: str, option: str, value: object) -> None:
    with open(path, "rb") as file, pytest.raises(BodyError, match=f"{option} is a number of bytes"):
        call(app_of(START, zerocopy(file, **{option: value})), scope_of())


@pytest.mark.parametrize("file", [io.BytesIO(DATA), object(), None])
def test_file_without_a_descriptor_is_refused(file: object) -> None:
    with pytest.raises(BodyError, match="needs a file with a descriptor"):
        call(app_of(START, zerocopy(file)), scope_of())


def test_file_object_of_other_bytes_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "f.gz", "wb") as packed:
        packed.write(DATA)
    with (
        gzip.open(tmp_path / "f.gz", "rb") as file,
        pytest.raises(BodyError, match="other bytes than the file object"),
    ):
        call(app_of(START, zerocopy(file)), scope_of())


def test_pipe_is_refused() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(BodyError, match="needs a regular file, not a pipe"):
            call(app_of(START, zerocopy(reader)), scope_of())
    finally:
        os.close(reader)
        os.close(writer)
