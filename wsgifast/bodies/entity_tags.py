"""Entity tags for responses of a WSGI app: a weak ETag, and 304 for a client that has it."""

from __future__ import annotations

from collections.abc import Iterable

from ..files.conditions import evaluate
from .entity_rules import NOT_IN_304, may_have_tag, weak_tag
from .file_responses import send_nothing
from .start_response import AppResponse


def answer_by_tag(head: AppResponse, blocks: Iterable[bytes], size: int) -> Iterable[bytes] | None:
    """Give a whole body its tag. Return the body of a 304 if the client has it already.

    A step of :class:`wsgifast.WSGIFast`: None means that the response is sent.
    """
    environ = head.environ
    if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
        return None
    if not may_have_tag(head.code, size, head.headers):
        return None
    tag = weak_tag(blocks)
    head.headers.append(("ETag", tag))
    asked = environ.get("HTTP_IF_NONE_MATCH")
    if asked is None or evaluate("GET", tag, None, if_none_match=asked) != 304:
        return None
    head.status, head.code = "304 Not Modified", 304
    head.no_body, head.length = True, None
    head.headers = head.headers.without(NOT_IN_304)
    decision = head.decide_whole(0)
    if decision is not None:
        head.headers = decision.apply(head.headers)
    return send_nothing(head, None)
