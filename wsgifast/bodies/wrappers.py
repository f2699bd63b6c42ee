"""The wrappers that frameworks and servers put around bodies, and the bodies inside them.

Wrappers are recognised by their exact type. Types are compared by name, so that no framework is
imported. Subclasses are left alone, since they may iterate in another way.
"""

from __future__ import annotations

import inspect
import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from operator import attrgetter
from types import GeneratorType
from typing import Any

from ..errors import ConfigurationError
from ..sockets.sending import READING, FileSegment, has_reading_of_its_own
from .files import FileSlice, examined, is_standard, segment_of

logger = logging.getLogger("wsgifast")

# Wrappers around a file: the attribute with the file.
FILE_WRAPPERS = {
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
    "wsgifast.commands.doctor.recording.FileWrapper": "filelike",
    "wsgiref.util.FileWrapper": "filelike",
}
# File objects that end before the file that they read, for a framework's own response to Range: the
# attribute with the file. Their `remaining` is the number of bytes left.
_FILE_RANGES = {
    "falcon.routing.static._BoundedFile": "fh",
    "servestatic.responders.SlicedFile": "fileobj",
    "whitenoise.responders.SlicedFile": "fileobj",
}
_WERKZEUG_RANGE = "werkzeug.wsgi._RangeWrapper"
# Wrappers around any iterable that add a close() of their own, with a function for the iterable.
_WRAPPERS: dict[str, Callable[[Any], object]] = {
    "cherrypy._cpwsgi.AppResponse": attrgetter("iter_response"),
    "cherrypy._cpwsgi._TrappedResponse": attrgetter("iter_response"),
    "sentry_sdk.integrations.wsgi._ScopedResponse": attrgetter("_response"),
    "werkzeug.wsgi.ClosingIterator": lambda body: _closing_iterators(body),
    "wsgifast.bodies.files.SegmentedBlocks": attrgetter("body"),
    "wsgifast.bodies.body.ClosedWith": attrgetter("blocks"),
}
# Generators that encode text and pass bytes on: their module, and the argument that they iterate.
_ENCODERS = {
    "ResponseEncoder.encode_stream.<locals>.encoder": ("cherrypy.lib.encoding", "body"),
    "_iter_encoded": ("werkzeug.wrappers.response", "iterable"),
}
# Wrappers with a close() that only closes the inner body.
_TRANSPARENT = {"sentry_sdk.integrations.wsgi._ScopedResponse": "_response"}
_FILES = (io.BufferedRandom, io.BufferedReader, io.FileIO)
# Methods that a wrapper of a file may call on itself while it is iterated.
_ITERATING = READING | {"chunks"}
_WHOLE: tuple[type, ...] = (list, tuple, type(iter([])), type(iter(())))
# Wrappers that users have registered.
_registered: dict[type, Callable[[Any], object]] = {}
# For each class seen so far, the function that unwraps an instance. None for no wrapper.
_getters: dict[type, Callable[[Any], object] | None] = {}
# An app may make classes for as long as it runs. Beyond so many they are looked up each time.
_MOST_CLASSES = 500


def register_file_wrapper(wrapper: type, get_file: Callable[[Any], object]) -> None:
    """Register a class that wraps a file, so that the file itself is sent.

    :param wrapper: the class. Its subclasses are not included, since they may iterate differently.
    :param get_file: a function that returns the file of an instance. The body is the file from its
        current position. When the body has been sent, the instance's close() is called, or the
        file's close() if the instance has none.
    :raises ConfigurationError: if `wrapper` is not a class or `get_file` cannot be called.
    """
    if not isinstance(wrapper, type):
        raise ConfigurationError(f"register_file_wrapper takes a class, not {wrapper!r}")
    if not callable(get_file):
        raise ConfigurationError(f"get_file must be callable, not {get_file!r}")
    _registered[wrapper] = get_file


def unwrapped_body(body: object) -> object:
    """Return the iterable inside a body's known wrappers, or the body itself.

    The caller still has to call the body's close().
    """
    try:
        while True:
            kind = type(body)
            getter = _getters[kind] if kind in _getters else _getter_for(kind)
            inner = None if getter is None else getter(body)
            if inner is None:
                return body
            body = inner
    except Exception:  # noqa: BLE001 - a release has another attribute: the body can be iterated
        return body


