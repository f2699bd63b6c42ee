"""Bodies of random classes as data: standard files with overridden methods, in any wrapper.

`app` responds with the body that its query string describes. `wrapped` is the same in WSGIFast.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tempfile
import wsgiref.util
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import werkzeug.wsgi

from tests.support.files import write_old
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LINES = b"name;amount\n" * 1_000
# As large as several blocks of wsgiref's, and too large to be read in place of sendfile.
BLOCKS = bytes(range(1, 12)) * 7_000
CONTENTS = {"lines": LINES, "blocks": BLOCKS, "short": b"ab\ncd", "empty": b""}

# The results of read() and similar methods.
TRANSFORMS: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda data: bytes(data).translate(bytes(range(255, -1, -1))),
    "longer": lambda data: bytes(data).replace(b"\n", b"\r\n"),
    "shorter": lambda data: data[:1],
    "the same": bytes,
}
# The methods that a class or an instance may override.
METHODS = (
    "read", "read without size", "read1", "readinto", "readline", "readlines", "__iter__",
    "__next__", "seek", "tell", "fileno", "getvalue", "getbuffer", "close", "name", "peek",
    "__len__", "__getitem__", "__getattr__", "seekable", "readable", "write",
)  # fmt: skip
BASES: dict[str, Any] = {
    "BytesIO": io.BytesIO, "FileIO": io.FileIO, "BufferedReader": io.BufferedReader,
    "BufferedRandom": io.BufferedRandom, "Spooled": tempfile.SpooledTemporaryFile,
    "Rolled": tempfile.SpooledTemporaryFile, "Gzip": gzip.GzipFile,
}  # fmt: skip
OTHERS = (
    "raw with methods", "named temporary", "temporary wrapper", "delegating", "decoding",
    "sequence", "list", "bytes", "generator", "dict", "plain",
)  # fmt: skip
WRAPS = (
    "bare", "server", "server", "subclass", "werkzeug", "closing", "response", "inner", "renamed",
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """A body, as data.

    :ivar on_class: the methods that its class overrides.
    :ivar on_instance: the methods that only the object overrides.
    :ivar position: how much of it was read before it was returned.
    :ivar lengths: whether the app sends a Content-Length, which `size` is.
    """

    kind: str = "BytesIO"
    wrap: str = "bare"
    content: str = "lines"
    transform: str = "other bytes"
    on_class: tuple[str, ...] = ()
    on_instance: tuple[str, ...] = ()
    position: int = 0
    size: int | None = None

    def query(self) -> str:
        return quote(json.dumps(asdict(self)))

    @classmethod
    def of(cls, query: str) -> Spec:
        values = json.loads(unquote(query))
        for name in ("on_class", "on_instance"):
            values[name] = tuple(values[name])
        return cls(**values)

    @property
    def is_plain_file(self) -> bool:
        """Return whether the body may be sent in parts: a file on a disk that its class reads
        unchanged.
        """
        wraps = ("bare", "server", "werkzeug", "closing", "response", "inner")
        silent = {"close", "name", "write", "__len__", "__getitem__", "getvalue", "getbuffer"}
        if self.wrap == "server":  # it reads the file, and never iterates over it
            silent |= {"readline", "readlines", "__iter__", "__next__"}
        # Python looks these up in classes alone.
        on_instance = {name for name in self.on_instance if not name.startswith("__")}
        if self.kind not in BASES:
            on_instance = set()
        return (
            self.kind in ("FileIO", "BufferedReader", "BufferedRandom", "raw with methods")
            and self.wrap in wraps
            and {*self.on_class, *on_instance} <= silent
        )


_folder = tempfile.TemporaryDirectory(prefix="wsgifast-bodies-")


def path_of(content: str) -> str:
    """Return a file that is older than any request."""
    path = Path(_folder.name, content)
    if not path.exists():
        write_old(path, CONTENTS[content])
    return str(path)


@lru_cache
def _other_descriptor() -> int:
    return os.open(path_of("blocks"), os.O_RDONLY)


def _own_methods(base: Any, names: tuple[str, ...], spec: Spec, closed: list[int]) -> Any:
    """Return the methods of a class, by their names."""
    change = TRANSFORMS[spec.transform]

    def read_all(self: Any) -> bytes:
        return bytes(base.read(self))

    def own_iter(self: Any) -> Iterator[bytes]:
        yield b"iterated:"
        yield change(read_all(self))

    def own_next(self: Any) -> bytes:
        line = base.readline(self)
        if not line:
            raise StopIteration
        return change(line)

    def own_readinto(self: Any, buffer: Any) -> int:
        data = base.read(self, len(buffer)) or b""
        buffer[: len(data)] = TRANSFORMS["other bytes"](data)
        return len(data)

    def own_close(self: Any) -> None:
        closed.append(1)
        base.close(self)

    def own_getattr(self: Any, name: str) -> Any:
        if name == "peek":
            return lambda size=0: b"x"
        raise AttributeError(name)

    made: dict[str, Any] = {
        "read": lambda self, size=-1: change(base.read(self, size)),
        "read without size": lambda self: change(read_all(self)),
        "read1": lambda self, size=-1: b"by read1",
        "readinto": own_readinto,
        "readline": lambda self, size=-1: change(base.readline(self, size)),
        "readlines": lambda self, hint=-1: [b"by readlines"],
        "__iter__": own_iter,
        "__next__": own_next,
        "seek": lambda self, *where: base.seek(self, 0),
        "tell": lambda self: base.tell(self) + 3,
        "fileno": lambda self: _other_descriptor(),
        "getvalue": lambda self: b"by getvalue",
        "getbuffer": lambda self: memoryview(b"by getbuffer"),
        "close": own_close,
        "name": "/etc/hostname",
        "peek": lambda self, size=0: b"x",
        "__len__": lambda self: 3,
        "__getitem__": lambda self, index: [b"by index"][index],
        "__getattr__": own_getattr,
        "seekable": lambda self: False,
        "readable": lambda self: True,
        "write": lambda self, data: len(data),
    }
    return {name.partition(" ")[0]: made[name] for name in names}


class _Seeker:
    """The operations that use the base classes, for classes without such a method."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get

    def __getattr__(self, name: str) -> Any:
        return lambda owner, *given: getattr(self._get(owner), name)(*given)


