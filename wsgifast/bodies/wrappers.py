"""The bodies inside the wrappers of frameworks and servers, which are recognised by exact type.

Types are compared by name, so that no framework is imported. Subclasses are left alone, since they
may iterate in another way.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import GeneratorType
from typing import Any

from ..errors import ConfigurationError
from .files import FileSlice, segment_of

# Wrappers around a file: the attribute that holds the file.
_FILE_WRAPPERS = {
    "bottle.WSGIFileWrapper": "fp",
    "cherrypy.lib.file_generator": "input",
    "django.core.files.base.ContentFile": "file",
    "django.core.files.base.File": "file",
    "django.core.files.images.ImageFile": "file",
    "django.core.files.uploadedfile.InMemoryUploadedFile": "file",
    "django.core.files.uploadedfile.TemporaryUploadedFile": "file",
    "django.db.models.fields.files.FieldFile": "file",
    "django.db.models.fields.files.ImageFieldFile": "file",
    "falcon.app_helpers.CloseableStreamIterator": "_stream",
    "gunicorn.http.wsgi.FileWrapper": "filelike",
    "pyramid.response.FileIter": "file",
    "waitress.buffers.ReadOnlyFileBasedBuffer": "file",
    "webob.static.FileIter": "file",
    "werkzeug.wsgi.FileWrapper": "file",
    "wsgifast.devservers.response.FileWrapper": "filelike",
    "wsgifast.doctor.recording.FileWrapper": "filelike",
    "wsgiref.util.FileWrapper": "filelike",
}
# File objects that end before the file that they read, for a framework's own answer to Range: the
# attribute that holds the file. Their `remaining` is the number of bytes left.
_FILE_RANGES = {
    "falcon.routing.static._BoundedFile": "fh",
    "servestatic.responders.SlicedFile": "fileobj",
    "whitenoise.responders.SlicedFile": "fileobj",
}
# Wrappers around any iterable that add a close() of their own: what returns the iterable.
_HOLDERS: dict[str, Callable[[Any], object]] = {
    "cherrypy._cpwsgi.AppResponse": attrgetter("iter_response"),
    "cherrypy._cpwsgi._TrappedResponse": attrgetter("iter_response"),
    "sentry_sdk.integrations.wsgi._ScopedResponse": attrgetter("_response"),
    "werkzeug.wsgi.ClosingIterator": lambda body: body._next.args[0],
    "wsgifast.bodies.segments.SegmentedBlocks": attrgetter("body"),
    "wsgifast.bodies.streams.ClosedWith": attrgetter("blocks"),
}
# Generators that encode text and pass bytes on: their module, and the argument that they iterate.
_ENCODERS = {
    "ResponseEncoder.encode_stream.<locals>.encoder": ("cherrypy.lib.encoding", "body"),
    "_iter_encoded": ("werkzeug.wrappers.response", "iterable"),
}
# Files whose iteration gives the same bytes as read().
_BINARY_FILES = (io.BytesIO, io.BufferedRandom, io.BufferedReader, io.FileIO, FileSlice)
_WHOLE: tuple[type, ...] = (list, tuple, type(iter([])), type(iter(())))

# Wrappers that users have registered.
_registered: dict[type, Callable[[Any], object]] = {}
# For each class seen so far, the function that returns what an instance holds; None for no wrapper.
_getters: dict[type, Callable[[Any], object] | None] = {}
# An app may make classes for as long as it runs; beyond so many they are looked up each time.
_MOST_CLASSES = 500


def register_file_wrapper(wrapper: type, get_file: Callable[[Any], object]) -> None:
    """Register a class that wraps a file, so that the file itself is sent.

    :param wrapper: the class. Its subclasses are not included, since they may iterate differently.
    :param get_file: takes an instance and returns the file, whose rest is the body. When the body
        has been sent, the instance's close() is called, or the file's if the instance has none.
    :raises ConfigurationError: if `wrapper` is no class or `get_file` cannot be called.
    """
    if not isinstance(wrapper, type):
        raise ConfigurationError(f"register_file_wrapper takes a class, not {wrapper!r}")
    if not callable(get_file):
        raise ConfigurationError(f"get_file must be callable, not {get_file!r}")
    _registered[wrapper] = get_file


def held_in(body: object) -> object:
    """Return the iterable inside a body's known wrappers, or the body itself.

    It is still the body whose close() has to be called.
    """
    while True:
        kind = type(body)
        getter = _getters[kind] if kind in _getters else _getter_for(kind)
        held = None if getter is None else getter(body)
        if held is None:
            return body
        body = held


def holds_all(held: object) -> bool:
    """Whether every chunk exists already, so that iterating the body does not wait."""
    return type(held) in _WHOLE


def iterated(body: Any) -> Iterable[Any]:
    """Return an iterable of a body's chunks without the work that its framework repeats for each.

    Django looks the charset up for every chunk of text, which takes longer than encoding it. It is
    still the body whose close() has to be called.
    """
    if _getter_for(type(body)) is _streamed_by_django:
        return body if body.is_async else _encoded_as_by_django(body, body._iterator)
    if _name(body) == "werkzeug.wsgi.ClosingIterator":
        inner: Iterator[Any] = body._next.args[0]
        return inner
    iterable: Iterable[Any] = body
    return iterable


def known_file(held: object) -> object | None:
    """Return the file of which an object of a known class yields the rest; None for any other."""
    file = _unwrapped(held)
    if file is None:
        name = _name(held)
        if name == "werkzeug.wsgi._RangeWrapper":
            return _werkzeug_range(held)
        if type(held) not in _BINARY_FILES and name not in _FILE_RANGES:
            return None
        file = held
    attribute = _FILE_RANGES.get(_name(file))
    return file if attribute is None else _file_range(file, attribute)


def _getter_for(kind: type) -> Callable[[Any], object] | None:
    if kind in _getters:
        return _getters[kind]
    if kind is GeneratorType:
        getter: Callable[[Any], object] | None = _encoded_by
    else:
        getter = _HOLDERS.get(_name_of(kind)) or _django_getter(kind)
    if len(_getters) < _MOST_CLASSES:
        _getters[kind] = getter
    return getter


def _encoded_by(generator: Any) -> object | None:
    """Return what a framework's generator encodes, if it has not been started."""
    encoder = _ENCODERS.get(generator.__qualname__)
    if encoder is None or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
        return None
    module, argument = encoder
    frame = generator.gi_frame
    return frame.f_locals[argument] if frame.f_globals.get("__name__") == module else None


