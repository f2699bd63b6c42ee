"""HPACK (RFC 7541): encodes and decodes header lists, at a small and bounded cost.

hpack's encoder searches its whole table for each field, and encodes the field again. The encoder in
this module finds fields in a dictionary. hpack's decoder logs each step, and has no limit for short
header blocks that are slow to decode. The tables and the Huffman code are hpack's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import hpack
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from ...http.stream_headers import Field

# The size of the encoder's table (RFC 7541 section 4.2) in bytes. A client can only reduce it.
TABLE_BYTES = 4096
# The overhead of a table entry in addition to its name and value (section 4.1).
_ENTRY_BYTES = 32
# hpack's Huffman encoder takes quadratic time: 350 ms for 64 KiB. Longer strings are not
# compressed.
_HUFFMAN_BYTES = 512
# For shorter values that are not added to the table, compression is not worth its time.
_MIN_HUFFMAN_BYTES = 16
# The maximum number of table size changes at the start of a header block. Two are useful (section
# 4.2).
_TABLE_CHANGES = 8
# The maximum number of bytes after the first byte of an integer. No length or index needs more.
_INTEGER_BYTES = 4
# Fields that differ between responses, or are secret. They would only fill the table.
_NOT_INDEXED = frozenset(
    {
        b"content-length", b"content-range", b"etag", b"last-modified", b"location", b"set-cookie",
    }
)  # fmt: skip
# Fields that must not be added to any table, not even by proxies (section 7.1.3).
_NEVER_INDEXED = frozenset({b"authorization", b"proxy-authorization", b"set-cookie"})

_STATIC = HeaderTable.STATIC_TABLE
_STATIC_FIELDS = len(_STATIC)
_huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def _integer(value: int, bits: int, first: int) -> bytes:
    """Encode an integer (section 5.1).

    :param bits: how many bits of the first byte belong to the integer.
    :param first: the other bits of the first byte.
    """
    encoded = encode_integer(value, bits)
    encoded[0] |= first
    return bytes(encoded)


# The encoded index of each field in the static table, and the first index of each name.
_STATIC_INDEXED = {
    field: _integer(index, 7, 0x80) for index, field in enumerate(_STATIC, 1) if field[1]
}
_STATIC_NAMES: dict[bytes, int] = {}
for _index, (_name, _) in enumerate(_STATIC, 1):
    _STATIC_NAMES.setdefault(_name, _index)
# The encoded indexes of the encoder's table.
_INDEXED = [
    _integer(index, 7, 0x80) for index in range(1 + _STATIC_FIELDS + TABLE_BYTES // _ENTRY_BYTES)
]


class Encoder:
    """Encodes header lists. It replaces hpack's encoder in h2."""

    def __init__(self) -> None:
        self._numbers: dict[Field, int] = {}  # the table's entries, numbered from 1
        self._entries: deque[tuple[Field, int]] = deque()  # entries with sizes, oldest first
        self._added = 0
        self._size = 0
        self._max_size = TABLE_BYTES
        self._changes: list[int] = []  # new sizes of the table since the last header block

    @property
    def header_table_size(self) -> int:
        """The maximum size of the table in bytes."""
        return self._max_size

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        size = min(size, TABLE_BYTES)
        if size != self._max_size:
            self._changes.append(size)
            self._max_size = size
            self._evict()

    def encode(self, headers: Iterable[Any]) -> bytes:
        """Return a header block for a list of headers.

        :param headers: pairs of bytes.
        """
        parts: list[bytes] = []
        if self._changes:
            # The client must apply the smallest size, which evicts entries, and then the last size.
            sizes = {min(self._changes): None, self._changes[-1]: None}
            parts += [_integer(size, 5, 0x20) for size in sizes]
            self._changes.clear()
        numbers = self._numbers
        for field in headers:
            known = _STATIC_INDEXED.get(field)
            if known is not None:
                parts.append(known)
                continue
            number = numbers.get(field)
            if number is not None:
                parts.append(_INDEXED[_STATIC_FIELDS + 1 + self._added - number])
            else:
                parts.append(self._literal(field))
        return b"".join(parts)

    def _literal(self, field: Field) -> bytes:
        name, value = field
        if name == b"content-length":
            return _length(value)
        size = len(name) + len(value) + _ENTRY_BYTES
        known = _STATIC_NAMES.get(name, 0)
        indexed = name not in _NOT_INDEXED and size <= self._max_size
        if name in _NEVER_INDEXED or not getattr(field, "indexable", True):
            begin, indexed = _integer(known, 4, 0x10), False
        elif not indexed:
            begin = _integer(known, 4, 0)
        else:
            begin = _integer(known, 6, 0x40)
        if not known:
            begin += _string(name)
        literal = begin + _string(value, min_bytes=0 if indexed else _MIN_HUFFMAN_BYTES)
        if indexed:
            field = (name, value)
            self._added += 1
            self._numbers[field] = self._added
            self._entries.append((field, size))
            self._size += size
            self._evict()
        return literal

    def _evict(self) -> None:
        while self._size > self._max_size:
            field, size = self._entries.popleft()
            del self._numbers[field]
            self._size -= size


