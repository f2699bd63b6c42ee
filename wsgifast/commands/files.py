"""`wsgifast files DIR`: serve a directory with gunicorn, or with wsgiref if gunicorn is missing."""

from __future__ import annotations

import argparse
import os
import socket
from typing import Any

from ..errors import WSGIFastError
from ..static import StaticFiles
from ..workers.gunicorn_version import check_gunicorn
from .arguments import DEFAULT_BIND, add_parser, address_of, cannot_listen, option
from .terminal import printable, show

# The number of requests at the same time. A browser opens up to six connections for a page.
_THREADS = 8


def add_command(commands: Any) -> None:
    """Add `files` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "files",
        help="serve a directory over HTTP",
        examples="""
        wsgifast files site
        wsgifast files build --bind 0.0.0.0:8080 --fallback index.html --no-listing
        """,
    )
    parser.add_argument("directory", metavar="DIR", help="the directory to serve")
    bind = "address to listen on. Without HOST, only this machine can connect. 0 is any free port"
    option(parser, "--bind", "[HOST:]PORT", bind, default=DEFAULT_BIND)
    option(parser, "--no-listing", help="respond with 404 for directories without an index.html")
    option(parser, "--hidden-files", help="also serve files whose names begin with a dot")
    option(parser, "--follow-symlinks", help="also follow symbolic links to files outside DIR")
    option(
        parser, "--dictionaries", help="send browsers only the differences from their cached files"
    )
    missing = "serve this file for paths without a file (single-page apps)"
    option(parser, "--fallback", "FILE", missing)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    address = address_of(options.bind)
    app = StaticFiles(
        directory=options.directory,
        listing=not options.no_listing,
        hidden_files=options.hidden_files,
        follow_symlinks=options.follow_symlinks,
        fallback=options.fallback,
        dictionaries=options.dictionaries,
        max_age=0,  # the files may change at any time, so browsers have to revalidate them
    )
    try:
        listener = socket.create_server(address, family=address.family, backlog=128)
    except OSError as error:
        raise cannot_listen(options.bind, error) from error
    with listener:
        listening = address._replace(port=listener.getsockname()[1])
        show(
            f"Serving {printable(os.path.abspath(options.directory))} on http://{listening}/ "
            "(press Ctrl-C to stop)"
        )
        try:
            check_gunicorn()
        except (ImportError, WSGIFastError):  # no gunicorn, or a version that is not supported
            return _serve_with_wsgiref(app, listener)
        return _serve_with_gunicorn(app, listener)


def _serve_with_gunicorn(app: StaticFiles, listener: socket.socket) -> int:
    from gunicorn.app.base import BaseApplication

    # gunicorn closes this descriptor. `bind` is a constant: each SIGHUP loads the configuration
    # again.
    bind = f"fd://{listener.detach()}"

    class Application(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            self.cfg.set("bind", bind)
            self.cfg.set("worker_class", "wsgifast.workers.FastWorker")
            self.cfg.set("threads", _THREADS)
            self.cfg.set("loglevel", "warning")

        def load(self) -> StaticFiles:
            return app

    Application().run()
    return 0


def _serve_with_wsgiref(app: StaticFiles, listener: socket.socket) -> int:
    from ..devservers import ThreadingWSGIServer, WSGIRequestHandler

    address = listener.getsockname()
    with ThreadingWSGIServer(address, WSGIRequestHandler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        server.server_name, server.server_port = address[:2]
        server.setup_environ()
        server.set_app(app)
        server.serve_forever()
    return 0
