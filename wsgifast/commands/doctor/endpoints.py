"""Endpoints that a command line or a file names; patterns of URLs, and the values in them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from ...errors import ConfigurationError
from ..arguments import check_path
from .model import Endpoint, Found, Unreached

# Why the endpoints that a person names are requested.
NAMED = "named"

_ORIGIN = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
# In NCSA's common and combined log formats, and in uvicorn's: method, URL, status.
_LOGGED = re.compile(r'"([A-Z]+) (\S+)(?: HTTP/[0-9.]+)?" ([0-9]{3})\b')
# What stays as it is in a URL: RFC 3986's reserved and unreserved characters, and "%".
_URL_CHARACTERS = "!$%&'()*+,/:;=?@[]~"
# A parameter in a pattern: {name}, {name:path}, <name>, <int:name>, <path:name>, <name:re:...>, and
# Pyramid's *name at its end.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?P<angle>[^<>]+)>|\*(?P<star>\w+)\Z")
# Kinds of parameters, which stand beside the name in one place or the other.
_KINDS = frozenset(
    {"int", "float", "path", "str", "string", "slug", "uuid", "any", "re", "filter", "default"}
)


def from_paths(paths: Iterable[str], source: str = "command line") -> Found:
    """Paths as they are written on a command line.

    :raises ConfigurationError: for one that is no path.
    """
    given = list(dict.fromkeys(paths))
    for path in given:
        check_path(path)
    return [Endpoint(path, path, source, evidence=NAMED) for path in given], []


def from_urls_file(path: str) -> Found:
    """A file with a path or URL in each line; empty lines and those with # are skipped.

    :raises ConfigurationError: for a line that is neither, and if there is none.
    """
    lines = [line.strip() for line in file_text("--urls", path).splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    urls = [_path_of(each) if _ORIGIN.match(each) else each for each in named]
    try:
        found = from_paths(urls, "urls file")
    except ConfigurationError as error:
        raise ConfigurationError(f"--urls {path}: {error}") from None
    return some(found, f"--urls {path}: no line of it is a path or URL")


def from_access_log(path: str, *, most: int = 200) -> Found:
    """The paths of an access log, and how often each was asked.

    In the common or combined format, in uvicorn's, or in wsgifast's own of JSON.

    :param most: of the paths, the most frequent ones.
    :raises ConfigurationError: if no line of it is in one of the formats.
    """
    lines = file_text("--access-log", path).splitlines()
    logged = [found for line in lines if (found := _read(line))]
    if not logged:
        raise ConfigurationError(
            f"--access-log {path}: no line is in the common or combined log format, uvicorn's, or "
            "wsgifast's JSON"
        )
    counts = Counter((method, _path_of(url)) for method, url, status in logged if status[0] in "23")
    left = [
        Unreached(
            url, f"only the {most} most frequent of the log's {len(counts)} paths are requested"
        )
        for (_, url), _ in counts.most_common()[most : most + 1]
    ]
    return _counted(counts.most_common(most), "access log"), left


def _read(line: str) -> tuple[str, str, str] | None:
    """The method, the URL and the status in a line of an access log; None if it has none."""
    if not line.startswith("{"):
        found = _LOGGED.search(line)
        method, url, status = found.groups() if found else ("", "", "")
    else:
        try:
            fields = json.loads(line)
        except ValueError:
            return None
        method, path, query, status = (
            str(fields.get(name, ""))
            for name in (
                "http.request.method", "url.path", "url.query", "http.response.status_code"
            )
        )  # fmt: skip
        url = f"{path}?{query}" if query else path
    is_asked = status and (url.startswith("/") or _ORIGIN.match(url))
    return (method, url, status) if is_asked else None


def _counted(requests: Iterable[tuple[tuple[str, str], int]], source: str) -> list[Endpoint]:
    return [
        Endpoint(url, url.partition("?")[0], source, method, requests=count)
        for (method, url), count in requests
    ]


def some(found: Found, problem: str) -> Found:
    """:raises ConfigurationError: if it is nothing."""
    if not any(found):
        raise ConfigurationError(problem)
    return found


def _path_of(url: str) -> str:
    """The path and query of a URL, percent-encoded; what begins with // has no host."""
    path = _ORIGIN.sub("", url).partition("#")[0]
    return encoded(path if path.startswith("/") else f"/{path}")


def encoded(url: str) -> str:
    """A path and query as a client may send it: what is not visible ASCII is percent-encoded."""
    return quote(url.encode(errors="surrogateescape"), safe=_URL_CHARACTERS)


def file_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None


def filled(pattern: str, values: Mapping[str, str]) -> str | list[str]:
    """A pattern with its parameters' values in it, or the names of those that have none."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["curly"] or match["star"] or _angle_name(match["angle"])
        if name not in values:
            missing.append(name)
            return ""
        return quote(values[name], safe="/")

    url = _PARAMETER.sub(value, pattern)
    return missing or encoded(url)


def _angle_name(text: str) -> str:
    """The name in <int:name> and <any(a, b):name> (Flask, Django) or <name:re:...> (Bottle)."""
    first, _, rest = text.partition(":")
    if not rest:
        return first
    is_kind = first.partition("(")[0] in _KINDS or (":" not in rest and "(" in first)
    return rest if is_kind else first


def unfilled(pattern: str, names: Sequence[str], method: str) -> Unreached:
    """A pattern with parameters that have no value."""
    reason = f"needs {' '.join(f'--value {name}=...' for name in names)}"
    return Unreached(pattern, reason, method, tuple(names))


def values_in(pattern: str, path: str) -> dict[str, str] | None:
    """The values of a pattern's parameters in a path; None if it does not match.

    :returns: each value under the pattern's text up to and with its parameter, which tells the
        parameters of many patterns apart: "/<user>" of "/<user>/orders/<id>" is that of "/<user>".
    """
    keys, parts = [], []
    end = 0
    for match in _PARAMETER.finditer(pattern):
        keys.append(pattern[: match.end()])
        is_path = match["star"] or re.search(r"\bpath\b|\bre:|\*", match[0])
        parts.append(re.escape(encoded(pattern[end : match.start()])))
        parts.append("(.+)" if is_path else "([^/]+)")
        end = match.end()
    parts.append(re.escape(encoded(pattern[end:])))
    found = re.fullmatch("".join(parts), path)
    return dict(zip(keys, map(unquote, found.groups()), strict=True)) if found else None


def filled_by_prefix(pattern: str, values: Mapping[str, str]) -> str | None:
    """A pattern with values in it, as :func:`values_in` returns them; None if one is missing."""
    if any(pattern[: match.end()] not in values for match in _PARAMETER.finditer(pattern)):
        return None
    url = _PARAMETER.sub(lambda m: quote(values[pattern[: m.end()]], safe="/"), pattern)
    return encoded(url)