@lru_cache(maxsize=500)
def _length(value: bytes) -> bytes:
    """Encode a Content-Length header. Most responses have one, and it is not added to the table."""
    return _integer(_STATIC_NAMES[b"content-length"], 4, 0) + _string(value, min_bytes=64)


def _string(text: bytes, *, min_bytes: int = 0) -> bytes:
    """Encode a string (section 5.2).

    :param min_bytes: the minimum length for which the Huffman code is tried.
    """
    if min_bytes <= len(text) <= _HUFFMAN_BYTES:
        short = _huffman.encode(text)
        if len(short) < len(text):
            return _integer(len(short), 7, 0x80) + short
    return _integer(len(text), 7, 0) + text


class Decoder:
    """Decodes header blocks. It replaces hpack's decoder in h2.

    :param max_fields: the maximum number of fields in one header block.
    :ivar max_header_list_size: the maximum size of one header list (RFC 9113 section 6.5.2).
    :ivar max_allowed_table_size: the maximum table size that the client may choose, in bytes.
    """

    def __init__(self, max_fields: int) -> None:
        self.header_table = HeaderTable()
        self.max_header_list_size = 2**16
        self.max_allowed_table_size = TABLE_BYTES
        self._max_fields = max_fields
        self._decoded: list[Field] | Exception | None = None

    @property
    def header_table_size(self) -> int:
        """The maximum size of the table in bytes."""
        return self.header_table.maxsize

    def keep(self, decoded: list[Field] | Exception) -> None:
        """Store the result or error of :meth:`fields` for the next :meth:`decode`."""
        self._decoded = decoded

    def decode(self, data: bytes, raw: bool = True) -> list[hpack.HeaderTuple]:
        """Decode a header block for h2. Names and values are bytes."""
        decoded, self._decoded = self._decoded, None
        if isinstance(decoded, Exception):
            raise decoded
        fields = self.fields(data) if decoded is None else decoded
        return [hpack.HeaderTuple(*field) for field in fields]

    def fields(self, data: bytes) -> list[Field]:
        """Decode a header block.

        :raises hpack.HPACKError: if the block is malformed or exceeds a limit.
        """
        fields: list[Field] = []
        table = self.header_table
        dynamic = table.dynamic_entries
        changes = size = at = 0
        end = len(data)
        while at < end:
            byte = data[at]
            if byte & 0x80:  # a field of a table
                if byte < 0xFF:
                    index, at = byte & 0x7F, at + 1
                else:
                    index, at = _decode_integer(data, at, 7)
                if 0 < index <= _STATIC_FIELDS:
                    field = _STATIC[index - 1]
                elif 0 < index <= _STATIC_FIELDS + len(dynamic):
                    field = dynamic[index - _STATIC_FIELDS - 1]
                else:
                    raise hpack.InvalidTableIndex(f"no field has the index {index}")
            elif byte & 0x60 == 0x20:
                if fields:
                    raise hpack.HPACKDecodingError("a change of the table's size after a field")
                changes += 1
                if changes > _TABLE_CHANGES:
                    raise hpack.OversizedHeaderListError("too many changes of the table's size")
                limit, at = _decode_integer(data, at, 5)
                if limit > self.max_allowed_table_size:
                    raise hpack.InvalidTableSizeError("the table's size exceeds its limit")
                table.maxsize = limit
                continue
            else:
                adds = byte & 0x40
                index, at = _decode_integer(data, at, 6 if adds else 4)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, at = _decode_string(data, at)
                value, at = _decode_string(data, at)
                field = name, value
                if adds:
                    table.add(name, value)
            fields.append(field)
            size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if size > self.max_header_list_size:
                raise hpack.OversizedHeaderListError(f"headers of more than {size} bytes")
            if len(fields) > self._max_fields:
                raise hpack.OversizedHeaderListError(f"{len(fields)} fields in one header list")
        if table.maxsize > self.max_allowed_table_size:
            raise hpack.InvalidTableSizeError("the client has not reduced the table's size")
        return fields


def _decode_integer(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Decode an integer (section 5.1). Return it with the position of the next byte.

    :param bits: how many bits of the first byte belong to the integer.
    """
    limit = (1 << bits) - 1
    value = data[at] & limit
    at += 1
    if value < limit:
        return value, at
    for shift in range(0, 7 * _INTEGER_BYTES, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise hpack.HPACKDecodingError("an integer is too long or incomplete")


def _decode_string(data: bytes, at: int) -> tuple[bytes, int]:
    """Decode a string (section 5.2). Return it with the position of the next byte."""
    if at >= len(data):
        raise hpack.HPACKDecodingError("a string is missing")
    is_huffman = data[at] & 0x80
    size, at = _decode_integer(data, at, 7)
    text = data[at : at + size]
    if len(text) < size:
        raise hpack.HPACKDecodingError("a string is incomplete")
    return (decode_huffman(text) if is_huffman else text), at + size
