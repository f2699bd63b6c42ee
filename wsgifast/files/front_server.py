"""Have the front server send a file: X-Accel-Redirect (nginx), X-Sendfile (Apache, lighttpd).

The app returns an open file as usual. The response then names the file instead of holding it, and
the front server sends it while the worker is free. The configuration decides for which folders; the
path is that of the open file. Nothing in the request has any influence on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ..errors import ConfigurationError
from ..sockets.sending import FileSegment
from .plan import Header

# Headers that would not fit the file as the front server sends it; nginx drops Content-Encoding.
_UNSUITED = frozenset({"content-encoding", "content-range", "transfer-encoding"})
# A URL path, percent-encoded: it becomes the value of a header.
_LOCATION = re.compile(r"/[!-~]*")


def front_server_of(
    locations: Mapping[str, str] | None, folders: Iterable[str] | None
) -> FrontServer | None:
    """Return the front server for the options accel_redirect and x_sendfile; None without either.

    :raises ConfigurationError: if both are given, or one has an invalid value.
    """
    if locations is not None and folders is not None:
        raise ConfigurationError(
            f"accel_redirect={locations!r} is for nginx, x_sendfile={folders!r} for Apache and "
            "lighttpd: give one of the two"
        )
    if locations is not None:
        return accel_redirect(locations)
    return None if folders is None else x_sendfile(folders)


def accel_redirect(locations: Mapping[str, str]) -> FrontServer:
    """Have nginx send files.

    nginx keeps the app's Content-Type, Content-Disposition, Accept-Ranges, Set-Cookie,
    Cache-Control and Expires, and applies Range and preconditions itself. Any other header has to
    be named in the location: ``add_header X-Frame-Options $upstream_http_x_frame_options;``.

    :param locations: maps folders to the `internal` locations at which nginx serves them:
        ``{"/srv/files": "/protected/"}`` for
        ``location /protected/ { internal; alias /srv/files/; }``.
    :raises ConfigurationError: if a folder does not exist, or a location has no leading slash.
    """
    if not isinstance(locations, Mapping) or not locations:
        raise ConfigurationError(
            f"accel_redirect takes a mapping of folders to locations, not {locations!r}"
        )
    for folder, location in locations.items():
        if not isinstance(location, str) or not _LOCATION.fullmatch(location):
            raise ConfigurationError(
                f"the internal location for {folder!r} is a path such as '/protected/', "
                f"not {location!r}"
            )
    return FrontServer("X-Accel-Redirect", locations)


def x_sendfile(folders: Iterable[str]) -> FrontServer:
    """Have Apache (mod_xsendfile) or lighttpd send files.

    :param folders: those that the front server's own configuration lets it send files from.
    :raises ConfigurationError: if a folder does not exist.
    """
    # A mapping is accel_redirect's.
    several = isinstance(folders, Iterable) and not isinstance(folders, (str, bytes, Mapping))
    listed = list(folders) if several else []
    if not listed:
        raise ConfigurationError(f"x_sendfile takes a list of folders, not {folders!r}")
    # Its header has the path itself, so every folder is its own location.
    return FrontServer("X-Sendfile", dict.fromkeys(listed))


class FrontServer:
    """The front server, and the folders whose files it can send.

    :param header: the response header that names the file.
    :param locations: maps folders to what replaces their path; None keeps the path.
    """

    def __init__(self, header: str, locations: Mapping[str, str | None]) -> None:
        self._header = header
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
    ) -> list[Header] | None:
        """Return the headers with which the front server sends this file; None if it cannot.

        It can if the whole file is to be sent, and its name still leads to it and, with symbolic
        links resolved, into one of the folders.

        :param headers: the app's.
        :param file: the app's file object; only its name is used.
        :param segment: the part of the file to be sent.
        """
        kept = []
        for header in headers:
            name = header[0].lower()
            if name in _UNSUITED or name == self._header.lower():
                return None
            if name != "content-length":
                kept.append(header)
        location = self._location(file, segment)
        if location is None:
            return None
        return [*kept, (self._header, location), ("Content-Length", "0")]

    def _location(self, file: Any, segment: FileSegment) -> str | None:
        name = getattr(file, "name", None)
        if not isinstance(name, (str, bytes, os.PathLike)):
            return None
        path = os.path.realpath(os.fsencode(name))
        found = next((item for item in self._prefixes if path.startswith(item[0])), None)
        opened = os.fstat(segment.fd)
        if found is None or segment.offset or segment.size != opened.st_size:
            return None
        try:
            named = os.stat(path, follow_symlinks=False)
        except OSError:
            return None
        # Renamed or replaced since it was opened, or opened relative to another folder.
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            return None
        # Percent-encoded, which all three servers decode; so no line break gets into the header.
        prefix, location = found
        return location + quote(path[len(prefix) :])
