"""Classify the body that an app returned, by its type alone: nothing is read or sent.

PEP 3333 asks for an iterable of byte strings. Apps return strings, files, wrappers and worse.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

from .segments import SegmentedBody
from .wrappers import held_in, holds_all, known_file


class Shape(Enum):
    """The kinds of bodies, by how they are handled."""

    WHOLE = "a list or tuple: every chunk exists already"
    HELD_WHOLE = "a list or tuple in known wrappers that have a close() of their own"
    BARE = "text or bytes in place of an iterable of them"
    FILE = "an object with read()"
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
    if isinstance(body, (str, bytes, bytearray, memoryview)):
        return BARE, body
    if type(held) is SegmentedBody:
        # The wrapper around it closes it.
        return PASS, held if held is body else SegmentedBody(held.segments, body.close)
    file = known_file(held)
    if file is not None:
        return (FILE if held is body else HELD_FILE), file
    if held is body and callable(getattr(body, "read", None)):
        return FILE, body
    if isinstance(server_wrapper, type) and isinstance(body, server_wrapper):
        return PASS, body
    advice = _advice(body)
    return (STREAM, body) if advice is None else (REFUSED, advice)


def _advice(body: object) -> str | None:
    """Return what the app should return instead of a body; None if the body can be iterated."""
    if isinstance(body, dict):
        return "return bytes, for example json.dumps(...).encode()"
    if isinstance(body, (set, frozenset)):
        return "a set has no order: return a list of bytes"
    # Not isinstance(body, Iterable), which is slow.
    if getattr(type(body), "__iter__", None) is not None or hasattr(body, "__getitem__"):
        return None
    if body is None:
        return "return a list of bytes, [] for an empty body"
    if inspect.iscoroutine(body) or inspect.isasyncgen(body):
        return "an async app needs an ASGI server: wrap it with asgifast.ASGIFast"
    return "return a list of bytes, or any iterable of bytes"
