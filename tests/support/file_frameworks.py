"""One file that an app and frameworks send, each under its own name, in WSGIFast."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from wsgiref.util import shift_path_info

import falcon
import flask
from servestatic import ServeStatic
from whitenoise import WhiteNoise

from tests.support import files
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ROOT = os.environ.get("FILES_ROOT", "/nonexistent")


def plain(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """Respond without a framework. See tests.support.files for the effect of a query."""
    shift_path_info(environ)
    return files.raw(environ, start_response)


def not_found(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    return [b"nothing here"]


def _flask() -> Any:
    site = flask.Flask("files")

    @site.get("/flask/<name>")
    def file(name: str) -> flask.Response:
        return flask.send_file(os.path.join(ROOT, name))

    return site


def _falcon() -> Any:
    site = falcon.App()
    site.add_static_route("/falcon/", ROOT)
    return site


def _django() -> Any:
    # The import is late, since gevent cannot patch a process that has Django's settings.
    import django
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.urls import path
    from django.views.static import serve

    urls = (path("django/<path:path>", serve, {"document_root": ROOT}),)
    settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="test")
    django.setup()
    return WSGIHandler()


_MAKERS: dict[str, Any] = {
    "plain": lambda: plain,
    "whitenoise": lambda: WhiteNoise(not_found, root=ROOT, prefix="whitenoise/"),
    "servestatic": lambda: ServeStatic(not_found, root=ROOT, prefix="servestatic/"),
    "flask": _flask,
    "falcon": _falcon,
    "django": _django,
}
FRAMEWORKS = tuple(_MAKERS)
_apps: dict[str, WSGIApplication] = {}


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    name = environ["PATH_INFO"].split("/")[1]
    if name not in _apps:
        _apps[name] = WSGIFast(_MAKERS[name]())
    return _apps[name](environ, start_response)
