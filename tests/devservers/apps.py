"""Apps for the tests over every kind of development server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.http import Connection

from .serving import SINGLE, THREADED

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

TEXT = [("Content-Type", "text/plain")]
each_threaded = pytest.mark.parametrize("kind", THREADED)
each_single = pytest.mark.parametrize("kind", SINGLE)


def answering(
    body: Callable[[WSGIEnvironment], Any],
    status: str = "200 OK",
    headers: list[tuple[str, str]] = TEXT,
) -> WSGIApplication:
    """An app that returns what `body` makes of the environ."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        made = body(environ)
        start_response(status, list(headers))
        return made

    return app


def path_of(environ: WSGIEnvironment) -> list[bytes]:
    return [environ["PATH_INFO"].encode("latin-1")]


def assert_alive(connection: Connection) -> None:
    """The connection answers a request of its own, not a leftover."""
    response = connection.request("/still-here")
    assert (response.status, response.body) == (200, b"/still-here"), str(response)


def router(**apps: WSGIApplication) -> WSGIApplication:
    """Apps by their path; everything else gets its path back."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        chosen = apps.get(environ["PATH_INFO"][1:], answering(path_of))
        return chosen(environ, start_response)

    return app
