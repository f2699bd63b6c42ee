"""The file of an app's response: its Range and preconditions, and its sending by the front server.

A 200 with a file gets the same treatment as by nginx's range and not-modified filters.

Or the response names the file, and the front server sends it while the worker is free:
X-Accel-Redirect (nginx), X-Sendfile (Apache, lighttpd). The configuration decides for which
folders. The path is that of the open file. Nothing in the request has any influence on it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from time import time_ns
from typing import Any, NamedTuple
from urllib.parse import quote

from ..errors import ConfigurationError
from ..http.headers import Header, Headers
from ..sockets.sending import TEMPORARY, FileSegment
from .compressed_copies import CompressedCopy
from .conditions import is_etag, stat_etag
from .found import stat_or_none
from .plan import Plan, Representation, RequestFacts

# With one of these the app has applied Range by itself, or frames the body in its own way.
_SETTLED = frozenset({"content-range", "transfer-encoding"})
_VALIDATORS = frozenset({"etag", "last-modified"})
# The kernel stamps files with the time of its last tick, which is up to 10 ms before the clock's
# (HZ=100). Some file systems have whole seconds, or every other one (ext3, NFSv2, FAT).
_TICK_NS = 10 * 10**6
_COARSE_TICK_NS = 2 * 10**9
# The names of open files.
_DESCRIPTOR = re.compile(rb"/dev/(?:fd/|std)|/proc/[^/]+/(?:task/[0-9]+/)?fd/")
# Headers that would not fit the file as the front server sends it. nginx drops Content-Encoding.
_UNSUITED = frozenset({"content-encoding", "content-range", "transfer-encoding"})
# A URL path, percent-encoded: it becomes the value of a header.
_LOCATION = re.compile(r"/[!-~]*")


class FileDescription(NamedTuple):
    """A file that an app answers with, and the response to a request for it.

    :ivar conditions: the request's values that count.
    :ivar headers: of a 200 with the whole file, without a Content-Length that the app has not sent.
    :ivar size: in bytes.
    :ivar copy: sent in place of the file. None to send the file.
    :ivar etag: the file's, for a copy.
    :ivar ranges: whether ranges are answered.
    """

    conditions: RequestFacts
    headers: Headers
    size: int
    copy: CompressedCopy | None
    etag: str | None
    ranges: bool

    def plan(self) -> Plan:
        """Plan the response."""
        if self.copy is None:
            return Representation(self.size, self.headers).plan(self.conditions)
        return self.copy.plan(
            self.conditions, self.headers.with_vary(), self.etag, ranges=self.ranges
        )


def describe_file_body(
    conditions: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    *,
    ranges: bool = True,
    conditional: bool = True,
    began_ns: int | None = None,
    copy: CompressedCopy | None = None,
) -> FileDescription | None:
    """Describe the file of a GET or HEAD that the app answered with 200 and a file.

    The app's headers and validators do not change. If it has sent neither an ETag nor a
    Last-Modified, an ETag is made from the file's size, modification time and name. No
    Last-Modified is added, since caches may use it for a heuristic freshness of days (RFC 9111,
    section 4.2.2).

    A file that was made for this response (:func:`is_made_for_one_response`) gets no ETag. If the
    app has sent an ETag with it, parts are sent only to requests with that tag in If-Range.
    Accept-Ranges is not sent, since many clients download in parts without If-Range. They would put
    pieces of several responses together.

    :param headers: the app's. A Content-Length among them is the whole body's.
    :param file: the app's file object. Only its name is used.
    :param segment: the bytes of the file that the app sends: the representation.
    :param ranges: answer Range and If-Range, and send Accept-Ranges, unless the app itself sends
        `Accept-Ranges: none`.
    :param conditional: evaluate the four preconditions.
    :param began_ns: when the request began: nanoseconds since 1970 (UTC). None if not known.
    :param copy: one with a body, which is sent in place of the file, with validators and ranges of
        its own. `conditions` are then as the client sent them: its tags may be those of copies.
    :returns: None to leave the response unchanged: the app has applied Range itself, or there is no
        validator.
    """
    given = Headers(headers).by_name()
    if not _SETTLED.isdisjoint(given):
        return None
    added: list[Header] = []
    is_for_this_response = is_made_for_one_response(file, segment.fd, began_ns)
    if _VALIDATORS.isdisjoint(given):
        etag = None if is_for_this_response else _file_etag(file, segment)
        if etag is None:
            return None
        added.append(("ETag", etag))
        given["etag"] = etag
    accepted = given.get("accept-ranges")
    if is_for_this_response:
        ranges = ranges and '"' in (conditions.if_range or "")
        accepted = accepted or ""
    if accepted is not None:
        ranges = ranges and accepted.strip().lower() != "none"
    elif ranges:
        added.append(("Accept-Ranges", "bytes"))
    if not ranges:
        conditions = conditions._replace(range=None)
    if not conditional:
        conditions = RequestFacts(conditions.method, None, conditions.range, conditions.if_range)
    described = Headers(headers)
    described += added
    etag = None
    if copy is not None:
        etag = given.get("etag", "").strip(" \t")
        if not is_etag(etag):
            etag = _file_etag(file, segment)
    return FileDescription(conditions, described, segment.size, copy, etag, ranges)


def plan_file_body(
    conditions: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    **options: Any,
) -> Plan | None:
    """Plan the response to a GET or HEAD. See :func:`describe_file_body`."""
    described = describe_file_body(conditions, headers, file, segment, **options)
    return None if described is None else described.plan()


def is_made_for_one_response(
    file: object, fd: int, began_ns: int | None = None, now_ns: int | None = None
) -> bool:
    """Return whether a file was made for this response, so that the next may have another, or none.

    It is a temporary file, one without a name in any directory, or one that was modified between
    the begin of the request and now. A time ahead of the clock comes from an image, an archive or
    another host, and means nothing for this request.

    :param began_ns: when the request began. None to ignore the file's times.
    :param now_ns: by default the clock's time.
    """
    if isinstance(file, TEMPORARY):
        return True
    stat_result = os.fstat(fd)
    if stat_result.st_nlink == 0:
        return True
    if began_ns is None:
        return False
    tick_ns = _TICK_NS if stat_result.st_mtime_ns % 10**9 else _COARSE_TICK_NS
    # A file system may round up, or have the clock of a file server.
    latest_ns = (time_ns() if now_ns is None else now_ns) + _COARSE_TICK_NS
    # The second: a copy has the time of its original, and its inode was changed just now.
    return (
        began_ns - tick_ns <= stat_result.st_mtime_ns <= latest_ns
        or began_ns - _TICK_NS <= stat_result.st_ctime_ns <= latest_ns
    )


def _file_etag(file: Any, segment: FileSegment) -> str | None:
    conditions = os.fstat(segment.fd)
    etag = stat_etag(segment.size, conditions.st_mtime_ns)
    if etag is None:
        return None
    # One URL may stand for several files (by user, by language), and files that were unpacked
    # together may share size and time: the name makes the difference, and is the same on each host.
    name = getattr(file, "name", None)
    if not isinstance(name, (str, bytes)) or _DESCRIPTOR.match(os.fsencode(name)):
        # Opened by a descriptor. Its number is another one at the next request.
        name = conditions.st_dev, conditions.st_ino
    return f'{etag[:-1]}-{zlib.crc32(repr((name, segment.offset)).encode()):x}"'


def front_server_of(
    accel_redirect: Mapping[str, str] | None = None, x_sendfile: Iterable[str] | None = None
) -> FrontServer | None:
    """Return the front server that sends files. None without either option.

    nginx keeps the app's Content-Type, Content-Disposition, Accept-Ranges, Set-Cookie,
    Cache-Control and Expires, and applies Range and preconditions itself. Any other header has to
    be named in the location: ``add_header X-Frame-Options $upstream_http_x_frame_options;``.

    :param accel_redirect: for nginx: maps folders to the `internal` locations at which it serves
        them: ``{"/srv/files": "/protected/"}`` for
        ``location /protected/ { internal; alias /srv/files/; }``.
    :param x_sendfile: for Apache (mod_xsendfile) and lighttpd: the folders that its own
        configuration lets it send files from.
    :raises ConfigurationError: if both are given, a folder does not exist, or a location has no
        leading slash.
    """
    if accel_redirect is not None and x_sendfile is not None:
        raise ConfigurationError(
            f"accel_redirect={accel_redirect!r} is for nginx, x_sendfile={x_sendfile!r} for Apache "
            "and lighttpd: give one of the two"
        )
    if accel_redirect is not None:
        if not isinstance(accel_redirect, Mapping) or not accel_redirect:
            raise ConfigurationError(
                f"accel_redirect takes a mapping of folders to locations, not {accel_redirect!r}"
            )
        for folder, location in accel_redirect.items():
            if not isinstance(location, str) or not _LOCATION.fullmatch(location):
                raise ConfigurationError(
                    f"the internal location for {folder!r} is a path such as '/protected/', "
                    f"not {location!r}"
                )
        return FrontServer("X-Accel-Redirect", accel_redirect)
    if x_sendfile is None:
        return None
    # A mapping is accel_redirect's.
    several = isinstance(x_sendfile, Iterable) and not isinstance(x_sendfile, (str, bytes, Mapping))
    folders = list(x_sendfile) if several else []
    if not folders:
        raise ConfigurationError(f"x_sendfile takes a list of folders, not {x_sendfile!r}")
    # Its header has the path itself, so every folder is its own location.
    return FrontServer("X-Sendfile", dict.fromkeys(folders))


class FrontServer:
    """The front server, and the folders whose files it can send.

    :param header: the response header that names the file.
    :param locations: maps folders to the replacements of their paths. None keeps the path.
    """

    def __init__(self, header: str, locations: Mapping[str, str | None]) -> None:
        self._header = header
        self._unsuited = _UNSUITED | {header.lower()}
        prefixes = []
        for folder, location in locations.items():
            if not isinstance(folder, (str, os.PathLike)) or not os.path.isdir(folder):
                raise ConfigurationError(
                    f"{header} cannot be sent for the files of {folder!r}, which is not a folder: "
                    "give the path of one that exists"
                )
            real = os.path.realpath(folder)
            prefix = os.path.join(os.fsencode(real), b"")
            if location is None:
                location = quote(prefix)
            prefixes.append((prefix, location if location.endswith("/") else f"{location}/"))
        # A folder inside another may have its own location: the longest prefix comes first.
        self._prefixes = sorted(prefixes, key=lambda item: len(item[0]), reverse=True)

    def hand_over(
        self, headers: Iterable[Header], file: object, segment: FileSegment
    ) -> Headers | None:
        """Return the headers with which the front server sends this file. None if it cannot.

        It can if the whole file is to be sent, and its name still leads to it and, with symbolic
        links resolved, into one of the folders.

        :param headers: the app's.
        :param file: the app's file object. Only its name is used.
        :param segment: the part of the file to be sent.
        """
        headers = Headers(headers)
        if not self._unsuited.isdisjoint(headers.names()):
            return None
        location = self._location(file, segment)
        if location is None:
            return None
        headers.set("Content-Length", "0")
        headers.append((self._header, location))
        return headers

    def _location(self, file: Any, segment: FileSegment) -> str | None:
        name = getattr(file, "name", None)
        if not isinstance(name, (str, bytes, os.PathLike)):
            return None
        path = os.path.realpath(os.fsencode(name))
        found = next((item for item in self._prefixes if path.startswith(item[0])), None)
        opened = os.fstat(segment.fd)
        if found is None or segment.offset or segment.size != opened.st_size:
            return None
        named = stat_or_none(path, follow_symlinks=False)
        # Renamed or replaced since it was opened, or opened relative to another folder.
        if named is None or not os.path.samestat(named, opened):
            return None
        # Percent-encoded, which all three servers decode. So no line break gets into the header.
        prefix, location = found
        return location + quote(path[len(prefix) :])
