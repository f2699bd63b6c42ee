"""Find endpoints in command lines, access logs and OpenAPI documents, and choose among them.

A GET should not change data (RFC 9110, section 9.2.1), but in many apps it does. The method, the
name and the path of an endpoint do not prove that a request is safe. So the doctor needs other
evidence that a request is safe, or asks the user. There are three kinds of evidence
(:attr:`.model.Endpoint.evidence`):

- The user has named the endpoint.
- The endpoint is a file in a folder that the app serves.
- An OpenAPI document describes the endpoint as read-only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from ...errors import ConfigurationError
from ..arguments import check_path
from .model import Endpoint, Found, Unreached

# The evidence of endpoints that the user has named.
NAMED = "named"

_ORIGIN = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
# The method, URL and status in the common and combined log formats, and in uvicorn's format.
_LOGGED = re.compile(r'"([A-Z]+) (\S+)(?: HTTP/[0-9.]+)?" ([0-9]{3})\b')
# Characters that are not percent-encoded in a URL (RFC 3986). "%" is one of them, because it starts
# an encoded byte.
_URL_CHARACTERS = "!$%&'()*+,/:;=?@[]~"
# A parameter in a pattern: {name}, {name:path}, {*name}, <name>, <int:name>, <path:name>.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?:[^<>]*:)?(?P<angle>[^<>:]+)>")
# A function that gets the safe endpoints and the other endpoints. It returns whether to request the
# other endpoints.
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")


def chosen(found: Found, *, unsafe: bool, allow: Allow) -> tuple[list[Endpoint], list[Unreached]]:
    """Return the endpoints to request, and the endpoints that are not requested.

    :param unsafe: whether to request all endpoints with all methods, without a call of `allow`.
    :param allow: the function that decides about endpoints without evidence.
    """
    listed = [each for each in found if isinstance(each, Endpoint)]
    endpoints = list({(e.method, e.url): e for e in reversed(listed)}.values())[::-1]
    names = {(each.method, each.name) for each in endpoints}
    missing = [each for each in found if isinstance(each, Unreached)]
    unreached = [each for each in missing if (each.method, each.name) not in names]
    readable = [each for each in endpoints if each.method in _SAFE_METHODS]
    safe = [each for each in readable if each.evidence]
    others = [each for each in (endpoints if unsafe else readable) if each not in safe]
    if others and not (unsafe or allow(safe, others)):
        reason = "may change something: --all requests it, too"
        unreached += [Unreached(each.name, reason, each.method) for each in others]
        others = []
    if not unsafe:
        reason = "its method changes something: --unsafe requests it, too"
        unreached += [
            Unreached(each.name, reason, each.method) for each in endpoints if each not in readable
        ]
    return [*safe, *others], unreached


def from_paths(paths: Iterable[str]) -> Found:
    """Return the endpoints of paths on the command line.

    :raises ConfigurationError: if a path is malformed.
    """
    unique = list(dict.fromkeys(paths))
    for path in unique:
        check_path(path)
    return [Endpoint(path, path, "command line", evidence=NAMED) for path in unique]


def from_access_log(path: str, *, max_paths: int = 200) -> Found:
    """Return the endpoints of an access log, each with the number of its requests.

    The log has the common format, the combined format, uvicorn's format or wsgifast's JSON format.

    :param path: the path of the file.
    :param max_paths: the maximum number of endpoints. The most frequent ones are returned.
    :raises ConfigurationError: if no line is in one of the formats.
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
        for (method, url), count in counts.most_common(max_paths)
    ]
    reason = f"only the {max_paths} most frequent of the log's {len(counts)} paths are requested"
    omitted = [
        Unreached(url, reason) for (_, url), _ in counts.most_common()[max_paths : max_paths + 1]
    ]
    return [*endpoints, *omitted]


def _read(line: str) -> tuple[str, str, str] | None:
    """Return the method, URL and status in a line of an access log.

    None if one of them is missing.
    """
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


def _checked(found: Found, problem: str) -> Found:
    """Return `found` unchanged.

    :raises ConfigurationError: if `found` is empty.
    """
    if not found:
        raise ConfigurationError(problem)
    return found


def _path_of(url: str) -> str:
    """Return the percent-encoded path and query of a URL.

    The URL //x is a path, and x is not a host.
    """
    path = _ORIGIN.sub("", url).partition("#")[0]
    return _encoded(path if path.startswith("/") else f"/{path}")


def _encoded(url: str) -> str:
    """Percent-encode a path and query, so that a client can send it."""
    return quote(url.encode(errors="surrogateescape"), safe=_URL_CHARACTERS)


def _file_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None


