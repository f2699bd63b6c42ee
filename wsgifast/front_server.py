"""Handing a file to the front server: X-Accel-Redirect (nginx), X-Sendfile (Apache, lighttpd).

The app opens a file and returns it as ever; the front server is told its name and sends it, and
the worker is free. Only the configuration decides whether that happens and for which folders, and
only the file that the app has opened decides the path: nothing of the request is looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from .errors import ConfigurationError
from .files import Header
from .sockets.sendfile import FileSegment

__all__ = ["FrontServer", "accel_redirect", "front_server_of", "x_sendfile"]

# The front server sends the bytes of a file by its type and length, which these would contradict;
# nginx would also drop Content-Encoding.
_UNSUITED = frozenset({"content-encoding", "content-range", "transfer-encoding"})
# An escaped URL path: it becomes the value of a header.
_LOCATION = re.compile(r"/[!-~]*")


def front_server_of(
    locations: Mapping[str, str] | None, folders: Iterable[str] | None
) -> FrontServer | None:
    """The front server that the options accel_redirect and x_sendfile mean; None without either.

    :raises ConfigurationError: if both are given, or one has a value that cannot work.
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
    """Hand files over to nginx.

    Of the app's headers nginx keeps Content-Type, Content-Disposition, Accept-Ranges, Set-Cookie,
    Cache-Control and Expires, and answers Range and the conditions by the file itself. Others have
    to be named in the location: ``add_header X-Frame-Options $upstream_http_x_frame_options;``.

    :param locations: from a folder to the `internal` location that nginx serves it at:
        ``{"/srv/files": "/protected/"}`` for
        ``location /protected/ { internal; alias /srv/files/; }``.
    :raises ConfigurationError: if a folder does not exist, or a location has no slash in front.
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
    """Hand files over to Apache (mod_xsendfile) or lighttpd.

    :param folders: the ones that the front server may send from, as its own configuration says.
    :raises ConfigurationError: if a folder does not exist.
    """
    # A mapping would be meant for accel_redirect.
    several = isinstance(folders, Iterable) and not isinstance(folders, (str, bytes, Mapping))
    listed = list(folders) if several else []
    if not listed:
        raise ConfigurationError(f"x_sendfile takes a list of folders, not {folders!r}")
    # Its header has the path itself, so every folder is its own location.
    return FrontServer("X-Sendfile", dict.fromkeys(listed))


class FrontServer:
    """Knows which open files the front server can send, and under what name.

    :param header: the response header that names the file.
    :param locations: from a folder to what its path is replaced with; None keeps the path.
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
        # A folder inside another has its own location: the longest prefix is looked at first.
        self._prefixes = sorted(prefixes, key=lambda item: len(item[0]), reverse=True)

    def hand_over(
        self, headers: Iterable[Header], file: object, segment: FileSegment
    ) -> list[Header] | None:
        """Return the headers that make the front server send this file; None if it cannot.

        It can if the app sends the whole of a file that is still there under its own name, symbolic
        links resolved, in one of the folders.

        :param headers: the app's.
        :param file: what the app returned: asked for its name.
        :param segment: what of it is to be sent.
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
        # Escaped as a URL's path, which all three servers undo; no line break survives that.
        prefix, location = found
        return location + quote(path[len(prefix) :])
