"""Apps by name, as they are and wrapped, for servers that are told what to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgifast import ASGIFast

from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["load_app", "target", "wrapped", "wrapped_asgi"]


def wrapped(app: str, **options: Any) -> WSGIApplication:
    """Import an app and wrap it, as gunicorn's "loadtests.wrapping:wrapped('module:app')" does.

    :param options: for WSGIFast.
    """
    return WSGIFast(load_app(app), **options)


def wrapped_asgi(app: str, **options: Any) -> ASGIFast:
    """Import an ASGI app and wrap it.

    :param options: for ASGIFast.
    """
    asgi_app: Any = load_app(app)
    return ASGIFast(asgi_app, **options)


def load_app(name: str) -> WSGIApplication:
    """Import an app as gunicorn names it: "module:app", "module", "module:factory('argument')".

    :raises ImportError, gunicorn.errors.AppImportError: if there is none.
    """
    from gunicorn.util import import_app

    app: WSGIApplication = import_app(name)
    return app


def target(app: str, options: dict[str, Any] | None, *, asgi: bool = False) -> str:
    """The import name of an app: as it is without options, wrapped with them (which may be {})."""
    if options is None:
        return app
    arguments = [repr(app), *(f"{name}={value!r}" for name, value in options.items())]
    return f"loadtests.wrapping:wrapped{'_asgi' * asgi}({', '.join(arguments)})"
