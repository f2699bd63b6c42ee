"""Range, Content-Range and multipart/byteranges (RFC 9110, section 14).

A Range header may have overlapping ranges in any order (section 14.1.2). It may also have empty
list elements (section 5.6.1.2).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

# A Range header with more ranges is ignored, as section 14.2 allows. PDF viewers request several
# dozen ranges. Apache's limit is 200. Each part adds about 150 bytes of headers.
MAX_RANGES = 64
# 2**63 has 19 digits. int() refuses very long numbers, and takes quadratic time.
_MAX_DIGITS = 19

# first-pos "-" [last-pos], or "-" suffix-length. int() alone would accept "+1" and "1_0".
_SPEC = re.compile(r"([0-9]*)-([0-9]*)")


class ByteRange(NamedTuple):
    """A range of a representation's bytes.

    :ivar offset: the position of the first byte.
    """

    offset: int
    size: int


def parse_range(header: str, size: int) -> list[ByteRange] | None:
    """Parse a Range header.

    Ranges that overlap or touch are merged (section 15.3.7.2). The order is that of the client. A
    merged range has the position of its first range. Unsatisfiable ranges are omitted.

    :param size: the size of the whole representation, in bytes.
    :returns: the ranges of the representation. An empty list if no range can be satisfied: the
        status is then 416. None if the header must be ignored: it is malformed, its unit is not
        bytes, or it has more than :data:`MAX_RANGES` ranges. It is also ignored if the ranges
        together are larger than the representation, or the representation is empty.
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
                    return None  # section 14.1.1: one invalid range makes the header invalid
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
            # "0-,0-,0-" would triple the response. The whole file is smaller.
            return None
        return _merged(ranges)
    return ranges


def content_range(part: ByteRange, size: int) -> str:
    """Return the Content-Range value of a part of a representation of `size` bytes."""
    return f"bytes {part.offset}-{part.offset + part.size - 1}/{size}"


def new_boundary() -> str:
    """Return 128 random bits as hexadecimal digits. A file cannot contain this boundary."""
    return secrets.token_hex(16)


def multipart_headers(
    parts: Sequence[ByteRange], size: int, content_type: str | None, boundary: str
) -> list[bytes]:
    """Return the bytes before each part of a multipart/byteranges body, and after the last part.

    The body consists of headers, part, headers, part, ..., end (section 14.6 and RFC 2046, section
    5.1.1).

    :param content_type: the Content-Type of the representation, which each part repeats (section
        15.3.7.2). None to omit it.
    :returns: one item for each part, and one for the end.
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
    # A number of 20 digits is larger than any file, so further digits do not matter.
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
