"""Bodies on every kind of development server: their framing, and how they are sent."""

from __future__ import annotations

import errno
import io
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.http import Connection
from tests.support.wsgi import answering
from wsgifast.bodies.files import FileSlice, Segment, SegmentedBody
from wsgifast.devservers import response as response_module
from wsgifast.devservers.response import Outlet
from wsgifast.errors import BodyTooShort, ClientGone
from wsgifast.sockets.sending import FileSegment

from .serving import assert_alive, router, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


@pytest.mark.parametrize("body", [list, tuple, iter])
def test_response_that_has_no_body_sends_none(kind: str, body: Any) -> None:
    statuses = ["204 No Content", "304 Not Modified", "205 Reset Content"]
    apps = {
        status[:3]: answering(lambda _: body([b"some", b" ", b"body"]), status, [])
        for status in statuses
    }
    with talking(router(**apps), kind) as (_, client):
        for code in apps:
            response = client.request(f"/{code}")
            assert response.status == int(code)
            assert response.header("Content-Length") == ("0" if code == "205" else None), code
            assert response.header("Transfer-Encoding") is None, code
            assert_alive(client)


def test_head_request_gets_the_headers_of_get_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    apps = {
        "list": answering(lambda _: [b"12345"]),
        "iterator": answering(lambda _: iter([b"12345"])),
        "stream": answering(lambda _: (block for block in [b"12345"])),
        "file": answering(lambda environ: environ["wsgi.file_wrapper"](path.open("rb"))),
        "declared": answering(lambda _: [], headers=[("Content-Length", "77")]),
    }
    lengths = {"list": "5", "iterator": "5", "stream": None, "file": "100000", "declared": "77"}
    with talking(router(**apps), kind) as (_, client):
        for name, length in lengths.items():
            response = client.request(f"/{name}", method="HEAD")
            assert response.header("Content-Length") == length
            assert_alive(client)


def test_empty_body_has_length_0(kind: str) -> None:
    apps = {
        "list": answering(lambda _: []),
        "block": answering(lambda _: [b""]),
        "stream": answering(lambda _: (b"" for _ in range(2))),
        "iterator": answering(lambda _: iter([b"", b""])),
        "file": answering(lambda environ: environ["wsgi.file_wrapper"](io.BytesIO())),
    }
    with talking(router(**apps), kind) as (_, client):
        for name in apps:
            response = client.request(f"/{name}")
            assert (response.body, response.header("Content-Length")) == (b"", "0")
        assert_alive(client)


def test_body_of_unknown_length_is_chunked_for_http11(kind: str) -> None:
    app = answering(lambda _: (block for block in [b"one ", b"", b"two"]))
    with serve(router(stream=app), kind) as served:
        with Connection(served.address) as client:
            response = client.request("/stream")
            assert response.header("Transfer-Encoding") == "chunked"
            assert response.body == b"one two"
            assert_alive(client)
        with Connection(served.address) as client:
            headers = [("Connection", "keep-alive")]
            response = client.request("/stream", version="1.0", headers=headers)
            assert response.header("Transfer-Encoding") is None
            assert response.header("Connection") == "close"
            assert response.body == b"one two"


def test_body_over_content_length_is_cut_and_logged(kind: str) -> None:
    length = [("Content-Length", "4")]
    apps = {
        "list": answering(lambda _: [b"12", b"345678"], headers=length),
        "stream": answering(lambda _: (b for b in [b"12", b"3456", b"78"]), headers=length),
    }
    with talking(router(**apps), kind) as (served, client):
        for name in apps:
            assert client.request(f"/{name}").body == b"1234"
            assert_alive(client)
    assert served.log.count("longer than its Content-Length") == 2


@pytest.mark.parametrize("body", [list, iter])
def test_body_below_content_length_ends_connection(kind: str, body: Any) -> None:
    app = answering(lambda _: body([b"12", b"34"]), headers=[("Content-Length", "5")])
    with (
        talking(app, kind) as (served, client),
        pytest.raises(EOFError, match="4 of 5"),
    ):
        client.request("/")
    assert "the body has 4 bytes" in served.log


def sized_file(folder: Path, size: int) -> tuple[Path, bytes]:
    content = os.urandom(size)
    path = folder / f"file-{size}"
    path.write_bytes(content)
    return path, content


