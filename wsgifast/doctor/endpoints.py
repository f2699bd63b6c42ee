"""Endpoints that a command line or a file names, and which are left alone unless it names them."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from ..arguments import check_path
from ..errors import ConfigurationError
from .model import Endpoint, Found, Unreached

# What the app answers to a path of its own: the body of a 200.
Fetch = Callable[[str], bytes]
# Sources of endpoints that somebody chose one by one.
NAMED = frozenset({"command line", "urls file"})

# Words for what a GET should not do (RFC 9110 section 9.2.1), and apps let it do all the same.
_ACTIONS = frozenset(
    {"abort", "cancel", "clean", "clear", "deactivate", "delete", "destroy", "disable"}
    | {"disconnect", "drop", "erase", "exit", "flush", "halt", "kill", "logoff", "logout"}
    | {"poweroff", "prune", "purge", "quit", "reboot", "remove", "reset", "restart", "revoke"}
    | {"rollback", "shutdown", "signoff", "signout", "stop", "terminate", "truncate", "uninstall"}
    | {"unsubscribe", "wipe"}
)
# A word of a path: "log-out" and "sign_out" are one; "deleteAll" and "URLDelete" are two.
_WORD = re.compile(
    r"(?i:log|sign|power|shut)[-_ ]?(?i:out|off|down)(?![a-z])"
    r"|[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
)
_ORIGIN = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
# In NCSA's common and combined log formats, and in uvicorn's: method, URL, status.
_LOGGED = re.compile(r'"([A-Z]+) (\S+)(?: HTTP/[0-9.]+)?" ([0-9]{3})\b')
# A variable of an OpenAPI server's URL.
_VARIABLE = re.compile(r"\{(.+?)\}")
# A parameter in a pattern: {name}, {name:path}, <name>, <int:name>, <path:name>, <name:re:...>.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?P<angle>[^<>]+)>")
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
    return [Endpoint(path, path, source) for path in given], []


def from_urls_file(path: str) -> Found:
    """A file with a path or URL in each line; empty lines and those with # are skipped.

    :raises ConfigurationError: for a line that is neither, and if there is none.
    """
    lines = [line.strip() for line in _text("--urls", path).splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    urls = [_path_of(each) if _host_of(each) else each for each in named]
    try:
        found = from_paths(urls, "urls file")
    except ConfigurationError as error:
        raise ConfigurationError(f"--urls {path}: {error}") from None
    return _some(found, f"--urls {path}: no line of it is a path or URL")


def from_access_log(path: str, *, most: int = 200) -> Found:
    """The paths of an access log, and how often each was asked.

    In the common or combined format, in uvicorn's, or in wsgifast's own of JSON.

    :param most: of the paths, the most frequent ones.
    :raises ConfigurationError: if no line of it is in one of the formats.
    """
    logged = [found for line in _text("--access-log", path).splitlines() if (found := _read(line))]
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


def from_openapi(source: str, values: Mapping[str, str], fetch: Fetch) -> Found:
    """The operations of an OpenAPI description, below the path of its first server.

    :param source: a JSON file, or a path of the app that answers with one.
    :raises ConfigurationError: if it is no such description.
    """
    is_own = source.startswith("/") and not Path(source).is_file()
    text = fetch(source) if is_own else _text("--openapi", source)
    with _no("--openapi", source, "an OpenAPI document in JSON"):
        described = json.loads(text)
        at = source if is_own else "/"
        operations = [
            (_base(at, described, item, operation) + pattern, method.upper(), known)
            for pattern, item in described["paths"].items()
            for method, operation in item.items()
            if method in ("get", "head", "post", "put", "patch", "delete", "options")
            for known in [_examples(item, operation)]
        ]
    endpoints, unreached = [], []
    for pattern, method, known in operations:
        url = filled(pattern, {**known, **values})
        if isinstance(url, str):
            endpoints.append(Endpoint(url, pattern, "openapi", method))
        else:
            unreached.append(Unreached(pattern, needs(url), method))
    return _some((endpoints, unreached), f"--openapi {source}: it describes no operation")


def _base(at: str, *levels: Mapping[str, Any]) -> str:
    """The path of the first server of the innermost level that has any (OpenAPI 3), or basePath.

    :param at: the document's own path, to which a server's may be relative.
    """
    server = next((level["servers"][0] for level in reversed(levels) if level.get("servers")), None)
    url: str = levels[0].get("basePath", "/")
    if server is not None:
        variables = server.get("variables", {})
        url = _VARIABLE.sub(lambda match: str(variables[match[1]]["default"]), server["url"])
    return urlsplit(urljoin(at, url)).path.rstrip("/")


def from_har(path: str) -> Found:
    """The requests of a browser's recording (HTTP Archive) to the host that it begins with.

    Its cookies are not used, nor its requests to other hosts: these are no paths of the app.
    """
    text = _text("--har", path)
    with _no("--har", path, "an HTTP Archive"):
        requests = [entry["request"] for entry in json.loads(text)["log"]["entries"]]
        asked = [(each["method"], each["url"], _host_of(each["url"])) for each in requests]
    own = next((host for _, _, host in asked if host), "")
    counts = Counter((method, _path_of(url)) for method, url, host in asked if host == own)
    others = [url for _, url, host in asked if host != own]
    reason = f"{len(others)} of the HAR's {len(asked)} requests are not to its first host, {own}"
    found = _counted(counts.items(), "har"), [Unreached(url, reason) for url in others[:1]]
    return _some(found, f"--har {path}: it has no requests")


def _counted(requests: Iterable[tuple[tuple[str, str], int]], source: str) -> list[Endpoint]:
    return [
        Endpoint(url, url.partition("?")[0], source, method, requests=count)
        for (method, url), count in requests
    ]


def _some(found: Found, problem: str) -> Found:
    """:raises ConfigurationError: if it is nothing."""
    if not any(found):
        raise ConfigurationError(problem)
    return found


@contextlib.contextmanager
def _no(option: str, path: str, kind: str) -> Iterator[None]:
    """:raises ConfigurationError: for what is raised by data of another kind."""
    try:
        yield
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ConfigurationError(f"{option} {path}: it is not {kind} ({reason})") from None


def sounds_unsafe(url: str) -> bool:
    """Whether a path, or a parameter of its query, has the name of an action: "/logout".

    Of a query only whole names and values count: "?do=logout", and not "?q=how+to+stop".
    """
    parts = urlsplit(url)
    words = _WORD.findall(unquote(parts.path))
    for pair in parse_qsl(parts.query, keep_blank_values=True):
        words += pair
    return any(re.sub("[-_ ]", "", word).lower() in _ACTIONS for word in words)


def _examples(*levels: Mapping[str, Any]) -> dict[str, str]:
    """What an OpenAPI description gives as examples and defaults of path parameters."""
    found = {}
    for parameter in chain.from_iterable(level.get("parameters", ()) for level in levels):
        if not isinstance(parameter, dict) or parameter.get("in") != "path":
            continue
        schema = parameter.get("schema", {})
        for value in (parameter.get("example"), schema.get("example"), schema.get("default")):
            if value is not None:
                found[parameter["name"]] = str(value)
                break
    return found


def _host_of(url: str) -> str | None:
    """The host of an HTTP URL, with an unusual port; None for others, such as data: and wss:."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.hostname}:{parts.port}" if parts.port not in (80, 443, None) else parts.hostname


def _path_of(url: str) -> str:
    """The path and query of a URL, with or without a host; what begins with // has none."""
    path = _ORIGIN.sub("", url).partition("#")[0]
    return path if path.startswith("/") else f"/{path}"


def _text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None


def filled(pattern: str, values: Mapping[str, str]) -> str | list[str]:
    """A pattern with its parameters' values in it, or the names of those that have none."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["curly"] or _angle_name(match["angle"])
        if name not in values:
            missing.append(name)
            return ""
        return quote(values[name], safe="/")

    url = _PARAMETER.sub(value, pattern)
    return missing or url


def _angle_name(text: str) -> str:
    """The name in <int:name> and <any(a, b):name> (Flask, Django) or <name:re:...> (Bottle)."""
    first, _, rest = text.partition(":")
    if not rest:
        return first
    is_kind = first.partition("(")[0] in _KINDS or (":" not in rest and "(" in first)
    return rest if is_kind else first


def needs(names: list[str]) -> str:
    """What to do about parameters without a value."""
    return f"needs {' '.join(f'--value {name}=...' for name in names)}"
