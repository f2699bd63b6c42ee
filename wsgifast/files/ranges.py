"""Range, Content-Range and multipart/byteranges (RFC 9110, section 14).

Ranges may overlap and come in any order (section 14.1.2), and a list may have empty elements
(section 5.6.1.2): neither makes a header malformed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

# A Range header with more ranges is ignored, as section 14.2 allows. PDF viewers request some
# dozens. Apache's limit is 200. Each part adds about 150 bytes of headers.
MAX_RANGES = 64
# 2**63 has 19 digits. int() refuses very long numbers, and takes quadratic time.
_MAX_DIGITS = 19

# first-pos "-" [last-pos], or "-" suffix-length. ASCII digits: int() would take "+1" and "1_0".
_SPEC = re.compile(r"([0-9]*)-([0-9]*)")


class ByteRange(NamedTuple):
    """A range of a representation's bytes, which an adapter sends by sendfile or reads."""

    offset: int
    size: int


def parse_range(header: str, size: int) -> list[ByteRange] | None:
    """Return the ranges that a Range header selects of a representation of `size` bytes.

    Ranges that overlap or touch are merged (section 15.3.7.2 allows that) and take the place of the
    first of them. Otherwise the order is the client's. Unsatisfiable ranges among satisfiable ones
    are left out.

    :param size: the length of the whole representation, in bytes.
    :returns: an empty list if no range can be satisfied (the response is 416). None if the header
        must be ignored and the whole sent: another unit than bytes, anything malformed, more than
        :data:`MAX_RANGES` ranges, ranges that together are longer than the whole, and any range of
        an empty representation, for which no Content-Range exists.
    """
    unit, equals, range_set = header.strip(" \t").partition("=")
    if not equals or unit.lower() != "bytes" or size == 0:
        return None
    specs = range_set.split(",")
    if len(specs) > MAX_RANGES:
        return None
    ranges = []
    empty = 0
    for spec in specs:
        spec = spec.strip(" \t")
        if not spec:
            empty += 1
            continue
        match = _SPEC.fullmatch(spec)
        if match is None:
            return None
        first, last = match.groups()
        if first:
            start = _number(first)
            if last:
                stop = _number(last) + 1
                if stop <= start:
                    return None  # section 14.1.1: invalid, and so is the set that holds it
            else:
                stop = size
        elif last:
            start, stop = max(0, size - _number(last)), size
        else:
            return None
        if start < size:
            ranges.append(ByteRange(start, min(stop, size) - start))
    if empty == len(specs):
        return None
    if len(ranges) > 1:
        if sum(part.size for part in ranges) > size:
            return None  # cheaper whole, and "0-,0-,0-" would multiply the response
        return _merged(ranges)
    return ranges


def content_range(part: ByteRange, size: int) -> str:
    """Return the Content-Range value of a part of a representation of `size` bytes."""
    return f"bytes {part.offset}-{part.offset + part.size - 1}/{size}"


def new_boundary() -> str:
    """Return 128 random bits in hex, which nobody can place in a file beforehand."""
    return secrets.token_hex(16)


def multipart_headers(
    parts: Sequence[ByteRange], size: int, content_type: str | None, boundary: str
) -> list[bytes]:
    """Return the bytes before each part of a multipart/byteranges body, and after the last one.

    The body is headers, part, headers, part, ..., end (RFC 9110, section 14.6, and RFC 2046,
    section 5.1.1).

    :param content_type: of the whole representation. It is repeated in each part, as section
        15.3.7.2 requires. None leaves it out.
    :returns: one item more than there are parts.
    """
    type_line = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    all_headers = [
        f"\r\n--{boundary}\r\n{type_line}Content-Range: {content_range(part, size)}\r\n\r\n"
        for part in parts
    ]
    all_headers[0] = all_headers[0][2:]  # the first boundary has no line break before it
    all_headers.append(f"\r\n--{boundary}--\r\n")
    return [headers.encode("latin-1") for headers in all_headers]


def _number(digits: str) -> int:
    # With one digit more than any file size it is still beyond the end of any file.
    return int(digits.lstrip("0")[: _MAX_DIGITS + 1] or "0")


def _merged(ranges: list[ByteRange]) -> list[ByteRange]:
    ascending = sorted(
        (start, start + size, position) for position, (start, size) in enumerate(ranges)
    )
    merged = [ascending[0]]
    for start, stop, position in ascending[1:]:
        last_start, last_stop, last_position = merged[-1]
        if start <= last_stop:
            merged[-1] = (last_start, max(stop, last_stop), min(position, last_position))
        else:
            merged.append((start, stop, position))
    merged.sort(key=lambda item: item[2])
    return [ByteRange(start, stop - start) for start, stop, _ in merged]
