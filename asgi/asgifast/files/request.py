"""What the file core has to know of an ASGI request."""

from __future__ import annotations

from wsgifast.files import RequestFacts

from ..messages import Scope

# The facts from their third field on, if neither Range nor preconditions were sent.
UNCONDITIONAL = RequestFacts()[2:]

_FIELDS = {
    name.replace("_", "-").encode(): name for name in RequestFacts._fields if name != "method"
}


def request_facts(scope: Scope) -> RequestFacts:
    """Return the method, Range and preconditions of an http scope.

    Headers of the same name are joined (RFC 9110, section 5.3).
    """
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            found[field] = f"{found[field]}, {text}" if field in found else text
    return RequestFacts(scope["method"], **found)
