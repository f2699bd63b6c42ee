"""A WSGI request's facts for the file core, which itself knows no environ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .files.plan import RequestFacts

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = ["request_facts"]


def request_facts(environ: WSGIEnvironment) -> RequestFacts:
    """Gather from an environ what decides how a file is answered."""
    get = environ.get
    return RequestFacts(
        environ["REQUEST_METHOD"],
        get("HTTP_ACCEPT_ENCODING"),
        get("HTTP_RANGE"),
        get("HTTP_IF_RANGE"),
        get("HTTP_IF_MATCH"),
        get("HTTP_IF_UNMODIFIED_SINCE"),
        get("HTTP_IF_NONE_MATCH"),
        get("HTTP_IF_MODIFIED_SINCE"),
    )
