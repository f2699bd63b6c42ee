"""One behaviour on every server: with ASGIFast, and without it under our protocols."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtests.payloads import FILE_BYTES, MIB, payload, payload_file
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for

from .app import crumbs
from .frameworks import FRAMEWORKS
from .servers import BARE, SERVERS, asgi_server

pytestmark = pytest.mark.long
each = pytest.mark.parametrize("server", sorted(SERVERS), indirect=True)
each_and_bare = pytest.mark.parametrize("server", [*sorted(SERVERS), *BARE], indirect=True)


@each_and_bare
def test_whole_body_arrives_with_its_length(server: LiveServer) -> None:
    response = server.get("/hello")
    assert (response.status, response.body) == (200, b"hello")
    assert response.header("content-length") == "5"


@each_and_bare
def test_crumbs_keep_their_order(server: LiveServer) -> None:
    expected = b"".join(crumbs())
    assert server.get("/crumbs").body == expected + b"end"
    assert server.get("/sized_crumbs").body == expected


@each_and_bare
def test_messages_of_all_sizes_arrive(server: LiveServer) -> None:
    assert server.get("/large").body == b"L" * 3_000_000
    assert server.get("/mixed").body == b"m" * 170_018 + b"!"


@each_and_bare
def test_message_leaves_while_the_app_waits(
    server: LiveServer, files: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with Connection(server.address) as connection:
        connection.send_request(f"/slow_crumbs?file={go}")
        start_message = connection.read_headers()
        assert start_message.status == 200
        assert connection.read(len(b"6\r\nbefore\r\n")) == b"6\r\nbefore\r\n"
        go.touch()
        assert connection.read(len(b"5\r\nafter\r\n")) == b"5\r\nafter\r\n"


@each_and_bare
def test_headers_of_a_stream_leave_before_its_body(
    server: LiveServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    go = tmp_path / "go"
    if "gunicorn-asgi" in request.node.name or "daphne" in request.node.name:
        go.touch()  # these servers do not send headers alone
    with Connection(server.address) as connection:
        connection.send_request(f"/late?file={go}")
        assert connection.read_headers().status == 200
        go.touch()
        assert connection.read_to_end_of_chunks() == b"late"


@each_and_bare
def test_files_of_every_size_arrive(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        for file in sorted(files.iterdir()):
            response = connection.request(f"/pathsend?file={file.name}")
            assert response.body == file.read_bytes(), file.name
            assert response.header("content-length") == str(file.stat().st_size)
        large = (files / "large").read_bytes()
        assert connection.request("/pathsend?chunked=1").body == large
        assert connection.request("/pathsend?relative=1").body == large


@each_and_bare
def test_descriptors_between_messages_arrive_in_order(server: LiveServer, files: Path) -> None:
    data = (files / "large").read_bytes()
    expected = b"<1>" + data[500:201_500] + b"</1>"
    assert server.get("/zerocopy").body == expected
    assert server.get("/zerocopy?chunked=1").body == expected
    assert server.get("/zerocopy_fd").body == data[-100_000:]


@each_and_bare
def test_parts_of_a_file_by_its_path_arrive(server: LiveServer, files: Path) -> None:
    data = (files / "large").read_bytes()
    with Connection(server.address) as connection:
        for offset, count in ((0, 70_000), (5, 10), (100_000, 3_000_000), (len(data), 0)):
            target = f"/pathsend?offset={offset}&count={count}&declared={count}"
            assert connection.request(target).body == data[offset : offset + count], target
        target = f"/pathsend?offset=1000000&declared={len(data) - 1_000_000}"
        assert connection.request(target).body == data[1_000_000:]
        assert connection.request(target, method="HEAD").body == b""
        assert connection.request("/pathsend?offset=1000000&chunked=1").body == data[1_000_000:]
        assert connection.request("/hello").body == b"hello", "the next answer is not poisoned"


@each_and_bare
def test_head_of_a_file_has_its_length_and_no_body(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        response = connection.request("/pathsend", method="HEAD")
        assert (response.status, response.body) == (200, b"")
        assert response.header("content-length") == str((files / "large").stat().st_size)
        assert connection.request("/hello").body == b"hello", "the next answer is not poisoned"


@each
def test_range_unknown_to_the_app_is_answered(server: LiveServer, files: Path) -> None:
    data = (files / "large").read_bytes()
    size = len(data)
    with Connection(server.address) as connection:

        def ask(value: str, *more: tuple[str, str]) -> tuple[int, bytes, str | None]:
            response = connection.request("/pathsend", headers=[("Range", value), *more])
            return response.status, response.body, response.header("content-range")

        assert ask("bytes=0-0") == (206, data[:1], f"bytes 0-0/{size}")
        assert ask("bytes=1000000-2999999") == (
            206,
            data[1_000_000:3_000_000],
            f"bytes 1000000-2999999/{size}",
        )
        assert ask("bytes=-500") == (206, data[-500:], f"bytes {size - 500}-{size - 1}/{size}")
        assert ask(f"bytes={size}-") == (416, b"", f"bytes */{size}")
        assert ask("lines=1-2") == (200, data, None)
        assert ask("bytes=0-4", ("If-Range", '"other"')) == (200, data, None)


@each
def test_several_ranges_are_answered_multipart(server: LiveServer, files: Path) -> None:
    data = (files / "large").read_bytes()
    headers = [("Range", "bytes=5-9,100000-299999")]
    response = server.get("/pathsend?type=text/plain", headers=headers)
    assert response.status == 206
    content_type = response.header("content-type") or ""
    assert content_type.startswith("multipart/byteranges; boundary=")
    boundary = content_type.partition("boundary=")[2].encode()
    _, first, second, end = response.body.split(b"--" + boundary)
    assert first.partition(b"\r\n\r\n")[2] == data[5:10] + b"\r\n"
    assert second.partition(b"\r\n\r\n")[2] == data[100_000:300_000] + b"\r\n"
    assert b"Content-Type: text/plain" in first
    assert end.strip() == b"--"


@each_and_bare
@pytest.mark.parametrize(
    "stack", ["fast", "base", "base-fast", "gzip", "gzip-fast", "fast-base-gzip"]
)
def test_files_arrive_through_middleware(server: LiveServer, files: Path, stack: str) -> None:
    """Files are equal whole and in parts, through a stack of tests.asgi.stacks."""
    data = (files / "large").read_bytes()
    with Connection(server.address) as connection:
        for way in ("file", "relative", "ours", "static"):
            target = f"/stack/{stack}/{way}/large"
            assert connection.request(target).body == data, target
            assert connection.request(target, method="HEAD").body == b"", target
            part = connection.request(target, headers=[("Range", "bytes=100000-399999")])
            assert (part.status, part.body) == (206, data[100_000:400_000]), target
            if way in ("file", "relative"):
                continue  # Starlette sends several ranges there. Before 1.0 it sent them wrongly.
            parts = connection.request(target, headers=[("Range", "bytes=5-9,200000-399999")])
            assert parts.status == 206, target
            assert data[5:10] in parts.body, target
            assert data[200_000:400_000] in parts.body, target


@each
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_files_and_ranges_of_frameworks_arrive(
    server: LiveServer, files: Path, name: str, request: pytest.FixtureRequest
) -> None:
    if name.startswith("django") and "-trio" in request.node.name:
        pytest.skip("Django runs on asyncio alone")
    _, answers_ranges = FRAMEWORKS[name]
    data = (files / "large").read_bytes()
    target = f"/framework/{name}/large"
    with Connection(server.address) as connection:
        whole = connection.request(target)
        assert (whole.status, whole.body) == (200, data)
        start_message = connection.request(target, method="HEAD")
        assert (start_message.status, start_message.body) == (200, b"")
        for requested, start, stop in (
            ("0-1", 0, 2),  # WhiteNoise rejects the range 0-0
            ("100000-399999", 100_000, 400_000),
            ("-500", len(data) - 500, len(data)),
            (f"{len(data) - 9}-", len(data) - 9, len(data)),
        ):
            part = connection.request(target, headers=[("Range", f"bytes={requested}")])
            if answers_ranges:
                assert (part.status, part.body) == (206, data[start:stop]), requested
                expected = f"bytes {start}-{stop - 1}/{len(data)}"
                assert part.header("content-range") == expected
            else:
                assert (part.status, part.body) == (200, data), requested
        beyond = connection.request(target, headers=[("Range", f"bytes={len(data)}-")])
        assert beyond.status == (416 if answers_ranges else 200)
        modified = whole.header("last-modified") or ""
        unchanged = connection.request(target, headers=[("If-Modified-Since", modified)])
        assert (unchanged.status, unchanged.body) == (304, b"")
        empty = connection.request(f"/framework/{name}/size-0")
        assert (empty.status, empty.body) == (200, b"")


@each
def test_preconditions_of_a_file_are_evaluated(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        target = "/pathsend?file=size-1024"
        etag = connection.request(target).header("etag")
        assert etag
        same = connection.request(target, headers=[("If-None-Match", etag)])
        assert (same.status, same.body, same.header("etag")) == (304, b"", etag)
        other = connection.request(target, headers=[("If-Match", '"other"')])
        assert (other.status, other.body) == (412, b"")
        own = connection.request(f"{target}&etag=%22mine%22", headers=[("If-None-Match", '"mine"')])
        assert own.status == 304, "the app's own validator counts"


@each
def test_text_and_buffers_are_sent_as_bytes(server: LiveServer) -> None:
    assert server.get("/shape?kind=str").body == "grüße".encode()
    assert server.get("/shape?kind=bytearray").body == b"array"
    assert server.get("/shape?kind=memoryview").body == b"a view"


@each
def test_body_of_another_type_is_a_500_with_the_app(server: LiveServer) -> None:
    assert server.get("/shape?kind=int").status == 500
    wait_for(lambda: "tests.asgi.app.app" in server.log(), "the log names the app")


@each
def test_body_of_none_is_an_empty_body(server: LiveServer) -> None:
    response = server.get("/shape?kind=none")
    assert (response.status, response.body) == (200, b"")


@each_and_bare
def test_request_body_arrives(server: LiveServer) -> None:
    sent = b"b" * 300_000
    assert server.get("/echo", method="POST", body=sent).body == sent


@each_and_bare
def test_connection_stays_over_all_kinds_of_bodies(server: LiveServer, files: Path) -> None:
    large = (files / "large").read_bytes()
    with Connection(server.address) as connection:
        for _ in range(3):
            assert connection.request("/hello").body == b"hello"
            assert connection.request("/pathsend").body == large
            assert connection.request("/pathsend?file=size-0").body == b""
            assert connection.request("/crumbs").body == b"".join(crumbs()) + b"end"


@each
def test_vanished_file_is_a_500(server: LiveServer) -> None:
    assert server.get("/pathsend?file=none&declared=10").status == 500
    assert server.get("/hello").body == b"hello"


@pytest.mark.parametrize("name", ["litestar", "quart", "sanic"])
def test_files_and_streams_of_other_frameworks_arrive(name: str, files: Path) -> None:
    if find_spec(name) is None and not os.environ.get("CI"):
        pytest.skip(f"{name} is not installed: .venv/bin/pip install --group frameworks")
    large = payload_file(FILE_BYTES).read_bytes()
    app = f"loadtests.asgi_frameworks:fast_{name}"
    with asgi_server("ours-httptools-uvloop", app, files) as server:
        with Connection(server.address) as connection:
            for _ in range(2):
                whole = connection.request("/file")
                assert (whole.status, whole.body) == (200, large)
                assert connection.request("/stream").body == payload(MIB)
            part = connection.request("/file", headers=[("Range", "bytes=5-9")])
            assert part.body in (large[5:10], large)  # Quart supports ranges
        with Connection(server.address) as leaver:
            leaver.send_request("/file")
            assert leaver.read_headers().status == 200
        assert server.get("/stream").body == payload(MIB)
        assert "Traceback" not in server.log()
