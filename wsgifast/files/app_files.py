"""Plan an app's response with a file: evaluate Range and preconditions, or delegate the file.

:func:`describe_file_body` evaluates Range and preconditions for a 200 whose body is a file. nginx's
range and not-modified filters do the same.

:class:`FrontServer` replaces the body by a header with the file's path: X-Accel-Redirect (nginx)
or X-Sendfile (Apache, lighttpd). The front server then sends the file, and the worker is free.
The configuration names the folders of such files. The path comes from the file that the app has
opened, and does not depend on the request.
"""

from __future__ import annotations

import os
import platform
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

# A response with Content-Range is a part already. With Transfer-Encoding, the app frames the body.
_FINAL_HEADERS = frozenset({"content-range", "transfer-encoding"})
_VALIDATORS = frozenset({"etag", "last-modified"})
# The kernel sets file times to its last tick, which is up to 10 ms before the clock (HZ=100).
# Some file systems store whole seconds (ext3, NFSv2) or only even ones (FAT).
_TICK_NS = 10 * 10**6
_COARSE_TICK_NS = 2 * 10**9


def _change_tick_ns(system: str, release: str) -> int:
    """Return how far a file's change time (ctime) may be behind the clock.

    Since Linux 6.13, the change times of files that Python's open() has made are exact.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    is_exact = system == "Linux" and version and tuple(map(int, version.groups())) >= (6, 13)
    return 0 if is_exact else _TICK_NS


_CHANGE_TICK_NS = _change_tick_ns(platform.system(), platform.release())
# Paths that stand for a descriptor number, and not for a file.
_DESCRIPTOR = re.compile(rb"/dev/(?:fd/|std)|/proc/[^/]+/(?:task/[0-9]+/)?fd/")
# A response with one of these headers is not delegated. The front server would send the whole file
# without this header. For example, nginx drops Content-Encoding.
_NOT_DELEGATED = frozenset({"content-encoding", "content-range", "transfer-encoding"})
# A percent-encoded URL path: only printable ASCII, since it becomes the value of a header.
_LOCATION = re.compile(r"/[!-~]*")


class FileDescription(NamedTuple):
    """The file of an app's response, and the values that decide about the response.

    :ivar file_request: the method, Range and preconditions of the request, without those that are
        disabled.
    :ivar headers: the headers of a 200 with the whole file. Content-Length is among them only if
        the app has sent it.
    :ivar size: the size of the file, in bytes.
    :ivar copy: the compressed copy to send. None to send the file.
    :ivar etag: the entity tag of the file. It is used only with a copy.
    :ivar ranges: whether a Range header is applied.
    """

    file_request: RequestFacts
    headers: Headers
    size: int
    copy: CompressedCopy | None
    etag: str | None
    ranges: bool

    def plan(self) -> Plan:
        """Return the plan of the response."""
        if self.copy is None:
            return Representation(self.size, self.headers).plan(self.file_request)
        return self.copy.plan(
            self.file_request, self.headers.with_vary(), self.etag, ranges=self.ranges
        )


def describe_file_body(
    file_request: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    *,
    ranges: bool = True,
    conditional: bool = True,
    began_ns: int | None = None,
    copy: CompressedCopy | None = None,
) -> FileDescription | None:
    """Describe the file of an app's 200 response to a GET or HEAD.

    The app's headers and validators do not change. If the app has sent neither an ETag nor a
    Last-Modified, an ETag is made from the file's size, modification time and name. No
    Last-Modified is added, since caches may use it for a heuristic freshness of days (RFC 9111,
    section 4.2.2).

    A file that was made for this response (:func:`is_made_for_one_response`) gets no ETag. If the
    app has sent an ETag for such a file, parts are sent only to requests with that tag in If-Range.
    Accept-Ranges is not added, since many clients download in parts without If-Range. Such a
    client would join parts of several responses.

    :param file_request: the method and headers of the client's request. With `copy`, it must
        contain the entity tags that the client sent. They may be tags of copies.
    :param headers: the app's headers. A Content-Length must be that of the whole body.
    :param file: the app's file object. Only its name is used.
    :param segment: the bytes of the file that the app sends. They are the representation.
    :param ranges: apply Range and If-Range, and add Accept-Ranges. `Accept-Ranges: none` of the app
        takes precedence.
    :param conditional: evaluate the four preconditions.
    :param began_ns: the start of the request, in nanoseconds since 1970 (UTC). None if not known.
    :param copy: a compressed copy to send in place of the file. Its body must not be None. The ETag
        and the ranges are then those of the copy.
    :returns: None to send the response unchanged. This is so if the app has applied Range or has
        set Transfer-Encoding, or if there is no validator.
    """
    fields = Headers(headers).by_name()
    if not _FINAL_HEADERS.isdisjoint(fields):
        return None
    added: list[Header] = []
    is_for_this_response = is_made_for_one_response(file, segment.fd, began_ns)
    if _VALIDATORS.isdisjoint(fields):
        etag = None if is_for_this_response else _file_etag(file, segment)
        if etag is None:
            return None
        added.append(("ETag", etag))
        fields["etag"] = etag
    accepted = fields.get("accept-ranges")
    if is_for_this_response:
        ranges = ranges and '"' in (file_request.if_range or "")
        accepted = accepted or ""
    if accepted is not None:
        ranges = ranges and accepted.strip().lower() != "none"
    elif ranges:
        added.append(("Accept-Ranges", "bytes"))
    if not ranges:
        file_request = file_request._replace(range=None)
    if not conditional:
        file_request = RequestFacts(
            file_request.method, None, file_request.range, file_request.if_range
        )
    described = Headers(headers)
    described += added
    etag = None
    if copy is not None:
        etag = fields.get("etag", "").strip(" \t")
        if not is_etag(etag):
            etag = _file_etag(file, segment)
    return FileDescription(file_request, described, segment.size, copy, etag, ranges)


def plan_file_body(
    file_request: RequestFacts,
    headers: Sequence[Header],
    file: object,
    segment: FileSegment,
    **options: Any,
) -> Plan | None:
    """Return the plan of the response to a GET or HEAD, or None to send the response unchanged.

    See :func:`describe_file_body` for the parameters.
    """
    described = describe_file_body(file_request, headers, file, segment, **options)
    return None if described is None else described.plan()


def is_made_for_one_response(
    file: object, fd: int, began_ns: int | None = None, now_ns: int | None = None
) -> bool:
    """Return whether a file was made for this response. The next response may have another file.

    Such a file is a temporary file, a file without a name in any directory, or a file that was
    modified between the start of the request and now. A time ahead of the clock does not count: it
    comes from a container image, an archive or another host.

    :param began_ns: the start of the request. None to ignore the file's times.
    :param now_ns: the current time. The default is that of the clock.
    """
    if isinstance(file, TEMPORARY):
        return True
    stat_result = os.fstat(fd)
    if stat_result.st_nlink == 0:
        return True
    if began_ns is None:
        return False
    tick_ns = _TICK_NS if stat_result.st_mtime_ns % 10**9 else _COARSE_TICK_NS
    # A file system may round times up, or use the clock of a file server.
    latest_ns = (time_ns() if now_ns is None else now_ns) + _COARSE_TICK_NS
    # A file that was copied with the modification time of its original has a new change time.
    return (
        began_ns - tick_ns <= stat_result.st_mtime_ns <= latest_ns
        or began_ns - _CHANGE_TICK_NS <= stat_result.st_ctime_ns <= latest_ns
    )


def _file_etag(file: Any, segment: FileSegment) -> str | None:
    stat_result = os.fstat(segment.fd)
    etag = stat_etag(segment.size, stat_result.st_mtime_ns)
    if etag is None:
        return None
    # A URL may return another file for each user or language. Files that were unpacked together may
    # have the same size and time, so the tag contains the name. The name is the same on each host.
    name = getattr(file, "name", None)
    if not isinstance(name, (str, bytes)) or _DESCRIPTOR.match(os.fsencode(name)):
        # The name is a descriptor number, which changes with each request.
        name = stat_result.st_dev, stat_result.st_ino
    return f'{etag[:-1]}-{zlib.crc32(repr((name, segment.offset)).encode()):x}"'


def front_server_of(
    accel_redirect: Mapping[str, str] | None = None, x_sendfile: Iterable[str] | None = None
) -> FrontServer | None:
    """Return the front server that sends files. Return None if both options are None.

    nginx sends the app's Content-Type, Content-Disposition, Accept-Ranges, Set-Cookie,
    Cache-Control and Expires, and applies Range and preconditions. Its location must name each
    other header: ``add_header X-Frame-Options $upstream_http_x_frame_options;``.

    :param accel_redirect: a mapping of folders to nginx's `internal` locations, such as
        ``{"/srv/files": "/protected/"}`` for
        ``location /protected/ { internal; alias /srv/files/; }``.
    :param x_sendfile: the folders from which Apache (mod_xsendfile) or lighttpd may send files. The
        configuration of that server must allow them.
    :raises ConfigurationError: if both options are set, a folder does not exist, or a location has
        no leading slash.
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
    # A mapping is a value for accel_redirect.
    several = isinstance(x_sendfile, Iterable) and not isinstance(x_sendfile, (str, bytes, Mapping))
    folders = list(x_sendfile) if several else []
    if not folders:
        raise ConfigurationError(f"x_sendfile takes a list of folders, not {x_sendfile!r}")
    # X-Sendfile contains the path of the file, so its folder is not replaced.
    return FrontServer("X-Sendfile", dict.fromkeys(folders))


