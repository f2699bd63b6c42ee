"""What a body is, told by its type."""

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

from wsgifast import ConfigurationError, register_file_wrapper
from wsgifast.bodies import classify as module
from wsgifast.bodies.classify import Shape, classify, iterated, known_file
from wsgifast.bodies.files import FileSlice, SegmentedBody


class ServersWrapper:
    """A `wsgi.file_wrapper` that nobody knows."""


class Lines:
    def __getitem__(self, index: int) -> bytes:
        raise IndexError


class ListOfOnesOwn(list[bytes]):
    """May iterate as it likes."""


class BytesOfOnesOwn(bytes):
    def __iter__(self) -> Any:
        return iter([b"chunk"])


class MarkedUp(str):
    """As the text of a template engine."""


class Report:
    """Has a read() without an argument."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"a"

    def read(self) -> bytes:
        return b"a"


class OnlyRead:
    def read(self, size: int) -> bytes:
        return b""


class Shouting(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size).upper()


class Closing(io.BytesIO):
    def close(self) -> None:
        super().close()


class Overridden(io.BytesIO):
    """Has a read() on the instance."""

    def __init__(self) -> None:
        super().__init__(b"x")
        self.read = lambda size=-1: b"y"  # type: ignore[method-assign]


def generator() -> Iterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ([b"x"], Shape.WHOLE),
        ([], Shape.WHOLE),
        ((), Shape.WHOLE),
        ("text", Shape.BARE),
        (b"", Shape.BARE),
        (bytearray(b"x"), Shape.BARE),
        (memoryview(b"x"), Shape.BARE),
        (io.BytesIO(b"x"), Shape.FILE),
        (io.StringIO("x"), Shape.FILE),
        (gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b"x"))), Shape.FILE),
        (ServersWrapper(), Shape.PASS),
        (SegmentedBody([], lambda: None), Shape.PASS),
        (generator(), Shape.STREAM),
        (iter([b"x"]), Shape.STREAM),
        (Lines(), Shape.STREAM),
        (ListOfOnesOwn(), Shape.STREAM),
        (BytesOfOnesOwn(b"x"), Shape.STREAM),
        (MarkedUp("x"), Shape.BARE),
        ({b"a": 1}, Shape.STREAM),
        ({b"a"}, Shape.STREAM),
        ({}, Shape.STREAM),
        (Report(), Shape.STREAM),
        (OnlyRead(), Shape.FILE),
        (Shouting(b"x"), Shape.STREAM),
        (Closing(b"x"), Shape.FILE),
        (Overridden(), Shape.STREAM),
        (tempfile.SpooledTemporaryFile(), Shape.FILE),
        (wsgiref.util.FileWrapper(Shouting(b"x")), Shape.STREAM),
        (wsgiref.util.FileWrapper(OnlyRead()), Shape.STREAM),  # type: ignore[arg-type]
    ],
)
def test_body_has_its_shape(body: Any, shape: Shape) -> None:
    assert classify(body, ServersWrapper) == (shape, body)


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
def test_object_that_is_no_body_is_refused_with_advice(body: Any, advice: str) -> None:
    shape, said = classify(body)
    assert shape is Shape.REFUSED
    assert advice in said


def test_async_bodies_are_refused() -> None:
    async def coroutine() -> None: ...

    async def events() -> Any:
        yield b""

    unawaited = coroutine()
    for body in (unawaited, events()):
        shape, said = classify(body)
        assert shape is Shape.REFUSED
        assert "asgifast.ASGIFast" in said
    unawaited.close()


class Wrapper:
    def __init__(self, file: io.BytesIO) -> None:
        self.inner = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.inner)


def test_registered_wrapper_is_unwrapped() -> None:
    file = io.BytesIO()
    wrapper = Wrapper(file)
    assert classify(wrapper) == (Shape.STREAM, wrapper)
    register_file_wrapper(Wrapper, lambda wrapper: wrapper.inner)
    assert classify(wrapper) == (Shape.FILE, file)


@pytest.mark.parametrize("arguments", [("Wrapper", len), (Wrapper, "inner")])
def test_wrong_registration_is_refused(arguments: tuple[type, Callable[..., object]]) -> None:
    with pytest.raises(ConfigurationError):
        register_file_wrapper(*arguments)


@pytest.mark.parametrize("name", [*module._FILE_WRAPPERS, *module._FILE_RANGES, *module._WRAPPERS])
@pytest.mark.parametrize("has_read", [False, True])
def test_wrapper_with_unknown_attributes_is_iterated(name: str, has_read: bool) -> None:
    """As a later release of its package might have it."""
    module, _, kind = name.rpartition(".")

    def iterate(self: object) -> Iterator[bytes]:
        yield b"chunk"

    methods: dict[str, Any] = {"__iter__": iterate, "__module__": module, "__qualname__": kind}
    if has_read:
        methods["read"] = lambda self, size=-1: b""
    body: Any = type(kind, (), methods)()
    assert list(iterated(body)) == [b"chunk"]
    if name.endswith("SegmentedBlocks"):  # our own
        return
    assert classify(body) == (Shape.STREAM, body)
    assert known_file(body) is None
    # One that has been given another method.
    own = types.SimpleNamespace(args=(), func=None)
    body._next = own
    assert list(iterated(body)) == [b"chunk"]
    assert classify(body) == (Shape.STREAM, body)


def test_wrapper_with_a_replaced_read_is_iterated() -> None:
    bottle = pytest.importorskip("bottle")
    body = bottle.WSGIFileWrapper(io.BytesIO(b"x"))
    assert classify(body) == (Shape.FILE, body.fp)
    body.read = Shouting(b"x").read
    assert classify(body) == (Shape.STREAM, body)


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
    assert classify(WRAPPERS[name](file), WRAPPERS[name]) == (Shape.FILE, file)


# An app's own answer to Range: bytes 100 to 299 of the file.
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
    shape, found = classify(body)
    assert shape is Shape.FILE
    assert isinstance(found, FileSlice)
    assert found.rest()[1:] == (100, 200)
    assert b"".join(found) == DATA[100:300]
    found.close()
    assert file.closed


@pytest.mark.parametrize("name", ["whitenoise", "servestatic", "falcon"])
def test_range_of_no_real_file_is_read(name: str) -> None:
    body = RANGES[name](io.BytesIO(DATA))
    assert classify(body) == (Shape.FILE, body)
    assert body.read(1000) == DATA[100:300]


@pytest.mark.parametrize("name", ["whitenoise", "servestatic", "falcon"])
def test_range_that_was_read_from_is_its_rest(name: str, file: IO[bytes]) -> None:
    body = RANGES[name](file)
    assert body.read(50) == DATA[100:150]
    assert b"".join(classify(body)[1]) == DATA[150:300]


def test_werkzeug_range_that_is_no_run_of_a_file_is_iterated(file: IO[bytes]) -> None:
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
        assert classify(body) == (Shape.STREAM, body)
    file.seek(0)
    too_long = werkzeug.wsgi._RangeWrapper(wrap(file), 100, len(DATA))
    assert classify(too_long) == (Shape.STREAM, too_long)
