"""Endpoints from a command line, an access log or an OpenAPI document, and URL patterns."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from ...errors import ConfigurationError
from ..arguments import check_path
from .model import Endpoint, Found, Unreached

# Why the endpoints that a person names are requested.
NAMED = "named"

_ORIGIN = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
# In NCSA's common and combined log formats, and in uvicorn's: method, URL, status.
_LOGGED = re.compile(r'"([A-Z]+) (\S+)(?: HTTP/[0-9.]+)?" ([0-9]{3})\b')
# Characters that stay unencoded in a URL: RFC 3986's reserved and unreserved ones, and "%".
_URL_CHARACTERS = "!$%&'()*+,/:;=?@[]~"
# A parameter in a pattern: {name}, {name:path}, {*name}, <name>, <int:name>, <path:name>.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?:[^<>]*:)?(?P<angle>[^<>:]+)>")


def from_paths(paths: Iterable[str]) -> Found:
    """Paths as they are written on a command line.

    :raises ConfigurationError: for one that is not a path.
    """
    given = list(dict.fromkeys(paths))
    for path in given:
        check_path(path)
    return [Endpoint(path, path, "command line", evidence=NAMED) for path in given]


def from_access_log(path: str, *, most: int = 200) -> Found:
    """The paths of an access log, and how often each was requested.

    In the common or combined format, in uvicorn's, or in wsgifast's own of JSON.

    :param most: of the paths, the most frequent ones.
    :raises ConfigurationError: if no line of it is in one of the formats.
    """
    lines = _file_text("--access-log", path).splitlines()
    logged = [found for line in lines if (found := _read(line))]
    if not logged:
        raise ConfigurationError(
            f"--access-log {path}: no line is in the common or combined log format, uvicorn's, or "
            "wsgifast's JSON"
        )
    counts = Counter((method, _path_of(url)) for method, url, status in logged if status[0] in "23")
    endpoints: Found = [
        Endpoint(url, url.partition("?")[0], "access log", method, requests=count)
        for (method, url), count in counts.most_common(most)
    ]
    why = f"only the {most} most frequent of the log's {len(counts)} paths are requested"
    left = [Unreached(url, why) for (_, url), _ in counts.most_common()[most : most + 1]]
    return [*endpoints, *left]


def _read(line: str) -> tuple[str, str, str] | None:
    """Return method, URL and status of a line of an access log. None if it has none."""
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
    is_requested = status and (url.startswith("/") or _ORIGIN.match(url))
    return (method, url, status) if is_requested else None


def _some(found: Found, problem: str) -> Found:
    """:raises ConfigurationError: if nothing was found."""
    if not found:
        raise ConfigurationError(problem)
    return found


def _path_of(url: str) -> str:
    """Return the path and query of a URL, percent-encoded. //x is a path, not a host."""
    path = _ORIGIN.sub("", url).partition("#")[0]
    return encoded(path if path.startswith("/") else f"/{path}")


def encoded(url: str) -> str:
    """A path and query for a client to send. All but visible ASCII is percent-encoded."""
    return quote(url.encode(errors="surrogateescape"), safe=_URL_CHARACTERS)


def _file_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None