class FrontServer:
    """A front server, and the folders from which it can send files.

    :param header: the name of the response header with the path of the file.
    :param locations: maps each folder to the location that replaces it in the path. None for a
        header with the unchanged path.
    """

    def __init__(self, header: str, locations: Mapping[str, str | None]) -> None:
        self._header = header
        self._not_delegated = _NOT_DELEGATED | {header.lower()}
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
        # The longest prefix comes first: a folder inside another folder may have its own location.
        self._prefixes = sorted(prefixes, key=lambda item: len(item[0]), reverse=True)

    def delegate(
        self, headers: Iterable[Header], file: object, segment: FileSegment
    ) -> Headers | None:
        """Return the headers that make the front server send this file.

        The response must send the whole file. The file's path must still lead to this file. With
        symbolic links resolved, the path must be in one of the folders.

        :param headers: the app's headers.
        :param file: the app's file object. Only its name is used.
        :param segment: the part of the file that the response sends.
        :returns: None if the front server cannot send the file.
        """
        headers = Headers(headers)
        if not self._not_delegated.isdisjoint(headers.names()):
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
        # The path leads elsewhere if the file was renamed or replaced after the app had opened it,
        # or if the app had opened it relative to another working directory.
        if named is None or not os.path.samestat(named, opened):
            return None
        # All three servers decode percent-encoding. It also prevents line breaks in the header.
        prefix, location = found
        return location + quote(path[len(prefix) :])
