"""What did the app return? A decision by type alone: nothing is read, nothing is sent.

PEP 3333 asks for an iterable of byte strings. Apps return strings, files, wrappers and worse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from ..errors import ConfigurationError
from .files import FileSlice, SegmentedBody, segment_of

__all__ = [
    "BARE",
    "FILE",
    "PASS",
    "REFUSED",
    "STREAM",
    "WHOLE",
    "Shape",
    "classify",
    "register_file_wrapper",
]


class Shape(Enum):
    """What an app returned, by what has to be done about it."""

    WHOLE = "a list or tuple: every chunk exists already"
    BARE = "text or bytes where an iterable of them was meant"
    FILE = "something that is read"
    PASS = "what the server itself knows how to send"
    STREAM = "any other iterable: a chunk exists once it is asked for"
    REFUSED = "nothing that can be a body"


# A global is found faster than an attribute of the class.
WHOLE, BARE, FILE, PASS, STREAM, REFUSED = Shape

# Wrappers around a file that frameworks and servers hand out, and the attribute that holds the
# file. Named, not imported: only the ones that an app uses are ever loaded.
_FILE_WRAPPERS = {
    "bottle.WSGIFileWrapper": "fp",
    "cherrypy.lib.file_generator": "input",
    "falcon.app_helpers.CloseableStreamIterator": "_stream",
    "gunicorn.http.wsgi.FileWrapper": "filelike",
    "pyramid.response.FileIter": "file",
    "waitress.buffers.ReadOnlyFileBasedBuffer": "file",
    "webob.static.FileIter": "file",
    "werkzeug.wsgi.FileWrapper": "file",
    "wsgifast.devservers.filewrapper.FileWrapper": "file",
    "wsgiref.util.FileWrapper": "filelike",
}
# Files that end before the file does which they read, for an app's own answer to Range; the
# attribute that holds the file. `remaining` is how many bytes are left.
_FILE_RANGES = {
    "falcon.routing.static._BoundedFile": "fh",
    "servestatic.responders.SlicedFile": "fileobj",
    "whitenoise.responders.SlicedFile": "fileobj",
}
# Wrappers that users have registered, by class.
_REGISTERED: dict[type, Callable[[Any], object]] = {}


def register_file_wrapper(wrapper: type, get_file: Callable[[Any], object]) -> None:
    """Teach wsgifast a class that wraps a file, so that the file is sent and not its iteration.

    :param wrapper: the class; its subclasses are not meant, since they may iterate differently.
    :param get_file: is given an instance, returns the readable file whose rest is the body. The
        file's own close() is called when the body has been sent, and not the instance's.
    :raises ConfigurationError: if the first is no class or the second cannot be called.
    """
    if not isinstance(wrapper, type):
        raise ConfigurationError(f"register_file_wrapper takes a class, not {wrapper!r}")
    if not callable(get_file):
        raise ConfigurationError(f"get_file must be callable, not {get_file!r}")
    _REGISTERED[wrapper] = get_file


def classify(body: Any, server_wrapper: object = None) -> tuple[Shape, Any]:
    """Tell what a body is.

    :param server_wrapper: the server's `wsgi.file_wrapper`, if it has one.
    :returns: the shape, and with it: the body itself; for a file the file, out of any wrapper that
        is known; for what is refused the advice to its author.
    """
    kind = type(body)
    if kind is list or kind is tuple:
        return WHOLE, body
    if isinstance(body, (str, bytes, bytearray, memoryview)):
        return BARE, body
    file = _file_in(body)
    if file is not None:
        return FILE, file
    if isinstance(server_wrapper, type) and isinstance(body, server_wrapper):
        return PASS, body
    if kind is SegmentedBody:
        return PASS, body
    advice = _advice(body)
    return (STREAM, body) if advice is None else (REFUSED, advice)


def _file_in(body: object) -> object | None:
    """The file that a body is, or wraps; None if it is no file."""
    file = _unwrapped(body)
    if file is None:
        if _name(body) == "werkzeug.wsgi._RangeWrapper":
            return _werkzeug_range(body)
        if not callable(getattr(body, "read", None)):
            return None
        file = body
    attribute = _FILE_RANGES.get(_name(file))
    return file if attribute is None else _file_range(file, attribute)


def _unwrapped(body: object) -> object | None:
    get_file = _REGISTERED.get(type(body))
    if get_file is not None:
        return get_file(body)
    attribute = _FILE_WRAPPERS.get(_name(body))
    return None if attribute is None else getattr(body, attribute, None)


def _name(value: object) -> str:
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}"


def _file_range(body: Any, attribute: str) -> object:
    """The rest of a range as a slice of its file, or the body itself where that is no real file."""
    file: Any = getattr(body, attribute, None)
    if getattr(body, "seeked", None) is False:  # ServeStatic's, which has not been read from yet
        file.seek(body.start)
    segment = segment_of(file)
    if segment is None or segment.size < body.remaining:
        return body
    return FileSlice(segment._replace(size=body.remaining), body)


def _werkzeug_range(body: Any) -> FileSlice | None:
    """Werkzeug's range as a slice of its file; None where it has to be iterated."""
    wrapper = body.iterable
    if type(wrapper) is type(iter(_Indexed())):
        # Of a wrapper that is only indexed, such as gunicorn's, Werkzeug keeps Python's iterator.
        wrapper = wrapper.__reduce__()[1][0]
    file: Any = _unwrapped(wrapper)
    segment = segment_of(file)
    if segment is None or segment.offset or body.read_length or body.byte_range is None:
        return None
    if body.start_byte + body.byte_range > segment.size:
        return None
    return FileSlice(segment._replace(offset=body.start_byte, size=body.byte_range), file)


class _Indexed:
    """The least that iter() takes: no __iter__."""

    def __getitem__(self, index: int) -> bytes:
        raise IndexError


def _advice(body: object) -> str | None:
    """What to return instead of a body that nothing can make right; None for an acceptable one."""
    if inspect.iscoroutine(body) or inspect.isasyncgen(body):
        return "an async app needs an ASGI server: wrap it with asgifast.ASGIFast"
    if body is None:
        return "return a list of bytes, [] for an empty body"
    if isinstance(body, dict):
        return "return bytes, for example json.dumps(...).encode()"
    if isinstance(body, (set, frozenset)):
        return "a set has no order: return a list of bytes"
    if not isinstance(body, Iterable) and not hasattr(body, "__getitem__"):
        return "return a list of bytes, or any iterable of bytes"
    return None