def is_whole(inner: object) -> bool:
    """Whether every chunk exists already, so that iterating the body does not wait."""
    return type(inner) in _WHOLE


def iterated(body: Any) -> Iterable[Any]:
    """Return an iterable of a body's chunks without the work that its framework repeats for each.

    Django looks the charset up for every chunk of text, which takes longer than encoding it. The
    caller still has to call the body's close().
    """
    if _getter_for(type(body)) is _streamed_by_django:
        chunks = getattr(body, "_iterator", None)
        if body.is_async or chunks is None or "make_bytes" in vars(body):
            return body  # type: ignore[no-any-return]
        return _encoded_as_by_django(body, chunks)
    if name_of(type(body)) == "werkzeug.wsgi.ClosingIterator":
        inner = _closing_iterators(body)
        return body if inner is None else inner  # type: ignore[no-any-return]
    iterable: Iterable[Any] = body
    return iterable


def known_file(inner: object) -> object | None:
    """Return the file from which an object of a known class yields. None for any other object."""
    found = examined_file(inner)
    return None if found is None else found[0]


def examined_file(
    inner: object, *, iterated: bool = True
) -> tuple[object, FileSegment | None] | None:
    """Return the file from which an object of a known class yields, and the part of it to send.

    :param iterated: False if the object only calls its file's read().
    :returns: None for any other object, and if the file is not of a standard class: then the object
        is iterated, so that read() is called as its author expects. The part is None if the file
        has to be read.
    """
    kind: Any = type(inner)
    try:
        file: Any = inner
        if _is_known(kind) or kind in _registered:
            if name_of(kind) == _WERKZEUG_RANGE:
                found: object = _werkzeug_range(inner)
                return None if found is None else (found, segment_of(found))
            file = _unwrapped(inner) or inner
            attribute = _FILE_RANGES.get(name_of(type(file)))
            if attribute is not None:
                found = _file_range(file, attribute)
                return None if found is None else (found, segment_of(found))
            if kind in _registered and callable(file.read):
                return file, segment_of(file)
        is_standard_file, segment = examined(file, iterated=iterated)
        return (file, segment) if is_standard_file else None
    except Exception:  # noqa: BLE001 - a closed file, or a release with other attributes
        return None


def closes_no_more_than(body: object, file: object) -> bool:
    """Whether a body's close() is known to close only the file.

    Otherwise it may run the app's code, which may remove the file.
    """
    close = getattr(body, "close", None)
    return close is None or _closes_no_more(close, file)


def _closes_no_more(close: Any, file: Any) -> bool:
    owner = getattr(close, "__self__", None)
    if owner is file:
        return _is_of_pythons_file(close)
    if owner is None or getattr(close, "__func__", None) is not getattr(type(owner), "close", None):
        return False
    module = getattr(close, "__module__", "")
    if module == "django.http.response":
        return fits_django() and all(
            _closes_no_more(closer, file) for closer in owner._resource_closers
        )
    if module == "django.http.request":
        return True  # it closes uploads
    attribute = FILE_WRAPPERS.get(name_of(type(owner))) or _TRANSPARENT.get(name_of(type(owner)))
    return attribute is not None and closes_no_more_than(getattr(owner, attribute), file)


def closes_file_alone(close: Any) -> bool:
    """Whether a body's close() closes a file of Python's own, and runs nothing of the app's."""
    slice_ = getattr(close, "__self__", None)
    if type(slice_) is FileSlice:
        return closes_file_alone(getattr(slice_.owner, "close", None))
    return _is_of_pythons_file(close)


def _is_of_pythons_file(close: Any) -> bool:
    file = getattr(close, "__self__", None)
    if type(file) not in _FILES:  # no method of the app's own objects is called
        return False
    raw = getattr(file, "raw", file)
    return type(raw) is io.FileIO and "close" not in vars(raw) and close.__name__ == "close"


def _getter_for(kind: type) -> Callable[[Any], object] | None:
    if kind in _getters:
        return _getters[kind]
    if kind is GeneratorType:
        getter: Callable[[Any], object] | None = _encoded_by
    else:
        getter = _WRAPPERS.get(name_of(kind)) or _django_getter(kind)
    if len(_getters) < _MOST_CLASSES:
        _getters[kind] = getter
    return getter


