"""Classify the body that an app has returned by its type, without reading its bytes.

PEP 3333 requires an iterable of byte strings. But apps also return strings, files, wrappers of
files, and objects that cannot be sent.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from functools import partial
from typing import Any

from .body import Bare, Body, File, Refusal, Segments, ServerFile, Stream, Whole
from .files import FileSlice, SegmentedBody, close_body, segment_of
from .wrappers import FILE_WRAPPERS, find_file, is_whole, name_of, unwrapped_body

_BARE = (str, bytes, bytearray, memoryview)
_UNORDERED = (OrderedDict, dict, set, frozenset)


def classify(body: Any, server_wrapper: object = None) -> Body:
    """Return an object of the class for this kind of body.

    :param body: the object that the app has returned.
    :param server_wrapper: the server's `wsgi.file_wrapper`, if it has one.
    """
    kind = type(body)
    if kind is list or kind is tuple:
        return Whole(body, body)
    inner = unwrapped_body(body)
    if inner is not body and is_whole(inner):
        return Whole(inner, body)
    if isinstance(body, _BARE) and _iterates_as(kind, _BARE):
        return Bare(body, body)
    if type(inner) is SegmentedBody:
        if inner is not body:  # closing the outer wrapper closes the segmented body
            inner = SegmentedBody(inner.segments, partial(close_body, body))
        return Segments(inner, body)
    # A server never iterates its own file wrapper. It calls read(), or uses fileno().
    found = find_file(inner, iterated=type(inner) is not server_wrapper)
    if found is not None:
        file, segment = found
        # A Werkzeug range has no close() for its file.
        is_range = inner is body and type(file) is FileSlice
        return File(file, body, segment, file if is_range or not hasattr(body, "close") else body)
    if kind is server_wrapper and name_of(kind) not in FILE_WRAPPERS:
        return ServerFile(body, body)  # for a wrapper in FILE_WRAPPERS, the file inside is sent
    if getattr(kind, "__iter__", None) is None and not can_be_iterated(kind):
        if callable(getattr(body, "read", None)):
            return File(body, body, segment_of(body), body)
        return Refusal(body, body, _advice(body))
    if (
        isinstance(body, _UNORDERED)
        and _iterates_as(kind, _UNORDERED)
        and not all(isinstance(chunk, bytes) for chunk in body)  # servers can send bytes
    ):
        return Refusal(body, body, _advice(body))
    return Stream(inner, body)


def can_be_iterated(kind: type) -> bool:
    # isinstance(body, Iterable) is slow, and returns False for a class with __getitem__() alone.
    return getattr(kind, "__iter__", None) is not None or hasattr(kind, "__getitem__")


def _iterates_as(kind: type, bases: tuple[type, ...]) -> bool:
    """Return whether a class has the same __iter__() as its base class in `bases`."""
    base = next((base for base in bases if issubclass(kind, base)), None)
    return getattr(kind, "__iter__", None) is getattr(base, "__iter__", None)


def _advice(body: object) -> str:
    """Return the advice for an app that returned something other than a body."""
    if isinstance(body, dict):
        return "return bytes, for example json.dumps(...).encode()"
    if isinstance(body, (set, frozenset)):
        return "a set has no order: return a list of bytes"
    if body is None:
        return "return a list of bytes, [] for an empty body"
    if inspect.iscoroutine(body) or inspect.isasyncgen(body):
        return "an async app needs an ASGI server: wrap it with asgifast.ASGIFast"
    return "return a list of bytes, or any iterable of bytes"
