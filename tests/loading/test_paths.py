"""Paths that an app leaves free for health checks, by the URLs of its framework."""

from __future__ import annotations

from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from wsgifast.commands.loading.frameworks import free_paths
from wsgifast.commands.loading.servers import PROBE_PATHS

PATHS = [*PROBE_PATHS.values()]


def flask_app(*rules: str) -> flask.Flask:
    app = flask.Flask(__name__)
    for number, rule in enumerate(rules):
        app.add_url_rule(rule, str(number), lambda **values: "ok")
    return app


def starlette_app(*paths: str) -> Starlette:
    return Starlette(routes=[Route(path, lambda request: None) for path in paths])


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (flask_app("/", "/<int:number>"), PATHS),
        (flask_app("/livez"), ["/readyz"]),
        (flask_app("/livez/", "/readyz"), []),
        (flask_app("/<path:page>"), []),
        (flask_app("/").wsgi_app, PATHS),
        (starlette_app("/", "/pages/{number:int}"), PATHS),
        (starlette_app("/readyz"), ["/livez"]),
        (starlette_app("/{page}"), []),
        (Starlette(routes=[Mount("/", app=starlette_app("/"))]), []),
        (lambda environ, start_response: [], []),
    ],
)
def test_free_paths_are_those_that_no_url_matches(app: Any, expected: list[str]) -> None:
    assert free_paths(app, PATHS, django=False) == expected


def test_paths_of_an_app_whose_urls_fail_are_not_free() -> None:
    class Broken(flask.Flask):
        url_map = property(lambda self: 1 / 0)

        def __init__(self) -> None:
            pass

    assert free_paths(Broken(), PATHS, django=False) == []
