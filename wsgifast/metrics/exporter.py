"""The exporter: a process that returns the metrics of all workers of one server to Prometheus.

The exporter is a separate process, so a scrape does not wait for workers, and works even if all
workers are stuck. It ends after the arbiter. A worker that finds no exporter starts an exporter
(setup.py). An exporter locks a file while it runs, so only one can run.

Another process may still use the address, such as the exporter of an old server that is being
replaced (USR2). Then the exporter tries again until the address is free.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ..sockets.options import Address
from .aggregation import UNREADABLE, Directory
from .health import JSON, PATHS, PLAIN, HTTPResponse, is_alive, remove_dead, response, slow_clients
from .setup import ADDRESS_FILE, Export, check_space, metrics_address
from .top import view

logger = logging.getLogger("wsgifast.metrics")

# The time between two attempts to use the address.
_RETRY_S = 0.2
# The time between two checks of the server, of its address, and of its workers.
_CHECK_INTERVAL_S = 0.5
# The longest time in which a client may send its request.
_REQUEST_TIMEOUT_S = 10
# The most clients at a time. If another client connects, the client that connected first is
# disconnected. Prometheus and probes need only a few connections.
_MAX_CLIENTS = 64
# The default and the longest interval of /top.
_TOP_S, _MAX_TOP_S = 2, 300
# The most requests for /top at a time. Each waits in a thread, even if its client has left.
_MAX_TOPS = 16


def main(export: str) -> None:
    """Serve until the server has ended, and then exit. This is the exporter's main function.

    :param export: an :class:`Export`, as JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the arbiter first
    line = "[%(asctime)s] [%(process)d] [%(levelname)s] %(message)s"
    logging.basicConfig(level=logging.INFO, format=line)
    _Exporter(Export(*json.loads(export))).run()


class _Exporter:
    def __init__(self, export: Export) -> None:
        self._export = export
        self._address = metrics_address(export.address)
        self._directory = Directory(export.directory, own=export.own)
        self._server: _Server | None = None
        self._log: Callable[[str], object] = cache(partial(logger.warning, "%s"))

    def run(self) -> None:
        export = self._export
        while is_alive(export.arbiter) and self._is_wanted():
            self._clean()
            if self._server is None:
                self._serve()
            time.sleep(_RETRY_S if self._server is None else _CHECK_INTERVAL_S)
        if self._server is not None:
            self._server.close()
        if export.own and not is_alive(export.arbiter):
            shutil.rmtree(export.directory, ignore_errors=True)

    def _clean(self) -> None:
        """Clean up after dead workers."""
        try:
            self._directory.clean()
            remove_dead(self._export.directory)
        except Exception as error:  # noqa: BLE001 - it continues to serve
            self._log(f"Cleaning up after workers has failed: {error!r}")

    def _is_wanted(self) -> bool:
        """Return whether the server is still configured with this address."""
        try:
            with open(os.path.join(self._export.directory, ADDRESS_FILE)) as file:
                return file.read() == self._export.address
        except FileNotFoundError:
            return False
        except OSError:  # unknown, such as after too many open files
            return True

    def _serve(self) -> None:
        try:
            self._server = _Server(self._address, _app(self._directory, self._log))
        except OSError as error:
            self._log(f"Metrics wait for {self._address}: {error.strerror}")
        else:
            logger.info("Metrics at http://%s/metrics", self._address)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    wbufsize = -1  # headers and body are sent together

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because scrapes would add a line every few seconds."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """An HTTP server with a thread for each client.

    Slow clients cannot use up all threads and descriptors: beyond a limit, the client that
    connected first is disconnected.

    :raises OSError: if the address cannot be used.
    """

    request_queue_size = 32
    daemon_threads = True

    def __init__(self, address: Address, app: Any) -> None:
        self._clients: list[Any] = []  # sockets, the oldest first
        self._clients_lock = threading.Lock()  # so that no socket is closed while it is used
        self.address_family = address.family
        super().__init__((address.host, address.port), _Handler)
        self.set_app(app)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self) -> None:
        # This replaces HTTPServer's method, which looks up the name of this host in DNS.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = socket.gethostname(), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_RETRY_S)  # too many open files: accept() would fail again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._clients_lock:
            self._clients.append(request)
            if len(self._clients) > _MAX_CLIENTS:
                with contextlib.suppress(OSError):  # the client has left
                    self._clients.pop(0).shutdown(socket.SHUT_RDWR)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can start: the next client waits for this one
            self.process_request_thread(request, client_address)

    def close_request(self, request: Any) -> None:
        with self._clients_lock:
            if request in self._clients:
                self._clients.remove(request)
            super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # OSError: the client has left, or was silent too long
            logger.exception("Error in the metrics")

    def close(self) -> None:
        self.shutdown()
        self.server_close()


def _app(directory: Directory, log: Callable[[str], object]) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI app: the metrics, the view of `wsgifast top`, the probes, the slow clients.

    :param log: called with an error that prevents reading the metrics.
    """

    top_slots = threading.Semaphore(_MAX_TOPS)

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            accept = environ.get("HTTP_ACCEPT", "")
            found = read(lambda: HTTPResponse("200 OK", *directory.text(accept)))
        elif path == "/top":
            is_head = environ["REQUEST_METHOD"] == "HEAD"
            query = environ.get("QUERY_STRING", "")
            found = HTTPResponse("200 OK", JSON, b"") if is_head else top(query)
        else:
            text = f"There are /metrics, /top, {', '.join(PATHS)}\n".encode()
            found = response(path, directory.path) or HTTPResponse("404 Not Found", PLAIN, text)
        headers = [("Content-Type", found.content_type), ("Content-Length", str(len(found.body)))]
        start_response(found.status, [*headers, ("Cache-Control", "no-store")])
        # wsgiref would send a body to HEAD (RFC 9110 9.3.2).
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [found.body]

    def top(query: str) -> HTTPResponse:
        try:
            seconds = float(parse_qs(query).get("seconds", [f"{_TOP_S}"])[-1])
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= _MAX_TOP_S:
            text = f"seconds={query}: expected a number above 0, up to {_MAX_TOP_S}\n"
            return HTTPResponse("400 Bad Request", PLAIN, text.encode())

        def compare() -> HTTPResponse:
            before = directory.scrape()
            time.sleep(seconds)
            found = view(before, directory.scrape(), slow_clients(directory.path))
            return HTTPResponse("200 OK", JSON, json.dumps(asdict(found)).encode())

        if not top_slots.acquire(blocking=False):
            text = f"{_MAX_TOPS} clients wait for /top: try again later\n"
            return HTTPResponse("503 Service Unavailable", PLAIN, text.encode())
        try:
            return read(compare)
        finally:
            top_slots.release()

    def read(found: Callable[[], HTTPResponse]) -> HTTPResponse:
        # Respond with an error if values cannot be written or read. Otherwise old values would look
        # new, or the values of some workers would look complete.
        try:
            check_space(directory.path)
        except OSError as error:
            problem = f"The workers cannot write their metrics: {error}"
        else:
            try:
                return found()
            except (OSError, *UNREADABLE) as error:
                log(problem := f"The metrics cannot be read: {error}")
        return HTTPResponse("500 Internal Server Error", PLAIN, f"{problem}\n".encode())

    return serve
