"""What to answer: request facts and a file's facts in; status, headers and segments out.

The order is RFC 9110's (section 13.2.2): preconditions, then Range, then the whole file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .conditions import evaluate, if_range_holds
from .entry import Entry, FilePart, Plan, Representation
from .ranges import ByteRange, multipart_heads, new_boundary, parse_range

__all__ = ["RequestFacts", "plan_entry", "plan_representation"]

# What a multipart answer says for itself, or in each of its parts.
_PER_PART = frozenset({"content-type", "content-length"})


class RequestFacts(NamedTuple):
    """What of a request decides how a file is answered: its method and eight headers' values.

    None stands for a header that was not sent. The values need not be well formed.
    """

    method: str = "GET"
    accept_encoding: str | None = None
    range: str | None = None
    if_range: str | None = None
    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None


def plan_entry(
    facts: RequestFacts, entry: Entry, *, boundary: Callable[[], str] = new_boundary
) -> Plan:
    """Plan the answer to a GET or HEAD for a file; other methods are the caller's to refuse.

    :param boundary: makes the boundary between the parts of a multi-range answer; called only then.
    """
    return plan_representation(facts, entry.select(facts.accept_encoding), boundary=boundary)


def plan_representation(
    facts: RequestFacts,
    representation: Representation,
    *,
    boundary: Callable[[], str] = new_boundary,
) -> Plan:
    """Plan the answer when it is settled which representation is meant; see :func:`plan_entry`."""
    method, _, range_, if_range, if_match, if_unmodified_since, if_none_match, if_modified_since = (
        facts
    )
    if not (if_match is if_unmodified_since is if_none_match is if_modified_since is None):
        status = evaluate(
            method,
            representation.etag,
            representation.modified,
            if_match,
            if_unmodified_since,
            if_none_match,
            if_modified_since,
        )
        if status == 304:
            return representation.not_modified
        if status == 412:
            return representation.precondition_failed
    # Section 14.2: Range is defined for GET alone.
    if range_ is not None and method == "GET":
        return _plan_range(range_, if_range, representation, boundary)
    return representation.head if method == "HEAD" else representation.whole


def _plan_range(
    header: str,
    if_range: str | None,
    representation: Representation,
    boundary: Callable[[], str],
) -> Plan:
    if if_range is not None and not if_range_holds(
        if_range, representation.etag, representation.modified
    ):
        return representation.whole
    ranges = parse_range(header, representation.size)
    if ranges is None:
        return representation.whole
    if not ranges:
        return representation.unsatisfiable
    if len(ranges) == 1:
        return representation.partial(ranges[0])
    if representation.content_encoding is not None:
        # Its Content-Encoding would be taken for the multipart body's own.
        return representation.whole
    return _multipart(ranges, representation, boundary())


def _multipart(ranges: list[ByteRange], representation: Representation, boundary: str) -> Plan:
    """206 with several ranges (section 15.3.7.2)."""
    file, size = representation.file, representation.size
    heads = multipart_heads(ranges, size, representation.content_type, boundary)
    segments: list[bytes | FilePart] = []
    for head, part in zip(heads, ranges, strict=False):
        segments += head, FilePart(file, part.start, part.stop - part.start)
    segments.append(heads[-1])
    length = sum(map(len, heads)) + sum(part.stop - part.start for part in ranges)
    headers = [
        *(header for header in representation.headers if header[0].lower() not in _PER_PART),
        ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
        ("Content-Length", str(length)),
    ]
    return Plan(206, headers, segments)
