"""Add a weak ETag to responses of an ASGI app, and send 304 to clients that have the body."""

from __future__ import annotations

from wsgifast.bodies.entity_rules import NOT_IN_304, may_have_tag, weak_tag
from wsgifast.files.conditions import evaluate

from .messages import Message, Scope, text_headers, whole_body


def tagged(scope: Scope, start: Message, message: Message) -> tuple[Message, Message]:
    """Return a start message and a body message, with an ETag if they are a whole response.

    :param scope: the scope that the app gets. Its If-None-Match contains the app's own entity tags.
    :returns: the messages of a 304 if the client has the body already.
    """
    body = whole_body(message)
    if body is None or scope["method"] not in ("GET", "HEAD"):
        return start, message
    headers = list(start.get("headers", ()))
    if not may_have_tag(start["status"], len(body), text_headers(headers)):
        return start, message
    tag = weak_tag((body,))
    headers.append((b"etag", tag.encode()))
    requested = b", ".join(value for name, value in scope["headers"] if name == b"if-none-match")
    if (
        not requested
        or evaluate("GET", tag, None, if_none_match=requested.decode("latin-1")) != 304
    ):
        return {**start, "headers": headers}, message
    remaining = [each for each in headers if each[0].decode("latin-1").lower() not in NOT_IN_304]
    return {**start, "status": 304, "headers": remaining}, {**message, "body": b""}
