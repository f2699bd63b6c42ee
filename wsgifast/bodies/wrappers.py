"""The wrappers that frameworks and servers put around bodies, and the bodies inside them.

wsgifast recognizes a wrapper by the name of its class, so it imports no framework. It does not
unwrap a subclass of such a class, because a subclass may iterate in another way.
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
from ..sockets.sending import READING, FileSegment, overrides_reading
from .files import FileSlice, inspect_file, is_standard, segment_of

logger = logging.getLogger("wsgifast")

# Classes that wrap a file, and the attribute with the file.
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
# Classes of frameworks that read a range of a file, and the attribute with the file. Their
# attribute `remaining` is the number of unread bytes of the range.
_FILE_RANGES = {
    "falcon.routing.static._BoundedFile": "fh",
    "servestatic.responders.SlicedFile": "fileobj",
    "whitenoise.responders.SlicedFile": "fileobj",
}
_WERKZEUG_RANGE = "werkzeug.wsgi._RangeWrapper"
# Classes that wrap an iterable and add a close(), and a function that returns the iterable.
_WRAPPERS: dict[str, Callable[[Any], object]] = {
    "cherrypy._cpwsgi.AppResponse": attrgetter("iter_response"),
    "cherrypy._cpwsgi._TrappedResponse": attrgetter("iter_response"),
    "sentry_sdk.integrations.wsgi._ScopedResponse": attrgetter("_response"),
    "werkzeug.wsgi.ClosingIterator": lambda body: _closing_iterators(body),
    "wsgifast.bodies.files.SegmentedBlocks": attrgetter("body"),
    "wsgifast.bodies.body.ClosedWith": attrgetter("blocks"),
}
# Generators that encode text and yield bytes unchanged: their module, and the name of the argument
# over which they iterate.
_ENCODERS = {
    "ResponseEncoder.encode_stream.<locals>.encoder": ("cherrypy.lib.encoding", "body"),
    "_iter_encoded": ("werkzeug.wrappers.response", "iterable"),
}
# Classes whose close() only closes the inner body, and the attribute with the body.
_TRANSPARENT = {"sentry_sdk.integrations.wsgi._ScopedResponse": "_response"}
_FILES = (io.BufferedRandom, io.BufferedReader, io.FileIO)
# Methods that the wrapper of a file may call during its own iteration.
_ITERATING = READING | {"chunks"}
_WHOLE: tuple[type, ...] = (list, tuple, type(iter([])), type(iter(())))
# The classes that were passed to register_file_wrapper(), and their functions.
_registered: dict[type, Callable[[Any], object]] = {}
# A cache of the functions that unwrap instances of a class. None if the class is not a wrapper.
_getters: dict[type, Callable[[Any], object] | None] = {}
# The most classes in a cache. An app may make new classes at each request.
_MOST_CLASSES = 500


def register_file_wrapper(wrapper: type, get_file: Callable[[Any], object]) -> None:
    """Register a class that wraps a file, so that the file itself is sent.

    :param wrapper: the class. Its subclasses are not registered, because they may iterate in
        another way.
    :param get_file: a function that returns the file of an instance. The file is sent from its
        current position. Then the close() of the instance is called. If the instance has no
        close(), the close() of the file is called.
    :raises ConfigurationError: if `wrapper` is not a class or `get_file` cannot be called.
    """
    if not isinstance(wrapper, type):
        raise ConfigurationError(f"register_file_wrapper takes a class, not {wrapper!r}")
    if not callable(get_file):
        raise ConfigurationError(f"get_file must be callable, not {get_file!r}")
    _registered[wrapper] = get_file


def unwrapped_body(body: object) -> object:
    """Return the iterable inside the known wrappers of a body. Return the body if there are none.

    The caller still has to call the close() of the body.
    """
    try:
        while True:
            kind = type(body)
            getter = _getters[kind] if kind in _getters else _getter_for(kind)
            inner = None if getter is None else getter(body)
            if inner is None:
                return body
            body = inner
    except Exception:  # noqa: BLE001 - a release of the framework has another attribute
        return body


def is_whole(inner: object) -> bool:
    """Return whether all chunks of a body exist, so that iteration never waits for the app."""
    return type(inner) in _WHOLE


def iterated(body: Any) -> Iterable[Any]:
    """Return an iterable of the chunks of a body that is faster than the framework's own.

    For example, Django looks up the charset for each chunk of text, which takes longer than
    encoding the chunk. The caller still has to call the close() of the body.
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
    """Return the file whose bytes an object of a known class yields. None for other objects."""
    found = find_file(inner)
    return None if found is None else found[0]


