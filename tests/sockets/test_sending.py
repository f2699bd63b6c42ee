"""Files by sendfile, and which part of them is in the page cache."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import os
import signal
import socket
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.sockets.support import Pair, receiving, run_python, tcp_pair, tls_pair, unix_pair
from tests.support.calls import raising
from tests.support.eviction import wait_until_missed
from wsgifast.sockets import FileSegment, file_segment, recv_exactly, send_file_segment, sending
from wsgifast.sockets.sending import FileTruncated, cached_bytes, read_cached

DATA = bytes(range(256)) * 40
STEP_BYTES = 256 * 1024
PAGES = os.urandom(3 * STEP_BYTES + 10)

needs_nowait = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can be asked")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


# Which files qualify


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b"])
@pytest.mark.parametrize("buffering", [0, -1])
def test_segment_of_a_file_begins_at_its_position(path: Path, mode: str, buffering: int) -> None:
    with path.open(mode, buffering=buffering) as file:
        file.seek(0)
        assert file_segment(file) == FileSegment(file.fileno(), 0, len(DATA))
        file.read(10)  # the descriptor of a buffered file is far ahead now
        assert file_segment(file) == FileSegment(file.fileno(), 10, len(DATA) - 10)
        file.seek(0, io.SEEK_END)
        assert file_segment(file) == FileSegment(file.fileno(), len(DATA), 0)
        file.seek(100, io.SEEK_END)
        assert file_segment(file) == FileSegment(file.fileno(), len(DATA) + 100, 0)


def test_segment_after_a_write_includes_it(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(0, io.SEEK_END)
        file.write(b"more")
        file.seek(5)
        file.write(b"!")
        segment = file_segment(file)
        assert segment == FileSegment(file.fileno(), 6, len(DATA) - 2)
        assert os.pread(file.fileno(), 4, len(DATA)) == b"more"
        assert file.tell() == 6


def test_segment_of_a_temporary_file_is_its_descriptor() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"abc")
        file.seek(1)
        assert file_segment(file) == FileSegment(file.fileno(), 1, 2)
    with tempfile.NamedTemporaryFile() as named:
        named.write(b"abc")
        named.seek(0)
        assert file_segment(named) == FileSegment(named.fileno(), 0, 3)


def test_segment_of_a_spooled_file_only_from_disk() -> None:
    with tempfile.SpooledTemporaryFile(max_size=10) as file:
        file.write(b"abc")
        file.seek(0)
        assert file_segment(file) is None
        file.write(b"0123456789ab")
        file.seek(2)
        assert file_segment(file) == FileSegment(file.fileno(), 2, 10)
    with tempfile.SpooledTemporaryFile(max_size=1, mode="w+") as text:
        text.write("abc")
        assert file_segment(text) is None


class Upper(io.FileIO):
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        raise AssertionError("not here")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.open(),
        lambda path: path.open("ab"),
        lambda path: gzip.open(path),
        lambda path: bz2.open(path),
        lambda path: io.BytesIO(DATA),
        lambda path: open("/proc/self/status", "rb"),
        lambda path: open(os.devnull, "rb"),
        lambda path: Upper(path),
        lambda path: io.BufferedReader(Upper(path)),
        lambda path: io.FileIO(path, "ab"),
        lambda path: os.open(path, os.O_RDONLY),
    ],
    ids=[
        *("text", "write-only", "gzip", "bz2", "memory", "proc", "device", "own raw class"),
        *("buffered own class", "write-only raw", "descriptor"),
    ],
)
def test_file_with_other_bytes_has_no_segment(path: Path, make: Callable[[Path], object]) -> None:
    file = make(path)
    try:
        assert file_segment(file) is None
    finally:
        if isinstance(file, int):
            os.close(file)
        else:
            file.close()  # type: ignore[attr-defined]


def test_member_of_an_archive_has_no_segment(path: Path) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as tar:
        tar.add(path, "data")
    with tarfile.open(path.with_suffix(".tar")) as tar, tar.extractfile("data") as member:  # type: ignore[union-attr]
        assert file_segment(member) is None
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.write(path, "data")
    with zipfile.ZipFile(path.with_suffix(".zip")) as archive, archive.open("data") as inner:
        assert file_segment(inner) is None


def test_pipe_and_socket_have_no_segment() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb"):
        assert file_segment(file) is None
    with tcp_pair() as pair, pair.near.makefile("rb") as stream:
        assert file_segment(stream) is None


def test_empty_file_has_nothing_to_send(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file:
        segment = file_segment(file)
        assert segment is not None
        assert segment[1:] == (0, 0)


def test_file_with_a_wrong_size_has_no_segment() -> None:
    """Files in /sys are like this. Reading such a file to its end returns all of it."""
    path = Path("/sys/class/net/lo/mtu")
    if not path.exists():
        pytest.skip("no /sys here")
    with path.open("rb") as file:
        assert os.fstat(file.fileno()).st_size > len(path.read_bytes())
        assert file_segment(file) is None


def test_file_that_is_one_hole_has_its_size(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("w+b") as file, tcp_pair() as pair:
        file.truncate(5000)
        assert os.fstat(file.fileno()).st_blocks == 0
        segment = file_segment(file)
        assert segment == FileSegment(file.fileno(), 0, 5000)
        send_file_segment(pair.near, segment)
        assert recv_exactly(pair.far, 5000) == bytes(5000)


@pytest.mark.parametrize("buffering", [0, -1])
def test_closed_file_raises(path: Path, buffering: int) -> None:
    file = path.open("rb", buffering=buffering)
    file.close()
    with pytest.raises(ValueError):
        file_segment(file)


# Sending

pairs = pytest.mark.parametrize("make", [tcp_pair, unix_pair, tls_pair])
MakePair = Callable[[], AbstractContextManager[Pair]]


@pytest.fixture
def large() -> Iterator[IO[bytes]]:
    """8 MiB that differ from block to block: more than the initial size of any socket's buffer."""
    with tempfile.TemporaryFile() as file:
        for number in range(2048):
            file.write(number.to_bytes(4, "big") * 1024)
        file.flush()
        yield file


