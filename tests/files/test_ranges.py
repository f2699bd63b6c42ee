"""The Range header and multipart/byteranges, compared with a slow and simple model."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wsgifast.files import ranges
from wsgifast.files.ranges import MAX_RANGES, ByteRange, parse_range


def runs(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Convert Python's ranges, which are (start, stop), to (offset, size)."""
    return [(start, stop - start) for start, stop in bounds]


SATISFIABLE = [
    ("bytes=0-0", [(0, 1)]),
    ("bytes=0-499", [(0, 500)]),
    ("bytes=500-999", [(500, 1000)]),
    ("bytes=0-", [(0, 1000)]),
    ("bytes=999-", [(999, 1000)]),
    ("bytes=" + "0" * 5000 + "5-9", [(5, 10)]),
    ("bytes=-1", [(999, 1000)]),
    ("bytes=-1000", [(0, 1000)]),
    ("bytes=-5000", [(0, 1000)]),
    ("bytes=990-5000", [(990, 1000)]),
    ("bytes=990-99999999999999999999999999", [(990, 1000)]),
    ("bytes=-99999999999999999999999999", [(0, 1000)]),
    ("bytes=0000000000000000000000000000-0000000000000000000000000000009", [(0, 10)]),
    ("BYTES=0-0", [(0, 1)]),
    (" bytes=0-0\t", [(0, 1)]),
    ("bytes=0-0,-1", [(0, 1), (999, 1000)]),
    ("bytes=0-0 ,\t-1", [(0, 1), (999, 1000)]),
    ("bytes=,0-0,,-1,", [(0, 1), (999, 1000)]),
    # Ranges that are not in ascending order are sent in the requested order.
    ("bytes=500-509,0-9", [(500, 510), (0, 10)]),
    # Ranges that overlap, touch or contain each other are merged at the place of the first.
    ("bytes=0-9,5-14", [(0, 15)]),
    ("bytes=0-9,10-19", [(0, 20)]),
    ("bytes=0-99,50-59", [(0, 100)]),
    ("bytes=500-509,0-9,505-519", [(500, 520), (0, 10)]),
    ("bytes=0-9,500-509,505-519", [(0, 10), (500, 520)]),
    # One range beyond the end among valid ones.
    ("bytes=2000-2009,0-9", [(0, 10)]),
    ("bytes=-0,0-9", [(0, 10)]),
]


def test_satisfiable_ranges_are_selected() -> None:
    for header, expected in SATISFIABLE:
        assert parse_range(header, 1000) == runs(expected), header


@pytest.mark.parametrize(
    "header",
    [
        "bytes=1000-",
        "bytes=1000-1000",
        "bytes=-0",
        "bytes=99999999999999999999999999-",
        "bytes=2000-2009,3000-",
        "bytes=" + "9" * 5000 + "-",  # more digits than int() converts
    ],
)
def test_unsatisfiable_ranges_select_nothing(header: str) -> None:
    assert parse_range(header, 1000) == []


IGNORED = [
    "",
    "bytes",
    "bytes=",
    "bytes=,",
    "bytes= , ,",
    "bytes=-",
    "bytes=--1",
    "bytes=1--1",
    "bytes=a-b",
    "bytes=0-0x9",
    "bytes=+1-+5",
    "bytes=1_0-2_0",
    "bytes=1.0-2.0",
    "bytes=\u0661-\u0665",  # Arabic digits
    "bytes=\u00b2-\u00b3",
    "bytes=0 - 9",
    "bytes=0- 9",
    "bytes =0-9",
    "bytes:0-9",
    "bytes=0-9;10-19",
    "bytes=0-9\n",
    "bytes=0-9\x00",
    "bytes=9-0",
    "bytes=5-4",  # an empty range is not valid
    "bytes=0-9,9-0",
    "bytes=2000-1000",
    "bytes=0-9,junk",
    "items=0-9",
    "none=0-9",
    "0-9",
    "bytes=0-,0-",  # longer than the whole file
    "bytes=" + "0-," * 50,
    "bytes=" + ",".join(f"{i}-{i}" for i in range(0, 2 * MAX_RANGES + 2, 2)),
    "bytes=" + "," * MAX_RANGES + "0-0",
]


def test_malformed_range_is_ignored() -> None:
    for header in IGNORED:
        assert parse_range(header, 1000) is None, header


def test_as_many_ranges_as_allowed_are_selected() -> None:
    header = "bytes=" + ",".join(f"{i}-{i}" for i in range(0, 2 * MAX_RANGES, 2))
    assert parse_range(header, 1000) == [(i, 1) for i in range(0, 2 * MAX_RANGES, 2)]


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=-0", "bytes=5-"])
def test_empty_file_has_no_ranges(header: str) -> None:
    assert parse_range(header, 0) is None


