"""Range and preconditions for apps that answer 200 with a file.

It is what nginx's range and not-modified filters do for the files that nginx serves.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from typing import Any

from ..compression.policy import with_vary
from ..sockets.sending import TEMPORARY, FileSegment
from .coded_copies import CodedCopy
from .conditions import is_etag, stat_etag
from .plan import Header, Plan, Representation, RequestFacts

# With one of these the app has applied Range by itself, or frames the body in its own way.
_SETTLED = frozenset({"content-range", "transfer-encoding"})
_VALIDATORS = frozenset({"etag", "last-modified"})
# The kernel stamps files with the time of its last tick, which is up to 10 ms before the clock's
# (HZ=100). Some file systems have whole seconds, or every other one (ext3, NFSv2, FAT).
_TICK_NS = 10 * 10**6
_COARSE_TICK_NS = 2 * 10**9
# The names of open files.
_DESCRIPTOR = re.compile(rb"/dev/(?:fd/|std)|/proc/[^/]+/(?:task/[0-9]+/)?fd/")


def plan_file_body(
    facts: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    *,
    ranges: bool = True,
    conditional: bool = True,
    began_ns: int | None = None,
) -> Plan | None:
    """Plan the answer to a GET or HEAD that the app answered with 200 and a file.

    The app's headers and validators are kept. If it has sent neither an ETag nor a Last-Modified,
    an ETag is made from the file's size, modification time and name. No Last-Modified is added,
    since caches may use it for a heuristic freshness of days (RFC 9111, section 4.2.2).

    A file that was made for this answer (:func:`is_made_for_one_answer`) gets no ETag. If the app
    has sent an ETag with it, parts are sent only to requests whose If-Range has that tag, and
    Accept-Ranges is not sent: many clients download in parts without If-Range, and would put pieces
    of several answers together.

    :param headers: the app's; a Content-Length among them is the whole body's.
    :param file: the app's file object; only its name is used.
    :param segment: the bytes of the file that the app sends: the representation.
    :param ranges: answer Range and If-Range, and send Accept-Ranges, unless the app itself sends
        `Accept-Ranges: none`.
    :param conditional: evaluate the four preconditions.
    :param began_ns: when the request began: nanoseconds since 1970 (UTC); None if not known.
    :returns: None to leave the answer as it is: the app has applied Range by itself, or there is no
        validator.
    """
    given = {name.lower(): value for name, value in headers}
    if not _SETTLED.isdisjoint(given):
        return None
    added: list[Header] = []
    is_for_this_answer = is_made_for_one_answer(file, segment.fd, began_ns)
    if _VALIDATORS.isdisjoint(given):
        etag = None if is_for_this_answer else _file_etag(file, segment)
        if etag is None:
            return None
        added.append(("ETag", etag))
    accepted = given.get("accept-ranges")
    if is_for_this_answer:
        ranges = ranges and '"' in (facts.if_range or "")
        accepted = accepted or ""
    if accepted is not None:
        ranges = ranges and accepted.strip().lower() != "none"
    elif ranges:
        added.append(("Accept-Ranges", "bytes"))
    if not ranges:
        facts = facts._replace(range=None)
    if not conditional:
        facts = RequestFacts(facts.method, None, facts.range, facts.if_range)
    return Representation(segment.size, [*headers, *added]).plan(facts)


def plan_coded_file(
    facts: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    copy: CodedCopy,
    coding: str,
    *,
    ranges: bool = True,
    conditional: bool = True,
) -> Plan | None:
    """Plan the same answer with a coded copy of the file: its validators and ranges are its own.

    :param facts: as the client sent them: its tags may be those of copies.
    :param headers: the app's.
    :param copy: one that has a body.
    """
    plain = plan_file_body(RequestFacts(), headers, file, segment, ranges=ranges, conditional=False)
    if plain is None:
        return None
    given = {name.lower(): value for name, value in plain.headers}
    etag = given.get("etag", "").strip(" \t")
    if not is_etag(etag):
        etag = _file_etag(file, segment) or ""
    ranges = ranges and given.get("accept-ranges", "none").strip().lower() != "none"
    if not ranges:
        facts = facts._replace(range=None)
    if not conditional:
        facts = RequestFacts(facts.method, None, facts.range, facts.if_range)
    return copy.plan(facts, with_vary(plain.headers), coding, etag, ranges=ranges)


def is_made_for_one_answer(file: object, fd: int, began_ns: int | None = None) -> bool:
    """Whether a file was made for this answer, so that the next one may have another, or none.

    It is a temporary file, one that has no name in any directory, or one that was modified since
    the request began. With None for `began_ns` the last is not looked at.
    """
    if isinstance(file, TEMPORARY):
        return True
    facts = os.fstat(fd)
    if facts.st_nlink == 0:
        return True
    if began_ns is None:
        return False
    tick_ns = _TICK_NS if facts.st_mtime_ns % 10**9 else _COARSE_TICK_NS
    # The second: a copy has the time of its original, and its inode was changed just now. Without
    # the tick: a file that was put in place just before the request is one of its own.
    return facts.st_mtime_ns >= began_ns - tick_ns or facts.st_ctime_ns >= began_ns


def _file_etag(file: Any, segment: FileSegment) -> str | None:
    facts = os.fstat(segment.fd)
    etag = stat_etag(segment.size, facts.st_mtime_ns)
    if etag is None:
        return None
    # One URL may stand for several files (by user, by language), and files that were unpacked
    # together may share size and time: the name makes the difference, and is the same on each host.
    name = getattr(file, "name", None)
    if not isinstance(name, (str, bytes)) or _DESCRIPTOR.match(os.fsencode(name)):
        # Opened by a descriptor, whose number is another one at the next request.
        name = facts.st_dev, facts.st_ino
    return f'{etag[:-1]}-{zlib.crc32(repr((name, segment.offset)).encode()):x}"'
