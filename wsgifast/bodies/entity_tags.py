"""The option `etag` for WSGI: add a weak ETag, and respond with 304 to a matching If-None-Match."""

from __future__ import annotations

from collections.abc import Iterable

from ..files.conditions import evaluate
from .entity_rules import NOT_IN_304, may_have_tag, weak_tag
from .file_responses import send_nothing
from .start_response import AppResponse


def respond_by_tag(
    response: AppResponse, blocks: Iterable[bytes], size: int
) -> Iterable[bytes] | None:
    """Add an ETag to a response with a body in memory. Change the response to a 304 if it matches.

    :param size: the size of the body in bytes.
    :returns: the body of the 304. None to send the app's response.
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
