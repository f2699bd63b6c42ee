"""Directory listings as HTML pages."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from ..checks import size_text
from ..http.headers import Header
from .directory import Directory, names_of, open_checked
from .plan import Plan

# Control characters, line separators, and characters that change the direction of text (UAX #9).
# A changed direction makes a name look like another name.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_HEADERS: tuple[Header, ...] = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    # A second defence against scripts in file names, which are also escaped.
    ("Content-Security-Policy", "default-src 'none'"),
    ("X-Content-Type-Options", "nosniff"),
)


def listing_plan(
    path: str, names: Sequence[str], roots: Sequence[Directory], *, hidden_files: bool
) -> Plan:
    """Return the plan of a page that lists a directory.

    The page of a root directory has no link to a parent directory.

    :param path: the decoded URL path, for the title.
    :param names: the path of the directory below each root. If several roots have an entry of the
        same name, the entry of the first root is listed.
    """
    rows = ['<tr><td><a href="../">../</a></td><td></td><td></td></tr>'] if names else []
    entries = [
        (not stat.S_ISDIR(stat_result.st_mode), name.casefold(), name, stat_result)
        for name, stat_result in _entries(names, roots, hidden_files=hidden_files).items()
    ]
    for is_file, _, name, stat_result in sorted(entries, key=lambda entry: entry[:3]):
        slash = "" if is_file else "/"
        # Without "./", the name "a:b" would be a URL with the scheme "a".
        link = "./" + quote(name.encode("utf-8", "surrogateescape")) + slash
        size = size_text(stat_result.st_size) if is_file else ""
        date = ""
        with contextlib.suppress(OSError, OverflowError):  # the year may not fit into a C int
            date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(stat_result.st_mtime))
        rows.append(
            f'<tr><td><a href="{link}">{_text(name)}{slash}</a></td>'
            f"<td>{size}</td><td>{date}</td></tr>"
        )
    title = _text(path)
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark">\n<h1>{title}</h1>\n<table>\n'
        + "\n".join(rows)
        + "\n</table>\n</html>\n"
    ).encode()
    return Plan(200, (*_HEADERS, ("Content-Length", str(len(page)))), (page,))


def _entries(
    names: Sequence[str], roots: Sequence[Directory], *, hidden_files: bool
) -> dict[str, os.stat_result]:
    entries: dict[str, os.stat_result] = {}
    for root in reversed(roots):
        opened = root.open(names)
        if opened is None:
            continue
        try:
            for name in os.listdir(opened.fd):
                path = [*names, name]
                if names_of("/".join(path), hidden_files=hidden_files) is None:
                    continue  # this name is not served
                try:
                    # open_checked() does not follow links. root.open() walks the whole path.
                    entry = open_checked(name, opened.fd) or root.open(path)
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        raise  # the page would omit entries that can be served
                    continue
                if entry is not None:
                    os.close(entry.fd)
                    entries[name] = entry.stat_result
        finally:
            os.close(opened.fd)
    return entries


def _text(name: str) -> str:
    """Return a file name as HTML. Bytes that are not UTF-8 become U+FFFD."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return escape(_INVISIBLE.sub(_escaped, text))


def _escaped(match: re.Match[str]) -> str:
    """Return the Python escape sequence of a character."""
    return match[0].encode("unicode_escape").decode()
