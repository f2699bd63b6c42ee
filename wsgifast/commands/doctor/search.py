"""Decide which endpoints are requested: safe endpoints, and others if the user allows it.

A GET should not change data (RFC 9110, section 9.2.1), but in many apps it does. The method, the
name and the path of an endpoint do not prove that a request is safe. So the doctor needs other
evidence, or asks the user. There are three kinds of evidence (:attr:`.model.Endpoint.evidence`):

- The user has named it.
- It is a file of a folder that the app serves.
- An OpenAPI document describes it as read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Endpoint, Found, Unreached

# A function that returns whether to request unsafe endpoints: (safe endpoints, other endpoints).
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")


def chosen(found: Found, *, unsafe: bool, allow: Allow) -> tuple[list[Endpoint], list[Unreached]]:
    """Return the endpoints to request, and the endpoints that are not requested.

    :param unsafe: request all endpoints with all methods, without a call of `allow`.
    :param allow: decides about endpoints without evidence.
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
