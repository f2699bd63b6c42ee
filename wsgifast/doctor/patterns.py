"""URL patterns of frameworks and API descriptions, and the values of their parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

__all__ = ["filled", "needs"]

# A parameter in a pattern: {name}, {name:path}, <name>, <int:name>, <path:name>, <name:re:...>.
_PARAMETER = re.compile(r"\{\*?(?P<curly>\w+)(?::[^}]*)?\}|<(?P<angle>[^<>]+)>")
# Kinds of parameters, which stand beside the name in one place or the other.
_KINDS = frozenset(
    {"int", "float", "path", "str", "string", "slug", "uuid", "any", "re", "filter", "default"}
)


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
