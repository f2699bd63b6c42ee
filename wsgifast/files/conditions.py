"""Validators and the four preconditions (RFC 9110, sections 8.8 and 13)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

# Earlier modification times are placeholders: 0 from file systems without times and reproducible
# builds, 1 from Nix. As a Last-Modified, a placeholder would mean "not modified" for ever.
FIRST_KNOWN_SECOND = 2
# The number of parsed dates in a cache. Clients send the Last-Modified that they received.
_CACHED_DATES = 512
# The longest of the three date formats has 33 characters.
_MAX_DATE_CHARACTERS = 40
_CONTENT_DIGEST_BYTES = 16

_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
# An element of a list of entity tags, after any empty elements (section 5.6.1.2).
_ETAG_MEMBER = re.compile(r'[ \t,]*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|\Z)')

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LONG_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = f"(?:{'|'.join(_DAYS)})"
_LONG_DAY = f"(?P<weekday>{'|'.join(_LONG_DAYS)})"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
# The three forms of section 5.6.7: IMF-fixdate, RFC 850's and asctime's.
_DATE_FORMS = (
    re.compile(f"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(f"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def evaluate(
    method: str,
    etag: str | None,
    modified: int | None,
    if_match: str | None = None,
    if_unmodified_since: str | None = None,
    if_none_match: str | None = None,
    if_modified_since: str | None = None,
) -> Literal[304, 412] | None:
    """Evaluate a request's preconditions against an existing representation (section 13.2.2).

    A malformed list of tags matches no tag. A malformed date is ignored (section 13.1.3).

    :param etag: the entity tag of the representation, with quotes and any `W/`. None without a tag.
    :param modified: the modification time of the representation, in whole seconds since 1970 (UTC).
        None if not known.
    :returns: the status of the response: 304 or 412. None if the preconditions allow another one.
    """
    if if_match is not None:
        if not _matches(if_match, etag, weakly=False):
            return 412
    elif if_unmodified_since is not None and modified is not None:
        date = parse_http_date(if_unmodified_since)
        if date is not None and modified > date:
            return 412
    if if_none_match is not None:
        if if_none_match == etag or _matches(if_none_match, etag, weakly=True):
            return 304 if method in ("GET", "HEAD") else 412
    elif if_modified_since is not None and modified is not None and method in ("GET", "HEAD"):
        date = parse_http_date(if_modified_since)
        if date is not None and modified <= date:
            return 304
    return None


def if_range_holds(if_range: str, etag: str | None, modified: int | None) -> bool:
    """Return whether If-Range names this representation (section 13.1.5).

    Tags are compared strongly, dates exactly. The server does not check that a date is a strong
    validator (section 8.8.2.2). Only the client can check that, with the Date of its response.
    """
    if_range = if_range.strip(" \t")
    if '"' in if_range[:3]:
        return if_range == etag and not if_range.startswith("W/")
    return modified is not None and parse_http_date(if_range) == modified


def stat_etag(size: int, mtime_ns: int, coding: str | None = None) -> str | None:
    """Return a strong entity tag made of a file's size and modification time.

    The tag contains no inode, device or time zone. If a deployment preserves modification times
    (rsync -t, tar, image layers), all hosts send the same tag for the same file. After git checkout
    or cp the tags of hosts differ. That causes downloads, but no wrong response. Use
    :func:`content_etag` for such hosts. The tag contains nanoseconds. But two writes of the same
    length within one tick of the kernel's clock (1 to 10 ms) get the same tag.

    :param size: the size of the file, in bytes.
    :param coding: the content coding of a compressed file. Each content coding has its own tag.
    :returns: None if the modification time is not known.
    """
    if mtime_ns < FIRST_KNOWN_SECOND * 10**9:
        return None
    return _etag(f"{mtime_ns:x}-{size:x}", coding)


def content_etag(blocks: Iterable[bytes], coding: str | None = None) -> str:
    """Return a strong entity tag made of the content. The tag is the same on every host.

    :param blocks: the content of the response, in blocks of any size.
    :param coding: see :func:`stat_etag`.
    """
    digest = blake2b(digest_size=_CONTENT_DIGEST_BYTES)
    for block in blocks:
        digest.update(block)
    return _etag(digest.hexdigest(), coding)


def is_etag(value: str) -> bool:
    """Return whether a value is an entity tag in the syntax of section 8.8.3."""
    return _ETAG.fullmatch(value) is not None


def http_date(seconds: int) -> str:
    """Format seconds since 1970 (UTC) as an IMF-fixdate, in English for any locale.

    :raises OverflowError: for a year beyond 9999.
    """
    moment = _EPOCH + timedelta(seconds=seconds)
    return (
        f"{_DAYS[moment.weekday()]}, {moment.day:02} {_MONTHS[moment.month - 1]} "
        f"{moment.year:04} {moment.hour:02}:{moment.minute:02}:{moment.second:02} GMT"
    )


def parse_http_date(value: str) -> int | None:
    """Parse a date in one of the three forms of section 5.6.7.

    :returns: seconds since 1970 (UTC), or None if the date has none of the forms.
    """
    value = value.strip(" \t")
    return _cached_date(value) if len(value) <= _MAX_DATE_CHARACTERS else None


@lru_cache(_CACHED_DATES)
def _cached_date(value: str) -> int | None:
    for form in _DATE_FORMS:
        if match := form.fullmatch(value):
            break
    else:
        return None
    year, month, day = int(match["year"]), _MONTHS.index(match["month"]) + 1, int(match["day"])
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
    if second > 60:
        return None
    weekday = match.groupdict().get("weekday")
    # A date of RFC 850 has a year of two digits. The weekday tells the century, since it differs
    # between 19xx and 20xx. RFC 9110 uses the clock: a date is at most 50 years in the future.
    for century in (0,) if weekday is None else (1900, 2000):
        try:
            date = datetime(century + year, month, day, hour, minute, tzinfo=UTC)
        except ValueError:
            continue
        if weekday is None or weekday == _LONG_DAYS[date.weekday()]:
            # datetime does not support the leap second (60), so the seconds are added here.
            return (date - _EPOCH) // timedelta(seconds=1) + second
    return None


def _matches(header: str, etag: str | None, *, weakly: bool) -> bool:
    """Return whether a list of entity tags, or `*`, matches the tag (section 8.8.3.2)."""
    if header == etag:
        return weakly or not etag.startswith("W/")
    if header.strip(" \t") == "*":
        return True
    if etag is None or (not weakly and etag.startswith("W/")):
        return False
    opaque = etag.removeprefix("W/")
    position = 0
    while member := _ETAG_MEMBER.match(header, position):
        tag = member[1]
        if tag == opaque or (weakly and tag.removeprefix("W/") == opaque):
            return True
        position = member.end()
    return False


def _etag(opaque: str, coding: str | None) -> str:
    return f'"{opaque}"' if coding is None else f'"{opaque}-{coding}"'
