"""Wrapping rejects objects that cannot be apps, and accepts all others."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asgifast
import bottle
import django.core.handlers.asgi
import django.core.handlers.wsgi
import falcon
import flask
import pytest
import starlette.applications
from werkzeug.local import LocalProxy
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from wsgifast import ConfigurationError, StaticFiles, WSGIFast
from wsgifast.checks import Interface, check_app


def wsgi(environ: Any, start_response: Any) -> Any: ...
async def asgi(scope: Any, receive: Any, send: Any) -> None: ...
def sync_asgi(scope: Any, receive: Any, send: Any) -> Any: ...
def prefixed(prefix: str, environ: Any, start_response: Any) -> Any: ...
async def handler(environ: Any, start_response: Any) -> Any: ...
async def async_generator(environ: Any, start_response: Any) -> Any:
    yield b""


@functools.wraps(asgi)
def adapted(environ: Any, start_response: Any) -> Any: ...


class PerRequest:
    def __init__(self, environ: Any, start_response: Any) -> None: ...


class Methods:
    def wsgi(self, environ: Any, start_response: Any) -> Any: ...
    async def asgi(self, scope: Any, receive: Any, send: Any) -> None: ...


def fail() -> Any:
    raise RuntimeError("not bound yet")


WSGI_APPS: dict[str, Callable[[], Any]] = {
    "a function": lambda: wsgi,
    "a function with options": lambda: lambda environ, start_response, *, debug=False: None,
    "any arguments": lambda: lambda *args, **kwargs: None,
    "a partial": lambda: functools.partial(prefixed, "/"),
    "a method": lambda: Methods().wsgi,
    "a class": lambda: PerRequest,
    "a mock": lambda: Mock(),
    "a proxy": lambda: LocalProxy(lambda: wsgi),
    "an adapter with its app's signature": lambda: adapted,
    "a builtin": lambda: dict,
    "Flask": lambda: flask.Flask("test"),
    "Bottle": lambda: bottle.Bottle(),
    "falcon": lambda: falcon.App(),
    "Django": lambda: django.core.handlers.wsgi.WSGIHandler.__new__(
        django.core.handlers.wsgi.WSGIHandler
    ),
    "a middleware": lambda: DispatcherMiddleware(wsgi),
}
ASGI_APPS: dict[str, Callable[[], Any]] = {
    "a function": lambda: asgi,
    "a function that returns the coroutine": lambda: sync_asgi,
    "a method": lambda: Methods().asgi,
    "a partial": lambda: functools.partial(asgi),
    "FastAPI": lambda: pkgutil.resolve_name("fastapi:FastAPI")(),  # slow to import
    "Starlette": lambda: starlette.applications.Starlette(),
    "falcon": lambda: __import__("falcon.asgi").asgi.App(),
    "Django": lambda: django.core.handlers.asgi.ASGIHandler.__new__(
        django.core.handlers.asgi.ASGIHandler
    ),
}


@pytest.mark.parametrize("name", WSGI_APPS)
def test_wsgi_apps_pass(name: str) -> None:
    check_app(WSGI_APPS[name](), "WSGI")


@pytest.mark.parametrize("name", ASGI_APPS)
def test_asgi_apps_pass(name: str) -> None:
    check_app(ASGI_APPS[name](), "ASGI")


def test_proxy_that_is_not_bound_yet_passes() -> None:
    check_app(LocalProxy(fail), "WSGI")


@pytest.mark.parametrize("name", ASGI_APPS)
def test_asgi_app_is_refused_as_wsgi(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"asgifast\.ASGIFast wraps ASGI apps"):
        WSGIFast(ASGI_APPS[name]())


@pytest.mark.parametrize("name", ["a function", "a method", "a class", "Flask", "falcon", "Django"])
def test_wsgi_app_is_refused_as_asgi(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"wsgifast\.WSGIFast wraps WSGI apps"):
        check_app(WSGI_APPS[name](), "ASGI")


@pytest.mark.parametrize(
    ("app", "interface", "way_out"),
    [
        (None, "WSGI", "a factory has returned nothing"),
        (None, "ASGI", "a factory has returned nothing"),
        ("module:app", "WSGI", "'module:app' is no WSGI app"),
        (lambda: wsgi, "WSGI", "call it first, if it is a factory"),
        (lambda: asgi, "ASGI", "call it first, if it is a factory"),
        (handler, "WSGI", r"asynchronous; give a callable that takes \(environ, start_response\)"),
        (async_generator, "WSGI", r"asynchronous; give a callable"),
        (lambda scope: asgi, "ASGI", r"a callable that takes \(scope, receive, send\)"),
    ],
)
def test_object_that_is_no_app_is_refused(app: Any, interface: Interface, way_out: str) -> None:
    with pytest.raises(ConfigurationError, match=way_out):
        check_app(app, interface)


def test_refused_app_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"the app tests.test_checks.asgi is no WSGI app"):
        WSGIFast(asgi)  # type: ignore[arg-type]


def test_static_files_before_a_wrong_app_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"asgifast\.ASGIFast wraps ASGI apps"):
        StaticFiles(asgi, directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"wsgifast\.WSGIFast wraps WSGI apps"):
        asgifast.StaticFiles(wsgi, directory=tmp_path)  # type: ignore[arg-type]