def filled(
    pattern: str, values: Mapping[str, str], source: str, method: str, evidence: str = ""
) -> Endpoint | Unreached:
    """Return the endpoint of a pattern with values for its parameters.

    If a parameter has no value, the result is an Unreached that names the parameter.
    """
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["curly"] or match["angle"]
        if name not in values:
            missing.append(name)
            return ""
        return quote(values[name], safe="/")

    url = _PARAMETER.sub(value, pattern)
    if not missing:
        return Endpoint(_encoded(url), pattern, source, method, evidence)
    reason = f"needs {' '.join(f'--value {name}=...' for name in missing)}"
    return Unreached(pattern, reason, method)


# A function that requests a path of the app, and returns the body if the status is 200.
Fetch = Callable[[str], bytes]


def from_openapi(source: str, values: Mapping[str, str], fetch: Fetch) -> Found:
    """Return endpoints for the operations of an OpenAPI document.

    Their paths start with that of the document's first server.

    :param source: the path of a JSON file, or the URL path at which the app serves the document.
    :raises ConfigurationError: if the source is not an OpenAPI document.
    """
    is_served = source.startswith("/") and not Path(source).is_file()
    text = fetch(source) if is_served else _file_text("--openapi", source)
    try:
        document = json.loads(text)
        document_url = source if is_served else "/"
        found: Found = [
            filled(
                _base(document_url, document, item, operation) + pattern,
                {**_examples(item, operation), **values},
                "openapi",
                method.upper(),
                _READ_ONLY if _is_read_only(document, item, method) else "",
            )
            for pattern, item in document["paths"].items()
            for method, operation in item.items()
            if method in ("get", "head", "post", "put", "patch", "delete", "options")
        ]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ConfigurationError(
            f"--openapi {source}: it is not an OpenAPI document in JSON ({reason})"
        ) from None
    return _checked(found, f"--openapi {source}: it describes no operation")


_READ_ONLY = "the OpenAPI document describes its response, and neither a body nor an action"


def _is_read_only(document: Mapping[str, Any], item: Mapping[str, Any], method: str) -> bool:
    """Return whether a document describes an operation as read-only.

    The method GET is not enough, since many frameworks let any function respond to GET. All of
    these conditions must be true:

    - The operation describes its response, which is neither HTML nor plain text.
    - It has no request body.
    - It has no status code of an action, such as 201.
    - No other method of the same path has its summary or description.

    An operation of Swagger 2.0 is never read-only.
    """
    operation = item[method]
    if method not in ("get", "head") or "requestBody" in operation:
        return False
    texts = [operation[key] for key in ("summary", "description") if operation.get(key)]
    for other_method, other in item.items():
        is_comparable = other_method not in (method, "get", "head") and isinstance(other, Mapping)
        if is_comparable and any(other.get(key) in texts for key in ("summary", "description")):
            return False
    parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
    if any(_resolve(document, each).get("in") in ("body", "formData") for each in parameters):
        return False
    responses = {str(code): response for code, response in operation.get("responses", {}).items()}
    successes = {code: response for code, response in responses.items() if code[:1] == "2"}
    return (
        bool(successes)
        and successes.keys() <= {"200", "206", "2XX"}
        and all(_describes(_resolve(document, response)) for response in successes.values())
    )


def _describes(response: Mapping[str, Any]) -> bool:
    """Return whether a document describes the type of a response and, for JSON, its parts."""
    content = response.get("content", {})
    return bool(content) and all(_describes_type(*each) for each in content.items())


def _describes_type(kind: str, media: Mapping[str, Any]) -> bool:
    if "json" not in kind:
        return not kind.startswith(("text/html", "text/plain", "*/*"))
    schema = media.get("schema", {})
    return any(
        schema.get(key) for key in ("$ref", "properties", "items", "oneOf", "anyOf", "allOf")
    )


def _resolve(document: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    """Return the target of a reference within a document. Return any other object unchanged."""
    for _ in range(8):
        if not (isinstance(node, Mapping) and str(node.get("$ref", "")).startswith("#/")):
            break
        found: Any = document
        for part in node["$ref"][2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {})
        node = found
    return node if isinstance(node, Mapping) else {}


def _base(document_url: str, *levels: Mapping[str, Any]) -> str:
    """Return the path of the first server (OpenAPI 3), or the basePath (Swagger 2.0).

    :param document_url: the path of the document. The URL of a server may be relative to it.
    :param levels: the document, the item and the operation. The last of them that lists servers
        counts.
    """
    servers = (level["servers"][0] for level in reversed(levels) if level.get("servers"))
    server: Mapping[str, Any] = next(servers, {})
    url: str = server.get("url") or levels[0].get("basePath", "/")
    for name, variable in server.get("variables", {}).items():
        url = url.replace(f"{{{name}}}", str(variable["default"]))
    return urlsplit(urljoin(document_url, url)).path.rstrip("/")


def _examples(*levels: Mapping[str, Any]) -> dict[str, str]:
    """Return the examples and defaults of path parameters in an OpenAPI document.

    :param levels: the item and the operation.
    """
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