def _filled(file: Any, content: bytes) -> Any:
    file.write(content)
    file.seek(0)
    return file


def _give(file: Any, methods: dict[str, Any]) -> Any:
    """Set methods of one object, if that is possible."""
    for name, value in methods.items():
        with contextlib.suppress(AttributeError, TypeError):  # a property
            setattr(file, name, value.__get__(file) if callable(value) else value)
    return file


def _standard(spec: Spec, closed: list[int]) -> Any:
    """Return a file of a class that inherits from one of Python's, or of that class itself."""
    content, path = CONTENTS[spec.content], path_of(spec.content)
    kind = base = BASES[spec.kind]
    if spec.on_class:
        kind = type("Own", (base,), _own_methods(base, spec.on_class, spec, closed))
    if spec.kind == "BytesIO":
        file = kind(content)
    elif spec.kind == "FileIO":
        file = kind(path)
    elif spec.kind in ("BufferedReader", "BufferedRandom"):
        file = kind(io.FileIO(path, "r" if spec.kind == "BufferedReader" else "r+"))
    elif spec.kind == "Gzip":
        file = kind(fileobj=io.BytesIO(gzip.compress(content, 1)))
    else:
        file = kind(max_size=0 if spec.kind == "Spooled" else 1)
        base.write(file, content)
        base.seek(file, 0)
    base.read(file, spec.position)
    return _give(file, _own_methods(base, spec.on_instance, spec, closed))


class Delegating:
    """A file behind __getattr__, with its own iteration."""

    def __init__(self, file: Any, change: Callable[[bytes], bytes]) -> None:
        self._file, self._change = file, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[bytes]:
        return (self._change(line) for line in self._file)


class Decoding(io.IOBase):
    """A body like urllib3's responses: it decodes when it is iterated, and not when it is read."""

    def __init__(self, data: bytes, change: Callable[[bytes], bytes]) -> None:
        self._stream, self._change = io.BytesIO(data), change

    def read(self, amt: int | None = None) -> bytes:
        return self._stream.read(amt)

    def readable(self) -> bool:
        return True

    def __iter__(self) -> Any:
        while data := self._stream.read(1000):
            yield self._change(data)


class Sequence:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks
        self.read = io.BytesIO(b"by read").read

    def __getitem__(self, index: int) -> bytes:
        return self._chunks[index]


