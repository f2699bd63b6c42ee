"""File objects and bodies as servers receive them."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.bodies.files import FileReader, FileSlice, Segment, SegmentedBody, known_size
from wsgifast.errors import BodyTooShort
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import FileTruncated

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that contains DATA."""
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@given(
    start=st.integers(0, len(DATA)),
    stop=st.integers(0, len(DATA)),
    moves=st.lists(st.one_of(st.integers(-1, 9_000), st.tuples(st.integers(0, 12_000)))),
)
def test_slice_reads_as_a_file_of_its_size(
    tmp_path_factory: pytest.TempPathFactory,
    start: int,
    stop: int,
    moves: list[int | tuple[int]],
) -> None:
    path = tmp_path_factory.getbasetemp() / "sliced"
    path.write_bytes(DATA)
    stop = max(start, stop)
    model = io.BytesIO(DATA[:stop])
    model.seek(start)
    file = path.open("rb")
    part = FileSlice(FileSegment(file.fileno(), start, stop - start), file)
    for move in moves:
        if isinstance(move, tuple):
            place = min(max(start, move[0]), stop)
            assert part.seek(place) == model.seek(place)
        else:
            assert part.read(move) == model.read(move)
        assert part.tell() == model.tell()
    assert part.seek(0, os.SEEK_END) == stop
    assert part.seek(start) == start
    assert part.read(0) == b""
    assert part.seek((stop - start) // 2, os.SEEK_CUR) == start + (stop - start) // 2
    assert part.seek(-1, os.SEEK_END) == max(start, stop - 1)
    assert part.seek(-1, os.SEEK_SET) == start
    part.close()
    part.close()
    assert file.closed


def test_descriptor_of_a_slice_is_at_its_start(path: Path) -> None:
    file = path.open("rb")
    file.read(1)  # one buffer has been read from the descriptor
    part = FileSlice(FileSegment(file.fileno(), 1, 100), file)
    assert os.lseek(part.fileno(), 0, os.SEEK_CUR) == 1
    assert list(part) == [DATA[1:101]]
    assert os.lseek(part.fileno(), 0, os.SEEK_CUR) == 1
    part.close()
    with pytest.raises(ValueError, match="closed"):
        part.read(1)


def test_slice_of_a_file_that_shrinks_raises(path: Path) -> None:
    file = path.open("rb")
    part = FileSlice(FileSegment(file.fileno(), 0, len(DATA)), file)
    part.read(100)
    os.truncate(path, 150)
    assert part.read(1000) == DATA[100:150]
    with pytest.raises(FileTruncated, match=f"{len(DATA) - 150} of {len(DATA)}"):
        part.read(1000)
    # A server that sends by descriptor receives it here.
    with pytest.raises(FileTruncated):
        part.close()
    assert file.closed


def test_slice_of_a_growing_file_keeps_its_size(path: Path) -> None:
    file = path.open("rb")
    part = FileSlice(FileSegment(file.fileno(), 0, 10), file)
    with path.open("ab") as more:
        more.write(b"more")
    assert part.read() == DATA[:10]
    part.close()


def test_segmented_body_is_iterated_in_order(path: Path) -> None:
    closed: list[bool] = []
    with path.open("rb") as file:
        first, second = FileSegment(file.fileno(), 5, 10), FileSegment(file.fileno(), 0, 2)
        parts: list[Segment] = [b"head", first, b"-", second]
        body = SegmentedBody(parts, lambda: closed.append(True))
        assert b"".join(body) == b"head" + DATA[5:15] + b"-" + DATA[:2]
    body.close()
    body.close()
    assert closed == [True]


def test_segmented_body_of_a_file_that_shrinks_raises(path: Path) -> None:
    with path.open("rb") as file:
        whole: list[Segment] = [FileSegment(file.fileno(), 0, len(DATA))]
        body = SegmentedBody(whole, file.close)
        os.truncate(path, 10)
        blocks = iter(body)
        assert next(blocks) == DATA[:10]
        with pytest.raises(FileTruncated):
            next(blocks)


def encode(block: object) -> bytes:
    return block.encode() if isinstance(block, str) else bytes(block)  # type: ignore[call-overload]


def test_reader_stops_at_its_size() -> None:
    file = io.BytesIO(DATA)
    reader = FileReader(file, 100, encode)
    assert [reader.read(0), reader.read(7), reader.read(0)] == [b"", DATA[:7], b""]
    assert b"".join(reader) == DATA[7:100]
    assert file.tell() == 100
    text = io.StringIO("é" * 100)
    assert b"".join(FileReader(text, 100, encode)) == ("é" * 50).encode()


def test_reader_of_a_file_that_ends_early_raises() -> None:
    with pytest.raises(BodyTooShort, match="5 bytes before"):
        list(FileReader(io.BytesIO(b"12345"), 10, encode))


def test_pipe_is_read_as_it_comes() -> None:
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "wb", buffering=0) as writer:
        blocks = iter(FileReader(reader, None, encode))
        writer.write(b"first")
        assert next(blocks) == b"first"  # a plain read() would wait for a whole block
        writer.write(b"second")
        assert next(blocks) == b"second"
        writer.close()
        assert list(blocks) == []


def test_file_in_memory_has_a_known_size() -> None:
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    assert known_size(file) == 6
    file.seek(40)
    assert known_size(file) == 0
    with tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(b"12345")
        spooled.seek(1)
        assert known_size(spooled) == 4
    assert known_size(io.StringIO("text")) is None
