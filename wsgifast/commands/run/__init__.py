"""`wsgifast run`: serves an app, wrapped, on a production server, which imports this package.

gunicorn loads ``'wsgifast.commands.run:wrapped("shop.wsgi:application")'``. uvicorn accepts only
factories without arguments: it loads ``wsgifast.commands.run:wrapped_by_environment``, which finds
the arguments in the environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...bodies.access_log import report_in_json
from ...static import StaticFiles
from .. import loading
from ..arguments import STATUS_NOT_STARTED

if TYPE_CHECKING:
    from ...django.middleware import HashedNames

__all__ = ["ARGUMENTS", "wrapped", "wrapped_by_environment"]

# The environment variable with wrapped()'s arguments, as JSON.
ARGUMENTS = "WSGIFAST_RUN"


def wrapped(
    target: str,
    static: Mapping[str, str] | None = None,
    *,
    server: loading.ServerName = "gunicorn",
    compress: bool = True,
    etag: bool = True,
    request_id: bool = False,
    server_timing: bool = False,
    json_log: bool = False,
) -> Any:
    """Import an app and wrap it in WSGIFast or ASGIFast, unless it is already wrapped.

    :param target: see :func:`wsgifast.commands.loading.load_app`, as `server`.
    :param static: directories by the URL prefixes under which their files are served.
    :param compress: compress the app's responses, and the files.
    :param etag: add entity tags to the app's responses.
    :param request_id: give each request an id.
    :param server_timing: add the times of each request to its response.
    :param json_log: the server's logs are in JSON, and so is Python's output to stderr.
    :raises AppNotLoaded: if the app cannot be imported or made.
    :raises SyntaxError: if that is why: with --reload gunicorn takes it for no end, and waits for
        its file to change.
    :raises ConfigurationError: if a directory does not exist.
    """
    if json_log:
        report_in_json()
    try:
        loaded = loading.load_app(target, server)
    except loading.AppNotLoaded as error:
        if isinstance(error.__cause__, SyntaxError):
            raise error.__cause__ from None
        raise
    app = loading.wrapped(
        loaded.app,
        loaded.interface,
        compress=compress,
        etag=etag,
        request_id=request_id,
        server_timing=server_timing,
    )
    files: Any = StaticFiles
    if loaded.interface == "ASGI":
        from asgifast import StaticFiles as files
    for prefix, directory in (static or {}).items():
        immutable = _django_hashes(prefix)
        app = files(app, directory=directory, prefix=prefix, immutable=immutable, compress=compress)
    return app


def _django_hashes(prefix: str) -> HashedNames | None:
    """The test of hashed names of Django's storage."""
    if loading.django_settings() is None:
        return None
    from ...django.middleware import HashedNames

    return HashedNames(prefix.rstrip("/") + "/")


def wrapped_by_environment() -> Any:
    """:func:`wrapped` with the arguments that the environment variable WSGIFAST_RUN has.

    :raises SystemExit: with uvicorn's status of a failed startup, if the app cannot be loaded.
    """
    options = json.loads(os.environ[ARGUMENTS])
    try:
        return wrapped(**options, server="uvicorn")
    except Exception as error:
        logging.getLogger("uvicorn.error").critical("%s", error, exc_info=True)
        sys.exit(STATUS_NOT_STARTED)
