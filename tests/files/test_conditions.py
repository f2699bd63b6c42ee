"""Preconditions, entity tags and dates, compared with a slow and simple model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.files.conditions import (
    content_etag,
    evaluate,
    http_date,
    if_range_holds,
    is_etag,
    parse_http_date,
    stat_etag,
)

MODIFIED = 784111777
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
BEFORE = "Sun, 06 Nov 1994 08:49:36 GMT"
AFTER = "Sun, 06 Nov 1994 08:49:38 GMT"


IF_NONE_MATCH: list[tuple[str, str | None, int | None]] = [
    ('"a"', '"a"', 304),
    ('"b"', '"a"', None),
    ('W/"a"', '"a"', 304),
    ('"a"', 'W/"a"', 304),
    ('W/"a"', 'W/"a"', 304),
    ('"b", "a"', '"a"', 304),
    ('"b","a"', '"a"', 304),
    ('"b" \t, \tW/"a"', '"a"', 304),
    (',, "b",, "a",', '"a"', 304),
    ('"x,y", "a"', '"a"', 304),
    ('"b, "a""', '"a"', None),
    ('"a,b"', '"a,b"', 304),
    ("*", '"a"', 304),
    (" * ", '"a"', 304),
    ("*", None, 304),
    ('"a"', None, None),
    ('w/"a"', '"a"', None),
    ("a", '"a"', None),
    ("'a'", '"a"', None),
    ('"a', '"a"', None),
    ('junk, "a"', '"a"', None),
    ("", '"a"', None),
    ('""', '""', 304),
    ('"\xe4"', '"\xe4"', 304),
]


def test_if_none_match_is_compared_weakly() -> None:
    for header, etag, expected in IF_NONE_MATCH:
        for method in ("GET", "HEAD"):
            found = evaluate(method, etag, MODIFIED, if_none_match=header)
            assert found == expected, (header, etag)
        refused = 412 if expected else None
        assert evaluate("POST", etag, MODIFIED, if_none_match=header) == refused, (header, etag)


@pytest.mark.parametrize(
    ("header", "etag", "expected"),
    [
        ('"a"', '"a"', None),
        ('"b"', '"a"', 412),
        ('"b", "a"', '"a"', None),
        ("*", '"a"', None),
        ("*", None, None),
        ('"a"', None, 412),
        # The comparison is strong: a weak tag equals no tag, not even itself.
        ('W/"a"', '"a"', 412),
        ('"a"', 'W/"a"', 412),
        ('W/"a"', 'W/"a"', 412),
        ('W/"a", "a"', '"a"', None),
        ("junk", '"a"', 412),
        ("", '"a"', 412),
    ],
)
def test_if_match_is_compared_strongly(header: str, etag: str | None, expected: int | None) -> None:
    assert evaluate("GET", etag, MODIFIED, if_match=header) == expected


@pytest.mark.parametrize(
    ("header", "since", "unmodified"),
    [
        (DATE, 304, None),
        (AFTER, 304, None),
        (BEFORE, None, 412),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 304, None),
        ("Sun Nov  6 08:49:37 1994", 304, None),
        # Malformed dates are ignored.
        ("", None, None),
        ("0", None, None),
        ("junk", None, None),
        ("Sun, 06 Nov 1994 08:49:38 +0000", None, None),
        ("Sun, 06 Nov 1994 08:49:38 PST", None, None),
        ("1994-11-06T08:49:38Z", None, None),
        (f"{AFTER}; length=5", None, None),
        (f"{AFTER}\n", None, None),
        ("Sun, 31 Feb 1994 08:49:38 GMT", None, None),
    ],
)
def test_date_conditions_compare_seconds(
    header: str, since: int | None, unmodified: int | None
) -> None:
    assert evaluate("GET", None, MODIFIED, if_modified_since=header) == since
    assert evaluate("HEAD", None, MODIFIED, if_modified_since=header) == since
    assert evaluate("GET", None, MODIFIED, if_unmodified_since=header) == unmodified
    # If-Modified-Since applies to GET and HEAD (section 13.1.3).
    assert evaluate("POST", None, MODIFIED, if_modified_since=header) is None
    # The time of the file is unknown, so the condition is ignored.
    assert evaluate("GET", None, None, if_modified_since=header) is None
    assert evaluate("GET", None, None, if_unmodified_since=header) is None


def test_four_preconditions_are_evaluated_in_order() -> None:
    # If-Match is evaluated before If-None-Match, and replaces If-Unmodified-Since.
    assert evaluate("GET", '"a"', MODIFIED, if_match='"b"', if_none_match='"a"') == 412
    assert evaluate("GET", '"a"', MODIFIED, if_match='"a"', if_none_match='"a"') == 304
    assert evaluate("GET", '"a"', MODIFIED, if_match='"a"', if_unmodified_since=BEFORE) is None
    assert evaluate("GET", '"a"', MODIFIED, if_unmodified_since=BEFORE, if_none_match="*") == 412
    # If-None-Match replaces If-Modified-Since, whichever of them is true.
    assert evaluate("GET", '"a"', MODIFIED, if_none_match='"b"', if_modified_since=AFTER) is None
    assert evaluate("GET", '"a"', MODIFIED, if_none_match='"a"', if_modified_since=BEFORE) == 304


@pytest.mark.parametrize(
    ("if_range", "etag", "holds"),
    [
        ('"a"', '"a"', True),
        (' "a" ', '"a"', True),
        ('"b"', '"a"', False),
        ('W/"a"', 'W/"a"', False),
        ('W/"a"', '"a"', False),
        ('"a"', 'W/"a"', False),
        ('"a"', None, False),
        ('"a", "b"', '"a"', False),
        ("*", '"a"', False),
        (DATE, '"a"', True),
        (BEFORE, '"a"', False),
        (AFTER, '"a"', False),
        ("Sunday, 06-Nov-94 08:49:37 GMT", '"a"', True),
        ("junk", '"a"', False),
        ("", '"a"', False),
    ],
)
def test_if_range_needs_an_equal_validator(if_range: str, etag: str | None, holds: bool) -> None:
    assert if_range_holds(if_range, etag, MODIFIED) is holds
    if '"' not in if_range:
        assert not if_range_holds(if_range, etag, None)


# The model evaluates structured values in place of text, one sentence of section 13.2.2 after the
# other.

_tags = st.sampled_from(['"a"', '"b"', 'W/"a"', 'W/"b"'])
_lists = st.none() | st.just("*") | st.lists(_tags, min_size=1, max_size=3)
_times = st.none() | st.integers(MODIFIED - 2, MODIFIED + 2)
_Tags = list[str] | str | None


class _Requested(NamedTuple):
    """The preconditions of a request, and the validators of a file."""

    method: str
    etag: str | None
    modified: int | None
    if_match: _Tags
    if_unmodified_since: int | None
    if_none_match: _Tags
    if_modified_since: int | None


def _strong_match(tags: list[str] | str, etag: str | None) -> bool:
    return tags == "*" or (etag is not None and etag[0] == '"' and etag in tags)


def _weak_match(tags: list[str] | str, etag: str | None) -> bool:
    if tags == "*":
        return True
    return etag is not None and etag.lstrip("W/") in [tag.lstrip("W/") for tag in tags]


def _model(requested: _Requested) -> int | None:
    method, etag, modified, if_match, unmodified_since, if_none_match, modified_since = requested
    if if_match is not None and not _strong_match(if_match, etag):
        return 412
    if if_match is None and unmodified_since is not None and modified is not None:
        unmodified = modified <= unmodified_since
        if not unmodified:
            return 412
    if if_none_match is not None:
        if _weak_match(if_none_match, etag):
            return 304 if method in {"GET", "HEAD"} else 412
        return None
    if method in {"GET", "HEAD"} and modified_since is not None and modified is not None:
        newer = modified > modified_since
        return None if newer else 304
    return None


def _sent(value: _Tags | int) -> str | None:
    if isinstance(value, int):
        return http_date(value)
    return ", ".join(value) if isinstance(value, list) else value


@given(
    st.builds(
        _Requested, st.sampled_from(["GET", "HEAD", "POST"]), st.none() | _tags,
        st.none() | st.just(MODIFIED), _lists, _times, _lists, _times,
    )
)  # fmt: skip
def test_evaluated_conditions_equal_those_of_the_model(requested: _Requested) -> None:
    assert evaluate(*requested[:3], *map(_sent, requested[3:])) == _model(requested)


@given(st.text(max_size=100))
def test_any_text_is_evaluated_as_a_condition(text: str) -> None:
    for method in ("GET", "POST"):
        for etag in ('"a"', 'W/"a"', None):
            evaluate(method, etag, MODIFIED, if_match=text)
            evaluate(method, etag, MODIFIED, if_none_match=text)
            evaluate(method, etag, MODIFIED, if_modified_since=text)
            evaluate(method, etag, MODIFIED, if_unmodified_since=text)
            if_range_holds(text, etag, MODIFIED)


# Dates


@given(st.integers(0, 253402300799))
def test_date_equals_that_of_the_standard_library(seconds: int) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    text = http_date(seconds)
    assert text == format_datetime(moment, usegmt=True)
    assert parse_http_date(text) == seconds == parsedate_to_datetime(text).timestamp()
    assert parse_http_date(moment.strftime("%a %b ") + f"{moment.day:2} {moment:%H:%M:%S %Y}") == (
        seconds
    )


@given(st.integers(0, 4102444799))  # two-digit years mean years up to 2099
def test_year_of_two_digits_is_near(seconds: int) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    assert parse_http_date(moment.strftime("%A, %d-%b-%y %H:%M:%S GMT")) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 8:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, \u0660\u0666 Nov 1994 08:49:37 GMT",
        # The day is a Sunday in 1994, and another day in the other centuries
        "Monday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov 6 08:49:37 1994",
        "Sun, 06 Nov 1994 08:49:37 GMT" + " " * 10 + "x",
    ],
)
def test_text_that_is_no_date_is_none(text: str) -> None:
    assert parse_http_date(text) is None


def test_leap_second_is_a_date() -> None:
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == 1483228800


@pytest.fixture
def far_time_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_time_zone_of_the_server_has_no_effect(far_time_zone: None) -> None:
    assert time.localtime(0).tm_hour != 0
    assert http_date(MODIFIED) == DATE
    assert parse_http_date("Sun Nov  6 08:49:38 1994") == MODIFIED + 1
    assert stat_etag(5, MODIFIED * 10**9) == f'"{MODIFIED * 10**9:x}-5"'


# Entity tags


def test_tag_from_stat_depends_on_size_and_time() -> None:
    tag = stat_etag(1000, 1_700_000_000_123_456_789)
    assert tag is not None
    assert is_etag(tag)
    assert not tag.startswith("W/")
    others = [
        stat_etag(1001, 1_700_000_000_123_456_789),
        stat_etag(1000, 1_700_000_000_123_456_788),
        stat_etag(1000, 1_700_000_000_123_456_789, "gzip"),
        stat_etag(1000, 1_700_000_000_123_456_789, "br"),
    ]
    assert len({tag, *others}) == 5


@pytest.mark.parametrize("mtime_ns", [0, 10**9, -(10**9)])
def test_unknown_file_time_makes_no_tag(mtime_ns: int) -> None:
    assert stat_etag(1000, mtime_ns) is None


def test_tag_from_content_depends_on_the_bytes() -> None:
    tag = content_etag([b"abc", b"def"])
    assert is_etag(tag)
    assert tag == content_etag([b"abcdef"]) == content_etag([b"", b"abcde", b"f"])
    assert len({tag, content_etag([b"abcdeg"]), content_etag([b"abcdef"], "gzip")}) == 3