class OwnList(list[bytes]):
    def __iter__(self) -> Iterator[bytes]:
        yield b"iterated:"
        yield from super().__iter__()


class OwnBytes(bytes):
    def __iter__(self) -> Any:
        return iter([b"iterated:", bytes(self)])


def _raw_with_methods(spec: Spec, closed: list[int]) -> Any:
    methods = _own_methods(io.FileIO, spec.on_class, spec, closed)
    return io.BufferedReader(type("OwnRaw", (io.FileIO,), methods)(path_of(spec.content)))


def _named_temporary(spec: Spec, closed: list[int]) -> Any:
    file = _filled(tempfile.NamedTemporaryFile(), CONTENTS[spec.content])
    base = _Seeker(lambda owner: owner.file)
    return _give(file, _own_methods(base, spec.on_instance, spec, closed))


def _temporary_wrapper(spec: Spec, closed: list[int]) -> Any:
    methods = _own_methods(_Seeker(lambda owner: owner.file), spec.on_class, spec, closed)
    file = open(path_of(spec.content), "rb")
    return type("Own", (tempfile._TemporaryFileWrapper,), methods)(file, file.name, delete=False)


def _object(spec: Spec, closed: list[int]) -> Any:
    content, change = CONTENTS[spec.content], TRANSFORMS[spec.transform]
    pieces = [content[:7], content[7:]]
    made: dict[str, Callable[[], Any]] = {
        "raw with methods": lambda: _raw_with_methods(spec, closed),
        "named temporary": lambda: _named_temporary(spec, closed),
        "temporary wrapper": lambda: _temporary_wrapper(spec, closed),
        "plain": lambda: SimpleNamespace(read=io.BytesIO(content).read),
        "delegating": lambda: Delegating(io.BytesIO(content), change),
        "decoding": lambda: Decoding(content, change),
        "sequence": lambda: Sequence(pieces),
        "list": lambda: OwnList(pieces),
        "bytes": lambda: OwnBytes(content),
        "generator": lambda: (piece for piece in pieces),
        "dict": lambda: {b"one": 1, b"two": 2},
    }
    return _standard(spec, closed) if spec.kind in BASES else made[spec.kind]()


def _close_renamed(self: Any) -> None:
    close = getattr(self.renamed, "close", None)
    if close is not None:
        close()


def _in_wrapper(spec: Spec, file: Any, environ: WSGIEnvironment) -> Any:
    wrapper: Any = environ.get("wsgi.file_wrapper", wsgiref.util.FileWrapper)
    if spec.wrap == "bare":
        return file
    if spec.wrap == "closing":
        return werkzeug.wsgi.ClosingIterator(file, [lambda: None])
    if spec.wrap == "server":
        return wrapper(file)
    if spec.wrap == "subclass":
        own = {"__next__": lambda self: wrapper.__next__(self).upper()}
        return type("OwnWrapper", (wrapper,), own)(file)
    if spec.wrap == "werkzeug":
        return werkzeug.wsgi.FileWrapper(file)
    if spec.wrap == "renamed":
        # A release of Werkzeug with another private attribute.
        methods = {"__iter__": lambda self: iter(self.renamed), "close": _close_renamed}
        names = {"__module__": "werkzeug.wsgi", "__qualname__": "ClosingIterator"}
        renamed = type("ClosingIterator", (), {**methods, **names})()
        renamed.renamed = file
        return renamed
    return werkzeug.wsgi.FileWrapper(file, 1000)


def respond(spec: Spec, environ: WSGIEnvironment, start_response: Any, closed: list[int]) -> Any:
    headers = [("Content-Type", "text/csv"), ("X-Spec", spec.kind)]
    if spec.size is not None:
        headers.append(("Content-Length", f" {spec.size} "))
    body = _in_wrapper(spec, _object(spec, closed), environ)
    if spec.wrap == "response":
        response = werkzeug.Response(body, headers=headers, direct_passthrough=True)
        response.headers["Content-Type"] = headers[0][1]
        return response(environ, start_response)
    start_response("200 OK", headers)
    return body


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    return respond(Spec.of(environ["QUERY_STRING"]), environ, start_response, [])


_wrapped = WSGIFast(app)


def both(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """Serve the app at /raw, and the wrapped app at all other paths."""
    if environ["PATH_INFO"] == "/raw":
        return app(environ, start_response)
    return _wrapped(environ, start_response)
