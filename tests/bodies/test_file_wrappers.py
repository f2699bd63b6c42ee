"""Files in the server's own `wsgi.file_wrapper`. The server reads them and never iterates."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest

from tests.support.wsgi import classified
from wsgifast.bodies.body import File, Stream
from wsgifast.bodies.files import segment_of

SIZE = 200_000


class OwnNext(io.FileIO):
    """A file with __iter__ and __next__ like Zope's iterators."""

    def __next__(self) -> bytes:
        return (self.read(65_536) or b"").upper()

    def __len__(self) -> int:
        return SIZE


class OwnIter(io.BufferedReader):
    def __iter__(self) -> Iterator[bytes]:
        return iter((b"other",))


class OwnLines(io.FileIO):
    def readline(self, size: int | None = -1, /) -> bytes:
        return super().readline(size).upper()


class OwnRead(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        return (super().read(size) or b"").upper()


class OwnFileno(io.FileIO):
    def fileno(self) -> int:
        raise io.UnsupportedOperation


class OwnIterInMemory(io.BytesIO):
    def __iter__(self) -> Iterator[bytes]:
        return iter((b"other",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(b"x" * SIZE)
    return path


@pytest.mark.parametrize(
    "make",
    [OwnNext, OwnLines, lambda path: OwnIter(io.FileIO(path))],
    ids=["__next__", "readline", "__iter__"],
)
def test_iteration_counts_outside_a_wrapper_alone(path: Path, make: Callable[[Path], Any]) -> None:
    with make(path) as file:
        assert classified(file, FileWrapper)[0] is Stream
        assert classified(FileWrapper(file), None)[0] is Stream  # the wrapper of another server
        shape, content = classified(FileWrapper(file), FileWrapper)
        assert (shape, content) == (File, file)
        segment = segment_of(content)
        assert segment is not None
        assert segment.size == SIZE


@pytest.mark.parametrize("make", [OwnRead, OwnFileno])
def test_own_reading_counts_inside_a_wrapper(path: Path, make: Callable[[Path], Any]) -> None:
    with make(path) as file:
        shape, _ = classified(FileWrapper(file), FileWrapper)
        assert shape is Stream
        assert segment_of(file) is None


def test_file_in_memory_is_judged_by_its_read() -> None:
    file = OwnIterInMemory(b"x" * SIZE)
    assert classified(FileWrapper(file), FileWrapper) == (File, file)
    assert classified(file, FileWrapper)[0] is not File
