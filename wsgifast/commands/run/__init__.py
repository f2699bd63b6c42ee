"""`wsgifast run`: serve a wrapped app on a production server.

The server imports this module. gunicorn loads the app
``'wsgifast.commands.run:wrapped("shop.wsgi:application")'``. uvicorn supports only factories
without arguments. So it loads ``wsgifast.commands.run:wrapped_by_environment``, which reads the
arguments from an environment variable.
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

# The environment variable with the arguments of wrapped(), as JSON.
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
    """Import an app, and wrap it in WSGIFast or ASGIFast, unless it is wrapped.

    :param target: the name of the app. See :func:`wsgifast.commands.loading.load_app`.
    :param static: maps URL prefixes to directories with static files.
    :param server: the server that runs the app. See :func:`wsgifast.commands.loading.load_app`.
    :param compress: compress the responses of the app, and the static files.
    :param etag: add entity tags to the responses of the app.
    :param request_id: add an id to each request.
    :param server_timing: add a Server-Timing header to each response.
    :param json_log: write Python's warnings and tracebacks as JSON lines, like the server's logs.
    :raises AppNotLoaded: if the app cannot be imported or created.
    :raises SyntaxError: if the code of the app has a syntax error. With --reload, gunicorn then
        waits until the file changes.
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
    """Return Django's test for file names with a hash. None for other frameworks."""
    if loading.django_settings() is None:
        return None
    from ...django.middleware import HashedNames

    return HashedNames(prefix.rstrip("/") + "/")


def wrapped_by_environment() -> Any:
    """Call :func:`wrapped` with the arguments in the environment variable WSGIFAST_RUN.

    :raises SystemExit: if the app cannot be loaded. The status is uvicorn's for a failed startup.
    """
    options = json.loads(os.environ[ARGUMENTS])
    try:
        return wrapped(**options, server="uvicorn")
    except Exception as error:
        logging.getLogger("uvicorn.error").critical("%s", error, exc_info=True)
        sys.exit(STATUS_NOT_STARTED)