def contents(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 1 << 30, 0)


@pairs
@pytest.mark.parametrize("timeout", [None, 20.0])
def test_send_of_a_part_leaves_the_position(
    make: MakePair, timeout: float | None, large: IO[bytes]
) -> None:
    large.seek(17)
    offset, size = 5, (8 << 20) - 9
    with make() as pair, receiving(pair.far, size) as received:
        pair.near.settimeout(timeout)
        send_file_segment(pair.near, FileSegment(large.fileno(), offset, size))
    assert received == [contents(large)[offset : offset + size]]
    assert large.tell() == 17


@pairs
def test_truncated_file_raises(make: MakePair, path: Path) -> None:
    with path.open("rb") as file, make() as pair:
        segment = FileSegment(file.fileno(), 10, len(DATA))
        with pytest.raises(FileTruncated, match=f"10 of {len(DATA)} bytes"):
            send_file_segment(pair.near, segment)
        assert recv_exactly(pair.far, len(DATA) - 10) == DATA[10:]


def test_grown_file_is_sent_to_its_promised_length(path: Path) -> None:
    with path.open("r+b") as file, tcp_pair() as pair:
        segment = file_segment(file)
        assert segment is not None
        file.seek(0, io.SEEK_END)
        file.write(b"more")
        file.flush()
        send_file_segment(pair.near, segment)
        pair.near.close()
        with pair.far.makefile("rb") as stream:
            assert stream.read() == DATA


@pytest.mark.parametrize("make", [tcp_pair, unix_pair])
def test_peer_that_takes_nothing_times_out(make: MakePair, large: IO[bytes]) -> None:
    with make() as pair:
        pair.near.settimeout(0.1)
        with pytest.raises(TimeoutError):
            send_file_segment(pair.near, FileSegment(large.fileno(), 0, 8 << 20))


@pairs
def test_peer_that_has_gone_raises(make: MakePair, large: IO[bytes]) -> None:
    with make() as pair:
        pair.far.close()
        with pytest.raises(OSError) as caught:
            send_file_segment(pair.near, FileSegment(large.fileno(), 0, 8 << 20))
    assert not isinstance(caught.value, FileTruncated)


