"""Serve a WSGI app on a server without a command line.

python -m tests.support.serve SERVER PORT MODULE:APP
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def serve(server: str, port: int, app: Any) -> None:
    if server == "wsgiref":
        import wsgiref.simple_server

        with wsgiref.simple_server.make_server("127.0.0.1", port, app) as httpd:
            httpd.serve_forever()
    elif server == "threading-wsgiref":
        import socketserver
        from wsgiref.simple_server import WSGIServer, make_server

        class Threading(socketserver.ThreadingMixIn, WSGIServer):
            daemon_threads = True

        make_server("127.0.0.1", port, app, Threading).serve_forever()
    elif server == "fast-wsgiref":
        from wsgifast import devservers

        kind = devservers.ThreadingWSGIServer
        with devservers.make_server("127.0.0.1", port, app, server_class=kind) as fast:
            fast.serve_forever()
    elif server == "fast-werkzeug":
        import werkzeug.serving

        from wsgifast.devservers import WerkzeugRequestHandler

        werkzeug.serving.run_simple(
            "127.0.0.1", port, app, threaded=True, request_handler=WerkzeugRequestHandler
        )
    elif server == "waitress":
        import waitress

        waitress.serve(app, host="127.0.0.1", port=port, threads=4, _quiet=True)
    elif server == "werkzeug":
        import werkzeug.serving

        werkzeug.serving.run_simple("127.0.0.1", port, app, threaded=True)
    elif server == "cheroot":
        import cheroot.wsgi

        cheroot.wsgi.Server(("127.0.0.1", port), app).safe_start()
    elif server == "pywsgi":
        import gevent.monkey

        gevent.monkey.patch_all()
        import gevent.pywsgi

        gevent.pywsgi.WSGIServer(("127.0.0.1", port), app).serve_forever()
    else:
        raise SystemExit(f"no server is called {server!r}")


def main() -> None:
    server, port, target = sys.argv[1:]
    module, _, name = target.partition(":")
    serve(server, int(port), getattr(importlib.import_module(module), name))


if __name__ == "__main__":
    main()
