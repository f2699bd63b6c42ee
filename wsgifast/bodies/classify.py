"""Classify the body that an app returned, by its type alone: nothing is read or sent.

PEP 3333 asks for an iterable of byte strings. Apps return strings, files, wrappers and worse.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from enum import Enum
from typing import Any

from .segments import SegmentedBody
from .wrappers import held_in, holds_all, is_known_wrapper, known_file

_BARE = (str, bytes, bytearray, memoryview)
_UNORDERED = (OrderedDict, dict, set, frozenset)


class Shape(Enum):
    """The kinds of bodies, by how they are handled."""

    WHOLE = "a list or tuple: every chunk exists already"
    HELD_WHOLE = "a list or tuple in known wrappers that have a close() of their own"
    BARE = "text or bytes in place of an iterable of them"
    FILE = "a file whose read() gives what its iteration does, or that cannot be iterated"
    HELD_FILE = "a file in known wrappers that have a close() of their own"
    PASS = "an object that the server itself recognises"
    STREAM = "any other iterable: its chunks are made while it is iterated"
    REFUSED = "no body at all"


# Looking up a global is faster than looking up an attribute of the class.
WHOLE, HELD_WHOLE, BARE, FILE, HELD_FILE, PASS, STREAM, REFUSED = Shape


def classify(body: Any, server_wrapper: object = None) -> tuple[Shape, Any]:
    """Classify a body.

    :param server_wrapper: the server's `wsgi.file_wrapper`, if it has one.
    :returns: the shape, and with it the body; for a list or a file, that inside any known wrapper;
        for a refused body, what the app's author should return instead.
    """
    kind = type(body)
    if kind is list or kind is tuple:
        return WHOLE, body
    held = held_in(body)
    if held is not body and holds_all(held):
        return HELD_WHOLE, held
    if isinstance(body, _BARE) and _iterates_as(kind, _BARE):
        return BARE, body
    if type(held) is SegmentedBody:
        # The wrapper around it closes it.
        return PASS, held if held is body else SegmentedBody(held.segments, body.close)
    file = known_file(held)
    if file is not None:
        return (FILE if held is body else HELD_FILE), file
    if kind is server_wrapper and not is_known_wrapper(kind):
        return PASS, body
    if not can_be_iterated(kind):
        if callable(getattr(body, "read", None)):
            return FILE, body
        return REFUSED, _advice(body)
    if (
        isinstance(body, _UNORDERED)
        and _iterates_as(kind, _UNORDERED)
        and not all(isinstance(chunk, bytes) for chunk in body)  # which servers send
    ):
        return REFUSED, _advice(body)
    return STREAM, body


def can_be_iterated(kind: type) -> bool:
    # Not isinstance(body, Iterable), which is slow, and knows no __getitem__.
    return getattr(kind, "__iter__", None) is not None or hasattr(kind, "__getitem__")


def _iterates_as(kind: type, bases: tuple[type, ...]) -> bool:
    """Whether a class iterates as the one of the standard classes that it inherits from."""
    base = next((base for base in bases if issubclass(kind, base)), None)
    return getattr(kind, "__iter__", None) is getattr(base, "__iter__", None)


def _advice(body: object) -> str:
    """Return what the app should return instead of a body."""
    if isinstance(body, dict):
        return "return bytes, for example json.dumps(...).encode()"
    if isinstance(body, (set, frozenset)):
        return "a set has no order: return a list of bytes"
    if body is None:
        return "return a list of bytes, [] for an empty body"
    if inspect.iscoroutine(body) or inspect.isasyncgen(body):
        return "an async app needs an ASGI server: wrap it with asgifast.ASGIFast"
    return "return a list of bytes, or any iterable of bytes"