def _encoded_by(generator: Any) -> object | None:
    """Return the iterable that a framework's generator encodes, if it has not been started."""
    encoder = _ENCODERS.get(generator.__qualname__)
    if encoder is None or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
        return None
    module, argument = encoder
    frame = generator.gi_frame
    return frame.f_locals[argument] if frame.f_globals.get("__name__") == module else None


def _django_getter(kind: type) -> Callable[[Any], object] | None:
    responses: Any = sys.modules.get("django.http.response")
    iterates = getattr(kind, "__iter__", None)
    if responses is None or iterates is None or not fits_django():
        return None
    if iterates is responses.HttpResponse.__iter__:
        return list
    template: Any = sys.modules.get("django.template.response")
    if template is not None and iterates is template.SimpleTemplateResponse.__iter__:
        return lambda response: list(response) if response.is_rendered else None
    streaming = responses.StreamingHttpResponse
    if all(
        getattr(kind, name, None) is getattr(streaming, name)
        for name in ("__iter__", "make_bytes", "streaming_content")
    ):
        return _streamed_by_django
    return None


@cache
def fits_django() -> bool:
    """Return whether Django has the names by which its responses are unwrapped. Log if not."""
    from ..hosts import DJANGO

    missing = DJANGO.missing("WSGIFast")
    if missing:
        logger.warning(
            "%s, which WSGIFast uses. So responses of Django are sent as Django iterates them. "
            "Tested is Django %s",
            DJANGO.lacks(missing),
            ", ".join(DJANGO.tested),
        )
    return not missing


def _closing_iterators(body: Any) -> Any | None:
    """Return the iterable in Werkzeug's ClosingIterator. None if another takes the next item."""
    following = getattr(body, "_next", None)
    if type(following) is partial and following.func is next and len(following.args) == 1:
        return following.args[0]
    return None


def _streamed_by_django(response: Any) -> object | None:
    if "make_bytes" in vars(response):
        return None
    file: object = getattr(response, "file_to_stream", None)
    if file is None:
        file = response._iterator
    return file


def _encoded_as_by_django(response: Any, chunks: Iterable[Any]) -> Iterator[bytes]:
    """Encode as make_bytes() does. The charset cannot change once the headers have been sent."""
    charset = response.charset
    for value in chunks:
        if type(value) is bytes:
            yield value
        elif isinstance(value, str):
            yield value.encode(charset)
        else:
            yield response.make_bytes(value)


def _unwrapped(body: object) -> object | None:
    """Return the file in a wrapper, or in nested ones (Django's FieldFile). None for no wrapper."""
    file = None
    while True:
        get_file = _registered.get(type(body))
        if get_file is None:
            name = name_of(type(body))
            attribute = FILE_WRAPPERS.get(name)
            if attribute is None:
                return file
            file = getattr(body, attribute)
            if not _iterates_as_its_class(body, file):
                return None
            if name.startswith("django.") and file.tell() != 0:
                return None  # iterating one of Django's begins at the file's start
        else:
            file = get_file(body)
        body = file


def _iterates_as_its_class(wrapper: object, file: object) -> bool:
    """Whether a wrapper has no method on the instance but its file's own ones."""
    own = getattr(wrapper, "__dict__", {})
    return all(own[name] == getattr(file, name, None) for name in _ITERATING & own.keys())


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# The module and the name of a class. Its type says Any since mypy takes classes for unhashable.
name_of: Callable[[Any], str] = lru_cache(_MOST_CLASSES)(_qualified_name)


@lru_cache(_MOST_CLASSES)
def _is_known(kind: Any) -> bool:
    """Return whether a class may wrap a file, by its name."""
    name = name_of(kind)
    return name == _WERKZEUG_RANGE or name in FILE_WRAPPERS or name in _FILE_RANGES


def _file_range(body: Any, attribute: str) -> object | None:
    """Return the unread part of a range as a slice of its file.

    The result is the body itself if it has to be read, and None if it has to be iterated.
    """
    file: Any = getattr(body, attribute)
    if not is_standard(file) or has_reading_of_its_own(body):
        return None
    if getattr(body, "seeked", None) is False:  # ServeStatic seeks at the first read
        file.seek(body.start)
    segment = segment_of(file)
    if segment is not None and segment.size >= body.remaining:
        return FileSlice(segment._replace(size=body.remaining), body)
    to_read: object = body
    return to_read


def _werkzeug_range(body: Any) -> FileSlice | None:
    """Return Werkzeug's range as a slice of its file. None if it has to be iterated."""
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
