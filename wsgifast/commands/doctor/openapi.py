"""The operations of an OpenAPI document, and which of them it calls read-only."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from ...errors import ConfigurationError
from .endpoints import file_text, filled, some, unfilled
from .model import Endpoint, Found

# What the app answers to a path of its own: the body of a 200.
Fetch = Callable[[str], bytes]
# A variable of a server's URL.
_VARIABLE = re.compile(r"\{(.+?)\}")


def from_openapi(source: str, values: Mapping[str, str], fetch: Fetch) -> Found:
    """The operations of an OpenAPI description, below the path of its first server.

    :param source: a JSON file, or a path of the app that answers with one.
    :raises ConfigurationError: if it is no such description.
    """
    is_own = source.startswith("/") and not Path(source).is_file()
    text = fetch(source) if is_own else file_text("--openapi", source)
    with _no("--openapi", source, "an OpenAPI document in JSON"):
        described = json.loads(text)
        at = source if is_own else "/"
        operations = [
            (
                _base(at, described, item, operation) + pattern,
                method.upper(),
                _examples(item, operation),
                _READ_ONLY if _is_read_only(described, item, method) else "",
            )
            for pattern, item in described["paths"].items()
            for method, operation in item.items()
            if method in ("get", "head", "post", "put", "patch", "delete", "options")
        ]
    endpoints, unreached = [], []
    for pattern, method, known, evidence in operations:
        url = filled(pattern, {**known, **values})
        if isinstance(url, str):
            endpoints.append(Endpoint(url, pattern, "openapi", method, evidence=evidence))
        else:
            unreached.append(unfilled(pattern, url, method))
    return some((endpoints, unreached), f"--openapi {source}: it describes no operation")


_READ_ONLY = "the OpenAPI document describes what it returns, and nothing that it takes or does"


def _is_read_only(document: Mapping[str, Any], item: Mapping[str, Any], method: str) -> bool:
    """Whether a document says of an operation that it only returns something.

    Its method is not enough: many frameworks let GET call any function, and list it as one. The
    operation has to describe the representation that it returns (RFC 9110 9.3.1: GET is a transfer
    of one), other than a page or a text; to take no body; to answer with no status of an action,
    such as 201; and not to be offered by another method as well.
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
    good = {str(code): answer for code, answer in operation.get("responses", {}).items()}
    good = {code: answer for code, answer in good.items() if code[:1] == "2"}
    return (
        bool(good)
        and good.keys() <= {"200", "206", "2XX"}
        and all(_describes(document, _followed(document, answer)) for answer in good.values())
    )


def _describes(document: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Whether a response describes a representation: of JSON its parts, or data of another type."""
    content = answer.get("content")
    if content is None:  # Swagger 2.0
        content = {"application/json": answer} if "schema" in answer else {}
    return bool(content) and all(_describes_type(*each) for each in content.items())


def _describes_type(kind: str, media: Mapping[str, Any]) -> bool:
    if "json" not in kind:
        return not kind.startswith(("text/html", "text/plain", "*/*"))
    schema = media.get("schema", {})
    return any(
        schema.get(key) for key in ("$ref", "properties", "items", "oneOf", "anyOf", "allOf")
    )


def _followed(document: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    """What a reference within a document refers to; anything else as it is."""
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
    server = next((level["servers"][0] for level in reversed(levels) if level.get("servers")), None)
    url: str = levels[0].get("basePath", "/")
    if server is not None:
        variables = server.get("variables", {})
        url = _VARIABLE.sub(lambda match: str(variables[match[1]]["default"]), server["url"])
    return urlsplit(urljoin(at, url)).path.rstrip("/")


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


@contextlib.contextmanager
def _no(option: str, path: str, kind: str) -> Iterator[None]:
    """:raises ConfigurationError: for what is raised by data of another kind."""
    try:
        yield
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ConfigurationError(f"{option} {path}: it is not {kind} ({reason})") from None
