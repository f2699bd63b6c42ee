"""How a body is classified by its type."""

from __future__ import annotations

import gzip
import io
import tempfile
import types
import wsgiref.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import falcon.routing.static
import pytest
import servestatic.responders
import werkzeug.wsgi
import whitenoise.responders
from gunicorn.http.wsgi import FileWrapper as GunicornWrapper

from tests.support.wsgi import classified
from wsgifast import ConfigurationError, register_file_wrapper
from wsgifast.bodies import wrappers as module
from wsgifast.bodies.body import Bare, Body, File, Refusal, Segments, ServerFile, Stream, Whole
from wsgifast.bodies.files import FileSlice, SegmentedBody
from wsgifast.bodies.wrappers import iterated, known_file

SEGMENTED = SegmentedBody([], lambda: None)


class UnknownFileWrapper:
    """A `wsgi.file_wrapper` that wsgifast does not know."""


class SequenceByIndex:
    """A body that is iterated by __getitem__()."""

    def __getitem__(self, index: int) -> bytes:
        raise IndexError


class ListSubclass(list[bytes]):
    """A subclass of list, which may override __iter__()."""


class BytesSubclass(bytes):
    def __iter__(self) -> Any:
        return iter([b"chunk"])


class StrSubclass(str):
    """A subclass of str, like the text of a template engine."""


class ReadWithoutSize:
    """A body whose read() has no parameter."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"a"

    def read(self) -> bytes:
        return b"a"


class OnlyRead:
    """A body without __iter__()."""

    def read(self, size: int) -> bytes:
        return b""


class UpperCaseFile(io.BytesIO):
    """A file whose read() returns other bytes than the file contains."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size).upper()


class FileWithClose(io.BytesIO):
    """A file that overrides only close()."""

    def close(self) -> None:
        super().close()


class FileWithReplacedRead(io.BytesIO):
    """A file whose read() is replaced on the instance."""

    def __init__(self) -> None:
        super().__init__(b"x")
        self.read = lambda size=-1: b"y"  # type: ignore[method-assign]


def generator() -> Iterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ([b"x"], Whole),
        ([], Whole),
        ((), Whole),
        ("text", Bare),
        (b"", Bare),
        (bytearray(b"x"), Bare),
        (memoryview(b"x"), Bare),
        (io.BytesIO(b"x"), File),
        (io.StringIO("x"), File),
        (gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b"x"))), File),
        (UnknownFileWrapper(), ServerFile),
        (SEGMENTED, Segments),
        (generator(), Stream),
        (iter([b"x"]), Stream),
        (SequenceByIndex(), Stream),
        (ListSubclass(), Stream),
        (BytesSubclass(b"x"), Stream),
        (StrSubclass("x"), Bare),
        ({b"a": 1}, Stream),
        ({b"a"}, Stream),
        ({}, Stream),
        (ReadWithoutSize(), Stream),
        (OnlyRead(), File),
        (UpperCaseFile(b"x"), Stream),
        (FileWithClose(b"x"), File),
        (FileWithReplacedRead(), Stream),
        (tempfile.SpooledTemporaryFile(), File),
        (wsgiref.util.FileWrapper(UpperCaseFile(b"x")), Stream),
        (wsgiref.util.FileWrapper(OnlyRead()), Stream),  # type: ignore[arg-type]
    ],
)
def test_body_is_classified_by_its_type(body: Any, shape: type[Body]) -> None:
    assert classified(body, UnknownFileWrapper) == (shape, body)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (None, "[] for an empty body"),
        ({"a": 1}, "json.dumps"),
        ({"a"}, "no order"),
        (frozenset([5]), "no order"),
        (42, "return a list of bytes"),
        (object(), "return a list of bytes"),
    ],
)
def test_invalid_body_is_refused_with_advice(body: Any, advice: str) -> None:
    shape, message = classified(body)
    assert shape is Refusal
    assert advice in message


def test_async_bodies_are_refused() -> None:
    async def coroutine() -> None: ...

    async def events() -> Any:
        yield b""

    unawaited = coroutine()
    for body in (unawaited, events()):
        shape, message = classified(body)
        assert shape is Refusal
        assert "asgifast.ASGIFast" in message
    unawaited.close()


class RegisteredWrapper:
    def __init__(self, file: io.BytesIO) -> None:
        self.inner = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.inner)


def test_registered_wrapper_is_unwrapped() -> None:
    file = io.BytesIO()
    wrapper = RegisteredWrapper(file)
    assert classified(wrapper) == (Stream, wrapper)
    register_file_wrapper(RegisteredWrapper, lambda wrapper: wrapper.inner)
    assert classified(wrapper) == (File, file)


@pytest.mark.parametrize("arguments", [("Wrapper", len), (RegisteredWrapper, "inner")])
def test_wrong_registration_is_refused(arguments: tuple[type, Callable[..., object]]) -> None:
    with pytest.raises(ConfigurationError):
        register_file_wrapper(*arguments)