def filled(
    pattern: str, values: Mapping[str, str], source: str, method: str, evidence: str = ""
) -> Endpoint | Unreached:
    """The endpoint of a pattern with its parameters' values, or the names of those without one."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["curly"] or match["angle"]
        if name not in values:
            missing.append(name)
            return ""
        return quote(values[name], safe="/")

    url = _PARAMETER.sub(value, pattern)
    if not missing:
        return Endpoint(encoded(url), pattern, source, method, evidence)
    reason = f"needs {' '.join(f'--value {name}=...' for name in missing)}"
    return Unreached(pattern, reason, method)


# Returns the app's response to one of its paths: the body of a 200.
Fetch = Callable[[str], bytes]


def from_openapi(source: str, values: Mapping[str, str], fetch: Fetch) -> Found:
    """The operations of an OpenAPI description, below the path of its first server.

    :param source: a JSON file, or a path of the app that answers with one.
    :raises ConfigurationError: if it is no such description.
    """
    is_own = source.startswith("/") and not Path(source).is_file()
    text = fetch(source) if is_own else _file_text("--openapi", source)
    try:
        described = json.loads(text)
        at = source if is_own else "/"
        found: Found = [
            filled(
                _base(at, described, item, operation) + pattern,
                {**_examples(item, operation), **values},
                "openapi",
                method.upper(),
                _READ_ONLY if _is_read_only(described, item, method) else "",
            )
            for pattern, item in described["paths"].items()
            for method, operation in item.items()
            if method in ("get", "head", "post", "put", "patch", "delete", "options")
        ]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ConfigurationError(
            f"--openapi {source}: it is not an OpenAPI document in JSON ({reason})"
        ) from None
    return _some(found, f"--openapi {source}: it describes no operation")


_READ_ONLY = "the OpenAPI document describes what it returns, and nothing that it takes or does"


def _is_read_only(document: Mapping[str, Any], item: Mapping[str, Any], method: str) -> bool:
    """Whether a document says of an operation that it only returns something.

    Its method is not enough, because many frameworks let GET call any function. The operation must
    describe the representation that it returns (RFC 9110, section 9.3.1: GET transfers one). That
    is neither a page nor a text. It takes no body, has no status of an action, such as 201, and no
    other method offers it. An operation of Swagger 2.0 is never read-only.
    """
    operation = item[method]
    if method not in ("get", "head") or "requestBody" in operation:
        return False
    named = [operation[key] for key in ("summary", "description") if operation.get(key)]
    for other, same in item.items():
        is_other = other not in (method, "get", "head") and isinstance(same, Mapping)
        if is_other and any(same.get(key) in named for key in ("summary", "description")):
            return False
    parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
    if any(_followed(document, each).get("in") in ("body", "formData") for each in parameters):
        return False
    good = {str(code): response for code, response in operation.get("responses", {}).items()}
    good = {code: response for code, response in good.items() if code[:1] == "2"}
    return (
        bool(good)
        and good.keys() <= {"200", "206", "2XX"}
        and all(_describes(_followed(document, response)) for response in good.values())
    )


def _describes(response: Mapping[str, Any]) -> bool:
    """Whether a response describes a representation: of JSON its parts, or data of another type."""
    content = response.get("content", {})
    return bool(content) and all(_describes_type(*each) for each in content.items())


def _describes_type(kind: str, media: Mapping[str, Any]) -> bool:
    if "json" not in kind:
        return not kind.startswith(("text/html", "text/plain", "*/*"))
    schema = media.get("schema", {})
    return any(
        schema.get(key) for key in ("$ref", "properties", "items", "oneOf", "anyOf", "allOf")
    )


def _followed(document: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    """Return the target of a reference within a document, and anything else unchanged."""
    for _ in range(8):
        if not (isinstance(node, Mapping) and str(node.get("$ref", "")).startswith("#/")):
            break
        found: Any = document
        for part in node["$ref"][2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {})
        node = found
    return node if isinstance(node, Mapping) else {}


def _base(at: str, *levels: Mapping[str, Any]) -> str:
    """The path of the first server of the innermost level that has any (OpenAPI 3), or basePath.

    :param at: the document's own path, to which a server's may be relative.
    """
    servers = (level["servers"][0] for level in reversed(levels) if level.get("servers"))
    server: Mapping[str, Any] = next(servers, {})
    url: str = server.get("url") or levels[0].get("basePath", "/")
    for name, variable in server.get("variables", {}).items():
        url = url.replace(f"{{{name}}}", str(variable["default"]))
    return urlsplit(urljoin(at, url)).path.rstrip("/")


def _examples(*levels: Mapping[str, Any]) -> dict[str, str]:
    """The examples and defaults of path parameters in an OpenAPI description."""
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