def _django_getter(kind: type) -> Callable[[Any], object] | None:
    responses: Any = sys.modules.get("django.http.response")
    iterates = getattr(kind, "__iter__", None)
    if responses is None or iterates is None:
        return None
    if iterates is responses.HttpResponse.__iter__:
        return attrgetter("_container")
    template: Any = sys.modules.get("django.template.response")
    if template is not None and iterates is template.SimpleTemplateResponse.__iter__:
        return lambda response: response._container if response.is_rendered else None
    streaming = responses.StreamingHttpResponse
    if all(
        getattr(kind, name, None) is getattr(streaming, name)
        for name in ("__iter__", "make_bytes", "streaming_content")
    ):
        return _streamed_by_django
    return None


def _streamed_by_django(response: Any) -> object:
    file = getattr(response, "file_to_stream", None)
    return response._iterator if file is None else file


def _encoded_as_by_django(response: Any, chunks: Iterable[Any]) -> Iterator[bytes]:
    """Encode as make_bytes() does; the charset cannot change once the head has been sent."""
    charset = response.charset
    for value in chunks:
        if type(value) is bytes:
            yield value
        elif isinstance(value, str):
            yield value.encode(charset)
        else:
            yield response.make_bytes(value)


def _unwrapped(body: object) -> object | None:
    """Return the file in a wrapper, or in nested ones (Django's FieldFile); None for no wrapper."""
    file = None
    while True:
        get_file = _registered.get(type(body))
        if get_file is None:
            attribute = _FILE_WRAPPERS.get(_name(body))
            if attribute is None:
                return file
            body = getattr(body, attribute, None)
        else:
            body = get_file(body)
        file = body


def _name(value: object) -> str:
    kind: Any = type(value)  # mypy takes the class object for one without a hash
    return _name_of(kind)


@lru_cache(_MOST_CLASSES)
def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _file_range(body: Any, attribute: str) -> object:
    """Return the rest of a range as a slice of its file, or the body itself for another file."""
    file: Any = getattr(body, attribute, None)
    if getattr(body, "seeked", None) is False:  # ServeStatic seeks at the first read
        file.seek(body.start)
    segment = segment_of(file)
    if segment is None or segment.size < body.remaining:
        return body
    return FileSlice(segment._replace(size=body.remaining), body)


def _werkzeug_range(body: Any) -> FileSlice | None:
    """Return Werkzeug's range as a slice of its file; None if it has to be iterated."""
    wrapper = body.iterable
    if type(wrapper) is type(iter(_Indexed())):
        # Python's own iterator over a wrapper with __getitem__ alone, such as gunicorn's.
        wrapper = wrapper.__reduce__()[1][0]
    file: Any = _unwrapped(wrapper)
    segment = segment_of(file)
    if segment is None or segment.offset or body.read_length or body.byte_range is None:
        return None
    if body.start_byte + body.byte_range > segment.size:
        return None
    return FileSlice(segment._replace(offset=body.start_byte, size=body.byte_range), file)


class _Indexed:
    """An iterable without __iter__."""

    def __getitem__(self, index: int) -> bytes:
        raise IndexError