def test_file_system_without_sendfile_is_read(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(os, "sendfile", raising(OSError, 22, "Invalid argument"))
    with path.open("rb") as file, tcp_pair() as pair:
        send_file_segment(pair.near, FileSegment(file.fileno(), 1, len(DATA) - 1))
        assert recv_exactly(pair.far, len(DATA) - 1) == DATA[1:]


def test_partial_sends_of_a_file_send_all(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    whole = os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda out, fd, at, size: whole(out, fd, at, min(size, 7)))
    with path.open("rb") as file, tcp_pair() as pair:
        send_file_segment(pair.near, FileSegment(file.fileno(), 3, 100))
        assert recv_exactly(pair.far, 100) == DATA[3:103]


def test_signals_cut_nothing_off(tmp_path: Path) -> None:
    """A signal (EINTR) arrives while the peer does not read."""
    size = 32 << 20
    arrived: list[int] = []
    enough = threading.Event()

    def handler(number: int, frame: object) -> None:
        arrived.append(number)
        if len(arrived) == 5:
            enough.set()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with (tmp_path / "sparse").open("w+b") as file, tcp_pair() as pair:
            file.truncate(size)
            received: list[int] = []

            def read() -> None:
                enough.wait(60)
                received.append(len(recv_exactly(pair.far, size)))

            reader = threading.Thread(target=read)
            reader.start()
            signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
            send_file_segment(pair.near, FileSegment(file.fileno(), 0, size))
            reader.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert enough.is_set()
    assert received == [size]


def test_offset_beyond_four_gib_is_sent(tmp_path: Path) -> None:
    """A sparse file: its end is beyond 32-bit offsets."""
    at = (5 << 30) - 3
    with (tmp_path / "sparse").open("w+b") as file, tcp_pair() as pair:
        file.seek(at)
        file.write(b"end")
        file.seek(at - 4)
        segment = file_segment(file)
        assert segment == FileSegment(file.fileno(), at - 4, 7)
        send_file_segment(pair.near, segment)
        assert recv_exactly(pair.far, 7) == b"\0\0\0\0end"


def test_file_over_two_gib_takes_several_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requested: list[tuple[int, int]] = []

    def counted(out: int, fd: int, offset: int, size: int) -> int:
        requested.append((offset, size))
        return size

    monkeypatch.setattr(os, "sendfile", counted)
    with (tmp_path / "sparse").open("w+b") as file, tcp_pair() as pair:
        send_file_segment(pair.near, FileSegment(file.fileno(), 0, (5 << 30) + 1))
    assert sum(size for _, size in requested) == (5 << 30) + 1
    assert max(size for _, size in requested) < 1 << 31
    assert requested[-1] == (5 << 30, 1)


def test_send_on_a_gevent_socket_lets_others_run(tmp_path: Path) -> None:
    """The same applies if only the socket module is patched: waiting in poll() would stop all."""
    code = """
import gevent.monkey
gevent.monkey.patch_socket()
import gevent, os, socket, sys
from wsgifast.sockets import FileSegment, send_file_segment
near, far = socket.socketpair()
size = 4 << 20
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(size))
    file.flush()
    sending = gevent.spawn(send_file_segment, near, FileSegment(file.fileno(), 0, size))
    received = 0
    with gevent.Timeout(20):
        while received < size:
            received += len(far.recv(65536))
        sending.get()
"""
    run_python(code, str(tmp_path / "data"))


def test_subclass_of_socket_sends_by_its_own_method(path: Path) -> None:
    """Each call has the whole timeout. sendall() would apply it to a whole block."""

    class Narrow(socket.socket):
        def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
            return super().send(data[:1000], flags)

    sent: list[int] = []
    with tcp_pair() as pair, path.open("rb") as file:
        with Narrow(fileno=pair.near.detach()) as own:
            send_file_segment(own, FileSegment(file.fileno(), 0, len(DATA)), sent.append)
        assert max(sent) == 1000
        assert sum(sent) == len(DATA)
        assert recv_exactly(pair.far, len(DATA)) == DATA


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(PAGES)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@needs_nowait
def test_file_just_written_is_cached(fd: int) -> None:
    for offset, size in ((0, 1), (0, len(PAGES)), (7, STEP_BYTES), (len(PAGES) - 1, 1)):
        assert cached_bytes(fd, offset, size) == size
    # At the end there is nothing to wait for.
    assert cached_bytes(fd, len(PAGES) - 5, 100) == 100


def test_evicted_file_is_not_cached(fd: int) -> None:
    wait_until_missed(fd, lambda: cached_bytes(fd, 0, len(PAGES)) == 0)
    wait_until_missed(fd, lambda: read_cached(fd, 0, 10) is None)
    assert os.pread(fd, len(PAGES), 0) == PAGES
    assert cached_bytes(fd, 0, len(PAGES)) == len(PAGES)
    assert read_cached(fd, 0, 10) == PAGES[:10]


@pytest.mark.parametrize("missing", [0, 1, STEP_BYTES, STEP_BYTES + 1, 2 * STEP_BYTES, len(PAGES)])
def test_cached_bytes_end_before_the_first_gap(
    fd: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has everything before `missing`. Nothing from there on is ever counted."""

    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if offset >= missing:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(sending, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", preadv)
    for size in (1, STEP_BYTES, STEP_BYTES + 1, len(PAGES)):
        counted = cached_bytes(fd, 0, size)
        assert missing - STEP_BYTES <= counted <= missing or counted == size <= missing
        assert counted or missing <= STEP_BYTES


@pytest.mark.parametrize(
    "error", [BlockingIOError(), OSError(errno.EOPNOTSUPP, ""), OSError(errno.EIO, "")]
)
def test_bytes_unknown_to_the_kernel_are_not_cached(
    fd: int, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", raising(error))
    assert cached_bytes(fd, 0, 10) == 0
    if error.errno == errno.EIO:
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            read_cached(fd, 0, 10)
    else:
        assert read_cached(fd, 0, 10) is None


def test_system_without_nowait_has_nothing_cached(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_NOWAIT", 0)
    assert cached_bytes(fd, 0, 10) == 0
    assert read_cached(fd, 0, 10) is None


@needs_nowait
def test_cached_block_ends_with_the_file(fd: int) -> None:
    for offset, size in ((0, 10), (len(PAGES) - 3, 10), (len(PAGES), 10)):
        assert read_cached(fd, offset, size) == PAGES[offset : offset + size]


@needs_nowait
def test_threads_share_no_buffer(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both_have_read = threading.Barrier(2, timeout=60)
    preadv = os.preadv

    def preadv_then_wait(*args: Any) -> int:
        count = preadv(*args)
        both_have_read.wait()
        return count

    monkeypatch.setattr(os, "preadv", preadv_then_wait)
    with ThreadPoolExecutor(2) as threads:
        blocks = list(threads.map(lambda offset: read_cached(fd, offset, 100), (0, 50)))
    assert blocks == [PAGES[:100], PAGES[50:150]]
