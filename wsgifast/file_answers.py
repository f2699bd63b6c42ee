"""A WSGI request's facts, and ranges and conditions for files that apps return without either.

What nginx's output filters do for its own files: the app answers 200 with a file, and the answer to
Range, If-Range and the preconditions is made of that.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .files import Header, Plan, Representation, RequestFacts, stat_etag
from .sockets.sendfile import FileSegment

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = ["plan_file_body", "request_facts"]

# An app that sends one of these has settled the matter itself: a part, or a framing of its own.
_SETTLED = frozenset({"content-range", "transfer-encoding"})
_VALIDATORS = frozenset({"etag", "last-modified"})


def request_facts(environ: WSGIEnvironment) -> RequestFacts:
    """Gather from an environ what decides how a file is answered."""
    get = environ.get
    # What RequestFacts(...) does, without the call of a Python function.
    return tuple.__new__(
        RequestFacts,
        (
            environ["REQUEST_METHOD"],
            get("HTTP_ACCEPT_ENCODING"),
            get("HTTP_RANGE"),
            get("HTTP_IF_RANGE"),
            get("HTTP_IF_MATCH"),
            get("HTTP_IF_UNMODIFIED_SINCE"),
            get("HTTP_IF_NONE_MATCH"),
            get("HTTP_IF_MODIFIED_SINCE"),
        ),
    )


def plan_file_body(
    facts: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    *,
    ranges: bool = True,
    conditional: bool = True,
) -> Plan | None:
    """Plan the answer to a GET or HEAD that the app answered with 200 and a file.

    The app's headers and validators are kept. Where it gave neither an ETag nor a Last-Modified,
    an ETag is made of the file's facts. A Last-Modified is not added: caches may conclude from it
    that an answer without Cache-Control is good for days (RFC 9111, section 4.2.2).

    :param headers: the app's, with the whole body's Content-Length or none.
    :param file: the app's file object; asked for its name.
    :param segment: what of the file the app wants sent: the representation is these bytes.
    :param ranges: answer Range and If-Range, and say so with Accept-Ranges. An app's own
        `Accept-Ranges: none` stands.
    :param conditional: answer the four preconditions.
    :returns: None if the answer is better left as it is: the app has settled it, or the file has
        no validator (a temporary one, made for this answer), so that no client could know whether
        a part it has is of the same bytes.
    """
    given = {name.lower(): value for name, value in headers}
    if not _SETTLED.isdisjoint(given):
        return None
    added: list[Header] = []
    if _VALIDATORS.isdisjoint(given):
        etag = _file_etag(file, segment)
        if etag is None:
            return None
        added.append(("ETag", etag))
    accepted = given.get("accept-ranges")
    if accepted is not None:
        ranges = ranges and accepted.strip().lower() != "none"
    elif ranges:
        added.append(("Accept-Ranges", "bytes"))
    if not ranges:
        facts = facts._replace(range=None)
    if not conditional:
        facts = RequestFacts(facts.method, None, facts.range, facts.if_range)
    return Representation(segment.size, [*headers, *added]).plan(facts)


def _file_etag(file: Any, segment: FileSegment) -> str | None:
    if isinstance(file, tempfile._TemporaryFileWrapper):
        return None
    facts = os.fstat(segment.fd)
    if facts.st_nlink == 0:
        return None  # unlinked: a temporary file
    etag = stat_etag(segment.size, facts.st_mtime_ns)
    if etag is None:
        return None
    # Behind one URL there may be several files (by user, by language), and two of one size may
    # have been unpacked in one second: the name tells them apart, on every host.
    name = repr((getattr(file, "name", None), segment.offset))
    return f'{etag[:-1]}-{zlib.crc32(name.encode()):x}"'