def test_range_beyond_four_gigabytes_is_selected() -> None:
    size = 5 << 40
    assert parse_range(f"bytes={size - 1}-", size) == [(size - 1, 1)]
    assert parse_range(f"bytes=-{3 << 40}", size) == [(2 << 40, 3 << 40)]


# The model: every position is an element of a set. The model shares no code with the parser.


def model(header: str, size: int) -> list[list[int]] | None:
    unit, equals, text = header.strip(" \t").partition("=")
    if equals != "=" or unit not in {"bytes", "Bytes", "BYTES"}:
        return None
    members = [member.strip(" \t") for member in text.split(",")]
    if len(members) > MAX_RANGES or not any(members) or size == 0:
        return None
    requested: list[set[int]] = []
    for member in filter(None, members):
        if member.count("-") != 1 or set(member) - set("0123456789-") or member == "-":
            return None
        first, last = member.split("-")
        if first and last and int(last) < int(first):
            return None
        if first:
            end = int(last) if last else size
            requested.append(
                {position for position in range(size) if int(first) <= position <= end}
            )
        else:
            requested.append({position for position in range(size) if position >= size - int(last)})
    requested = [positions for positions in requested if positions]
    if len(requested) > 1 and sum(map(len, requested)) > size:
        return None
    # Merge two ranges that overlap or touch, the later into the earlier, until none do.
    while True:
        for one, other in ((a, b) for i, a in enumerate(requested) for b in requested[i + 1 :]):
            if any({position, position + 1, position - 1} & other for position in one):
                one |= other
                requested = [positions for positions in requested if positions is not other]
                break
        else:
            return [sorted(positions) for positions in requested]


def expanded(result: list[ByteRange] | None) -> list[list[int]] | None:
    return (
        None if result is None else [list(range(start, start + count)) for start, count in result]
    )


_numbers = st.integers(0, 45).map(str)
_specs = st.one_of(
    st.tuples(_numbers, _numbers).map("-".join),
    st.tuples(_numbers, st.just("")).map("-".join),
    st.tuples(st.just(""), _numbers).map("-".join),
    st.sampled_from(["", " ", "0-0", "-", "x", "+1-2"]),
)


@given(st.lists(_specs, max_size=6), st.integers(0, 40))
@example(["0-1", "4-5", "2-3"], 40)
@example(["30-31", "0-1", "2-29"], 40)
def test_parsed_ranges_equal_those_of_the_model(specs: list[str], size: int) -> None:
    header = "bytes=" + ",".join(specs)
    assert expanded(parse_range(header, size)) == model(header, size)


@given(st.text("bytesBYTES=0123456789-, \t+_\n\u0661", max_size=30), st.integers(0, 40))
def test_result_for_any_text_equals_the_model(text: str, size: int) -> None:
    for header in (text, f"bytes={text}"):
        if header.partition("=")[0].strip(" \t").lower() == "bytes":
            header = header.replace(header.partition("=")[0], "bytes", 1)
        assert expanded(parse_range(header, size)) == model(header, size)


@given(st.text(max_size=200))
def test_any_text_is_parsed_as_a_range(text: str) -> None:
    parse_range(text, 100)
    parse_range(f"bytes={text}", 100)


def test_long_number_is_read_with_few_digits_allowed() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)  # the lowest limit that Python allows
    try:
        assert parse_range("bytes=" + "9" * 1000 + "-", 10) == []
    finally:
        sys.set_int_max_str_digits(limit)


def test_header_of_megabytes_is_parsed_in_linear_time() -> None:
    # A quadratic parser would need hours for these ranges, and exceed the test's time limit.
    assert parse_range("bytes=" + "0-0," * 500_000, 1000) is None
    assert parse_range("bytes=" + "1" * 1_000_000 + "-", 1000) == []
    assert parse_range("bytes=" + " " * 1_000_000 + "0-0", 1000) == [(0, 1)]
    assert parse_range("bytes=" + "-" * 1_000_000, 1000) is None


def test_multipart_headers_are_legal() -> None:
    all_headers = ranges.multipart_headers(
        [ByteRange(0, 1), ByteRange(9, 1)], 10, "text/plain", "B"
    )
    assert all_headers == [
        b"--B\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/10\r\n\r\n",
        b"\r\n--B\r\nContent-Type: text/plain\r\nContent-Range: bytes 9-9/10\r\n\r\n",
        b"\r\n--B--\r\n",
    ]
    assert b"Content-Type" not in b"".join(
        ranges.multipart_headers([ByteRange(0, 1), ByteRange(9, 1)], 10, None, "B")
    )


def test_boundaries_are_legal_and_differ() -> None:
    boundaries = {ranges.new_boundary() for _ in range(100)}
    assert len(boundaries) == 100
    for boundary in boundaries:
        # A boundary has at most 70 characters (RFC 2046, section 5.1.1)
        assert re.fullmatch("[0-9A-Za-z]{1,70}", boundary)
