"""An ASGI request's facts for the file core, which itself knows no scope."""

from __future__ import annotations

from wsgifast.files import RequestFacts

from .messages import Scope

__all__ = ["UNCONDITIONAL", "request_facts"]

# What the facts have from their third field on where neither Range nor conditions were sent.
UNCONDITIONAL = RequestFacts()[2:]

_FIELDS = {
    name.replace("_", "-").encode(): name for name in RequestFacts._fields if name != "method"
}


def request_facts(scope: Scope) -> RequestFacts:
    """Take from an http scope what decides how a file is answered.

    A header that was sent several times counts as one, its values joined (RFC 9110, section 5.3).
    """
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            found[field] = f"{found[field]}, {text}" if field in found else text
    return RequestFacts(scope["method"], **found)
