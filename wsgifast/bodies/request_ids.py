"""Request ids: the X-Request-ID of a proxy or a new one, and the trace id of traceparent.

An id identifies one request. A trace id identifies a request and all requests that it causes.
WSGIFast and ASGIFast use the rules. Only WSGIFast uses the stage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from .access_log import REQUEST_ID, TRACE_ID
from .start_response import AppResponse, Respond

#: FastWorker's key in the environ. Its value is a function that accepts the environ, and returns
#: whether the peer is a trusted proxy.
TRUSTS_PEER: Final = "wsgifast.trusts_peer"
# No quotes, spaces or separators of lists, so that an id is one word in a header and in any log.
_ID = re.compile(r"[A-Za-z0-9._~:@/+=-]{1,128}")
# W3C Trace Context, section 3.2.2. Later versions may have further fields after a dash.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_FIRST_VERSION, _NO_VERSION = "00", "ff"
_RANDOM_BYTES = 16


def request_id_from(sent: str | None) -> str:
    """Return the id of a request: the one that was sent, or a new one of 32 hexadecimal digits.

    :param sent: the value of X-Request-ID. It must be 1 to 128 letters, digits and ``._~:@/+=-``.
        Any other value is ignored, since it could be two headers, or text that harms a log.
    """
    if sent is not None and _ID.fullmatch(sent):
        return sent
    return os.urandom(_RANDOM_BYTES).hex()


def trace_id_from(traceparent: str | None) -> str | None:
    """Return the trace id of a traceparent header, or None if it is missing or malformed."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, parent_id, more = found.groups()
    if version == _NO_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    is_invalid = not trace_id.strip("0") or not parent_id.strip("0")
    return None if is_invalid else trace_id


def request_ids_stage(respond: Respond) -> Respond:
    """Return a stage that adds an id to each request's environ and to its response's headers."""

    def call(response: AppResponse) -> Iterable[bytes]:
        environ = response.environ
        if REQUEST_ID in environ:  # from a WSGIFast around this one
            return respond(response)
        sent, traceparent = environ.get("HTTP_X_REQUEST_ID"), environ.get("HTTP_TRACEPARENT")
        if sent is not None or traceparent is not None:
            trusts: Callable[[dict[str, Any]], bool] | None = environ.get(TRUSTS_PEER)
            if trusts is not None and not trusts(environ):
                sent = traceparent = None
        request_id = request_id_from(sent)
        environ[REQUEST_ID] = environ["HTTP_X_REQUEST_ID"] = request_id
        trace_id = trace_id_from(traceparent)
        if trace_id is not None:
            environ[TRACE_ID] = trace_id
        response.edits = [*response.edits, partial(_add_header, request_id)]
        return respond(response)

    return call


def _add_header(request_id: str, response: AppResponse) -> None:
    """Add X-Request-ID to a response, unless the app has set this header."""
    if response.headers.get("x-request-id") is None:
        response.headers.append(("X-Request-ID", request_id))