@pytest.mark.parametrize("sendfile", [True, False])
@pytest.mark.parametrize("size", [1, 16 * 1024, 3_000_000])
def test_file_is_sent_from_its_position_on(
    kind: str, sendfile: bool, size: int, tmp_path: Path
) -> None:
    path, content = sized_file(tmp_path, size)
    files = []

    def wrapped(environ: WSGIEnvironment) -> Any:
        files.append(path.open("rb"))
        files[-1].read(size // 3)
        return environ["wsgi.file_wrapper"](files[-1])

    with talking(router(file=answering(wrapped)), kind, use_sendfile=sendfile) as (served, client):
        for _ in range(2):
            response = client.request("/file")
            assert response.body == content[size // 3 :]
            assert response.header("Content-Length") == str(size - size // 3)
        assert_alive(client)
    assert all(file.closed for file in files)
    assert f" 200 {size - size // 3}" in served.log


def test_open_file_without_a_wrapper_is_sent_whole(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 300_000)
    app = answering(lambda _: path.open("rb"))
    with talking(router(file=app), kind) as (_, client):
        response = client.request("/file")
        assert response.body == content
        assert response.header("Content-Length") == "300000"
        assert_alive(client)


def test_file_after_write_is_framed(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 50_000)

    def wrapped(environ: WSGIEnvironment) -> Any:
        return environ["wsgi.file_wrapper"](path.open("rb"))

    app = answering(wrapped, headers=[], written=b"written ")
    with talking(router(file=app), kind) as (_, client):
        assert client.request("/file").body == b"written " + content
        assert_alive(client)


def test_file_slice_and_segments_are_sent_as_runs(kind: str, tmp_path: Path) -> None:
    path, content = sized_file(tmp_path, 100_000)
    closed = []

    def sliced(environ: WSGIEnvironment) -> Any:
        file = path.open("rb")
        return environ["wsgi.file_wrapper"](FileSlice(FileSegment(file.fileno(), 10, 70_000), file))

    def segmented(environ: WSGIEnvironment) -> Any:
        fd = os.open(path, os.O_RDONLY)
        parts: list[Segment] = [b"<", FileSegment(fd, 5, 60_000), b"|", FileSegment(fd, 0, 7), b">"]

        def close() -> None:
            os.close(fd)
            closed.append(fd)

        return SegmentedBody(parts, close)

    apps = {"slice": answering(sliced), "segments": answering(segmented)}
    with talking(router(**apps), kind) as (served, client):
        assert client.request("/slice").body == content[10:70_010]
        response = client.request("/segments")
        assert response.body == b"<" + content[5:60_005] + b"|" + content[:7] + b">"
        assert response.header("Content-Length") == "60010"
        assert_alive(client)
    assert len(closed) == 1
    assert " 200 60010" in served.log


@pytest.mark.parametrize(
    "blocks",
    [[b"x"] * 100_000, [b"y" * 20_000] * 100, [b"", b"z" * 2_000_000, b"1"], (b"a", b"b")],
)
def test_list_of_blocks_is_one_sized_body(kind: str, blocks: Any) -> None:
    with talking(answering(lambda _: blocks), kind) as (_, client):
        response = client.request("/")
        assert response.body == b"".join(blocks)
        assert response.header("Content-Length") == str(len(response.body))


class CountingSocket(socket.socket):
    """Record the arguments of each send."""

    sends: list[tuple[int, int]]

    def send(self, data: Any, flags: int = 0) -> int:
        self.sends.append((len(data), flags))
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, *rest: Any) -> int:
        self.sends.append((sum(map(len, buffers)), flags))
        return super().sendmsg(buffers, ancillary, flags, *rest)


def test_headers_and_first_block_leave_in_one_send(kind: str, tmp_path: Path) -> None:
    small, content = sized_file(tmp_path, 1000)
    large, _ = sized_file(tmp_path, 100_000)
    apps = {
        "list": answering(lambda _: [b"x" * 10, b"y" * 20_000]),
        "stream": answering(lambda _: (b"x" * 10 for _ in range(1))),
        "small": answering(lambda environ: environ["wsgi.file_wrapper"](small.open("rb"))),
        "large": answering(lambda environ: environ["wsgi.file_wrapper"](large.open("rb"))),
    }
    sends: list[tuple[int, int]] = []
    connections: list[socket.socket] = []
    with serve(router(**apps), kind) as served:
        accept = served.server.get_request

        def get_request() -> Any:
            accepted, address = accept()
            counting = CountingSocket(fileno=accepted.detach())
            counting.sends = sends
            connections.append(counting)
            return counting, address

        served.server.get_request = get_request
        with Connection(served.address) as client:
            received = {}
            for name in apps:
                before = len(sends)
                response = client.request(f"/{name}")
                received[name] = (response, sends[before:])
            (connection,) = connections
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for name in ("list", "small"):
        response, made = received[name]
        assert len(made) == 1, name
        assert made[0][0] > len(response.body)
    # The bytes of the headers and of the last chunk.
    assert [flags for _, flags in received["stream"][1]] == [0, 0]
    # The headers wait for the file, which another call sends.
    assert received["large"][1][0][1] == getattr(socket, "MSG_MORE", 0)
    assert received["small"][0].body == content


@pytest.mark.parametrize("sendfile", [True, False])
def test_unreadable_file_ends_the_body(sendfile: bool, tmp_path: Path) -> None:
    near, far = socket.socketpair()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with near, far:
            outlet = Outlet(near, kernel_sends_files=sendfile)
            with pytest.raises(BodyTooShort, match="30000 bytes"):
                outlet.write_file(b"head", fd, 0, 30_000)
            assert far.recv(10) == b"head"
            assert outlet.unsent == 30_000
    finally:
        os.close(fd)


@pytest.mark.parametrize("sendfile", [True, False])
def test_bytes_that_a_client_did_not_take_are_counted(sendfile: bool, tmp_path: Path) -> None:
    size = 10_000_000
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    near, far = socket.socketpair()
    with near, far, path.open("rb") as file:
        near.settimeout(0.1)
        outlet = Outlet(near, kernel_sends_files=sendfile)
        with pytest.raises(ClientGone):
            outlet.write_file(b"", file.fileno(), 0, size)
        near.close()
        taken = 0
        while block := far.recv(1 << 20):
            taken += len(block)
    assert 0 < taken == size - outlet.unsent


def test_file_failing_midway_lacks_unsent_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_midway(sock: Any, segment: Any, progress: Any, **options: Any) -> None:
        progress(7)
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(response_module, "send_file_segment", fail_midway)
    near, far = socket.socketpair()
    with near, far:
        outlet = Outlet(near)
        with pytest.raises(BodyTooShort, match="93 bytes"):
            outlet.write_file(b"", 0, 0, 100)
    assert outlet.unsent == 93