@pytest.mark.parametrize("name", [*module.FILE_WRAPPERS, *module._FILE_RANGES, *module._WRAPPERS])
@pytest.mark.parametrize("has_read", [False, True])
def test_wrapper_with_unknown_attributes_is_iterated(name: str, has_read: bool) -> None:
    """A later release of a known wrapper's package may rename the wrapper's attributes."""
    module, _, kind = name.rpartition(".")

    def iterate(self: object) -> Iterator[bytes]:
        yield b"chunk"

    methods: dict[str, Any] = {"__iter__": iterate, "__module__": module, "__qualname__": kind}
    if has_read:
        methods["read"] = lambda self, size=-1: b""
    body: Any = type(kind, (), methods)()
    assert list(iterated(body)) == [b"chunk"]
    if name.endswith("SegmentedBlocks"):  # wsgifast's own wrapper
        return
    assert classified(body) == (Stream, body)
    assert known_file(body) is None
    # The instance has a replaced method.
    body._next = types.SimpleNamespace(args=(), func=None)
    assert list(iterated(body)) == [b"chunk"]
    assert classified(body) == (Stream, body)


def test_wrapper_with_a_replaced_read_is_iterated() -> None:
    bottle = pytest.importorskip("bottle")
    body = bottle.WSGIFileWrapper(io.BytesIO(b"x"))
    assert classified(body) == (File, body.fp)
    body.read = UpperCaseFile(b"x").read
    assert classified(body) == (Stream, body)


WRAPPERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "wsgiref": wsgiref.util.FileWrapper,
    "werkzeug": werkzeug.wsgi.FileWrapper,
    "gunicorn": GunicornWrapper,
}
DATA = bytes(range(256)) * 100


@pytest.fixture
def file(tmp_path: Path) -> Iterator[IO[bytes]]:
    (tmp_path / "data").write_bytes(DATA)
    with open(tmp_path / "data", "rb") as opened:
        yield opened


@pytest.mark.parametrize("name", WRAPPERS)
def test_known_wrappers_are_unwrapped(name: str, file: IO[bytes]) -> None:
    assert classified(WRAPPERS[name](file), WRAPPERS[name]) == (File, file)


# An app's own response to a Range header: bytes 100 to 299 of the file.
RANGES: dict[str, Callable[[Any], Any]] = {
    "whitenoise": lambda file: whitenoise.responders.SlicedFile(file, 100, 299),
    "servestatic": lambda file: servestatic.responders.SlicedFile(file, 100, 299),
    "falcon": lambda file: falcon.routing.static._BoundedFile(_at(file, 100), 200),
}


def _werkzeug_range(wrap: Callable[[Any], Any], file: Any) -> Any:
    return werkzeug.wsgi._RangeWrapper(wrap(file), 100, 200)


for _name, _wrap in WRAPPERS.items():
    RANGES[f"werkzeug in {_name}"] = partial(_werkzeug_range, _wrap)


def _at(file: IO[bytes], position: int) -> IO[bytes]:
    file.seek(position)
    return file


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", RANGES)
def test_range_of_a_framework_is_a_slice_of_its_file(
    name: str, wrapped: bool, file: IO[bytes]
) -> None:
    body = RANGES[name](file)
    if wrapped and hasattr(body, "read"):
        body = GunicornWrapper(body)
    shape, found = classified(body)
    assert shape is File
    assert isinstance(found, FileSlice)
    assert found.rest()[1:] == (100, 200)
    assert b"".join(found) == DATA[100:300]
    found.close()
    assert file.closed


@pytest.mark.parametrize("name", ["whitenoise", "servestatic", "falcon"])
def test_range_of_a_file_in_memory_is_read(name: str) -> None:
    body = RANGES[name](io.BytesIO(DATA))
    assert classified(body) == (File, body)
    assert body.read(1000) == DATA[100:300]


@pytest.mark.parametrize("name", ["whitenoise", "servestatic", "falcon"])
def test_range_after_a_read_is_its_remaining_bytes(name: str, file: IO[bytes]) -> None:
    body = RANGES[name](file)
    assert body.read(50) == DATA[100:150]
    assert b"".join(classified(body)[1]) == DATA[150:300]


def test_unsliceable_werkzeug_range_is_iterated(file: IO[bytes]) -> None:
    wrap = werkzeug.wsgi.FileWrapper
    begun = werkzeug.wsgi._RangeWrapper(wrap(file), 100, 20_000)
    next(begun)
    bodies = [
        begun,
        werkzeug.wsgi._RangeWrapper(wrap(io.BytesIO(DATA)), 100, 200),
        werkzeug.wsgi._RangeWrapper(iter([DATA]), 100, 200),
        werkzeug.wsgi._RangeWrapper([DATA], 100, 200),
    ]
    for body in bodies:
        assert classified(body) == (Stream, body)
    file.seek(0)
    too_long = werkzeug.wsgi._RangeWrapper(wrap(file), 100, len(DATA))
    assert classified(too_long) == (Stream, too_long)
