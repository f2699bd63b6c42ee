"""Entity tags for responses of a WSGI app: a weak ETag, and 304 for a client that has it."""

from __future__ import annotations

from collections.abc import Iterable

from ..files.conditions import evaluate
from .entity_rules import NOT_IN_304, may_have_tag, weak_tag
from .file_responses import send_nothing
from .start_response import AppResponse


def respond_by_tag(
    response: AppResponse, blocks: Iterable[bytes], size: int
) -> Iterable[bytes] | None:
    """Give a whole body its tag. Return the body of a 304 if the client has it already.

    A step of :class:`wsgifast.WSGIFast`: None means that the response is sent.
    """
    environ = response.environ
    if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
        return None
    if not may_have_tag(response.code, size, response.headers):
        return None
    tag = weak_tag(blocks)
    response.headers.append(("ETag", tag))
    requested = environ.get("HTTP_IF_NONE_MATCH")
    if requested is None or evaluate("GET", tag, None, if_none_match=requested) != 304:
        return None
    response.status, response.code = "304 Not Modified", 304
    response.no_body, response.length = True, None
    response.headers = response.headers.without(NOT_IN_304)
    decision = response.decide_whole(0)
    if decision is not None:
        response.headers = decision.apply(response.headers)
    return send_nothing(response, None)