def find_file(inner: object, *, iterated: bool = True) -> tuple[object, FileSegment | None] | None:
    """Return the file whose bytes an object of a known class yields, and its part for sendfile.

    :param iterated: False if the object reads the file by read() alone.
    :returns: None for other objects, and if the file is not of a standard class. Such an object has
        to be iterated. The part is None if sendfile cannot send the file.
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
        is_standard_file, segment = inspect_file(file, iterated=iterated)
        return (file, segment) if is_standard_file else None
    except Exception:  # noqa: BLE001 - the file is closed, or a release has other attributes
        return None


def closes_no_more_than(body: object, file: object) -> bool:
    """Return whether the close() of a body only closes its file.

    Any other close() may run code of the app, which may remove the file.
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
        return True  # this close() closes uploads
    attribute = FILE_WRAPPERS.get(name_of(type(owner))) or _TRANSPARENT.get(name_of(type(owner)))
    return attribute is not None and closes_no_more_than(getattr(owner, attribute), file)


def closes_file_alone(close: Any) -> bool:
    """Return whether the close() of a body closes a file of Python's own classes, and no more."""
    slice_ = getattr(close, "__self__", None)
    if type(slice_) is FileSlice:
        return closes_file_alone(getattr(slice_.owner, "close", None))
    return _is_of_pythons_file(close)


def _is_of_pythons_file(close: Any) -> bool:
    file = getattr(close, "__self__", None)
    if type(file) not in _FILES:  # so a method of the app is not called below
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
    """Return the iterable that a generator of _ENCODERS encodes. None if the generator has started.

    For other generators the result is None, too.
    """
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
    """Return whether Django has all names that are used to unwrap its responses.

    If a name is missing, log a warning.
    """
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
    """Return the iterable in Werkzeug's ClosingIterator. None if its `_next` is not next()."""
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
    """Encode chunks like make_bytes(), but look up the charset only once.

    The charset cannot change after the headers were sent.
    """
    charset = response.charset
    for value in chunks:
        if type(value) is bytes:
            yield value
        elif isinstance(value, str):
            yield value.encode(charset)
        else:
            yield response.make_bytes(value)


def _unwrapped(body: object) -> object | None:
    """Return the file in a wrapper, or in nested wrappers such as Django's FieldFile.

    :returns: None if the object is not a wrapper, or if it has to be iterated.
    """
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
                return None  # the iterators of Django begin at the start of the file
        else:
            file = get_file(body)
        body = file


def _iterates_as_its_class(wrapper: object, file: object) -> bool:
    """Return whether an instance of a wrapper overrides no method that iteration may call.

    Methods of its file are not overridden methods.
    """
    own = getattr(wrapper, "__dict__", {})
    return all(own[name] == getattr(file, name, None) for name in _ITERATING & own.keys())


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# A function that returns the module and the name of a class. Its parameter is Any, because mypy
# considers classes unhashable.
name_of: Callable[[Any], str] = lru_cache(_MOST_CLASSES)(_qualified_name)


@lru_cache(_MOST_CLASSES)
def _is_known(kind: Any) -> bool:
    """Return whether instances of a class may wrap a file. The name of the class decides."""
    name = name_of(kind)
    return name == _WERKZEUG_RANGE or name in FILE_WRAPPERS or name in _FILE_RANGES


def _file_range(body: Any, attribute: str) -> object | None:
    """Return the unread part of a framework's range as a slice of its file.

    :returns: the body itself if it has to be read. None if it has to be iterated.
    """
    file: Any = getattr(body, attribute)
    if not is_standard(file) or overrides_reading(body):
        return None
    if getattr(body, "seeked", None) is False:  # ServeStatic seeks at the first read
        file.seek(body.start)
    segment = segment_of(file)
    if segment is not None and segment.size >= body.remaining:
        return FileSlice(segment._replace(size=body.remaining), body)
    to_read: object = body
    return to_read


def _werkzeug_range(body: Any) -> FileSlice | None:
    """Return a range of Werkzeug as a slice of its file. None if the range has to be iterated."""
    wrapper = body.iterable
    if type(wrapper) is type(iter(_Indexed())):
        # This is Python's iterator over a class that has only __getitem__(). gunicorn's file
        # wrapper is such a class.
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
