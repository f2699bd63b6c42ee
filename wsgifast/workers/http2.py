"""HTTP/2: gthread's own code, on a blocking socket, in a thread of the pool."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from gunicorn import http
from gunicorn.workers import gthread

try:
    from gunicorn.http2.errors import HTTP2Error
except ImportError:
    HTTP2Error = OSError

from ..server.connection import Connection
from ..server.exchange import Exchange
from ..server.streamed_body import receive_blocking

__all__ = ["HTTP2", "HTTP2Streams"]


class HTTP2Streams(gthread.ThreadWorker):  # type: ignore[misc]
    """gthread, which does not tell a client what an app has raised."""

    body_timeout_s: float

    def handle_http2_request(self, req: Any, conn: Any, h2_conn: Any) -> None:
        try:
            super().handle_http2_request(req, conn, h2_conn)
        except HTTP2Error:  # the stream or the connection is lost
            raise
        except (Exception, SystemExit):
            self.log.exception("Error handling HTTP/2 request")
            try:
                h2_conn.send_error(req.stream.stream_id, 500, "Internal Server Error")
            except Exception as error:  # noqa: BLE001 - the client has gone
                self.log.debug("HTTP/2 error response failed: %s", error)


class HTTP2:
    """Serves connections on which HTTP/2 is agreed, each in a thread of its own.

    :param worker: whose methods from gthread do it.
    """

    def __init__(self, worker: HTTP2Streams) -> None:
        self._worker = worker

    def run(self, connection: Connection) -> None:
        """Serve a connection on which HTTP/2 is agreed, or asked for, until it ends."""
        if connection.exchange is not None:
            self._run_upgrade(connection, connection.exchange)
            return
        worker = self._worker
        conn = self._blocking(connection)
        conn.is_http2 = True
        conn.parser = http.get_parser(worker.cfg, conn.sock, connection.peer, http2_connection=True)
        try:
            conn.parser.initiate_connection()
            received = connection.take_received()
            if received:
                # In the clear, what came with the preface may hold whole requests already.
                for req in conn.parser.receive_data(received):
                    self._serve_first_stream(req, conn)
            worker.handle_http2(conn)
        except (OSError, HTTP2Error) as error:
            worker.log.debug("HTTP/2 connection lost: %s", error)
        except Exception:
            # Nothing may go on to who would close the connection, which is given up below.
            worker.log.exception("HTTP/2 connection error")
        finally:
            connection.app_is_done()

    def _run_upgrade(self, connection: Connection, exchange: Exchange) -> None:
        """Answer a request that asks for an upgrade, and serve what follows."""
        worker = self._worker
        conn = self._blocking(connection)
        unreader = exchange.req.unreader
        unreader.wait = partial(
            _receive_until, connection, time.monotonic() + worker.body_timeout_s
        )
        conn.parser = _UpgradeParser(unreader)
        try:
            worker.handle_h2c_upgrade(conn, exchange.req, exchange.upgrade)
        except (OSError, HTTP2Error) as error:
            worker.log.debug("HTTP/2 connection lost: %s", error)
        except Exception:
            worker.log.exception("HTTP/2 connection error")  # as above
        finally:
            connection.app_is_done()

    def _blocking(self, connection: Connection) -> gthread.TConn:
        sock = connection.hijack()
        conn = gthread.TConn(self._worker.cfg, sock, connection.peer, connection.address)
        conn.initialized = True
        sock.setblocking(True)  # TConn makes it non-blocking
        return conn

    def _serve_first_stream(self, req: Any, conn: gthread.TConn) -> None:
        """gthread answers streams one at a time in its loop; this one came before the loop."""
        try:
            self._worker.handle_http2_request(req, conn, conn.parser)
        finally:
            conn.parser.cleanup_stream(req.stream.stream_id)


class _UpgradeParser:
    """What gthread's upgrade asks of an HTTP/1 parser: the bytes behind the request."""

    def __init__(self, unreader: Any) -> None:
        self.unreader = unreader


def _receive_until(connection: Connection, deadline: float, wanted: int) -> bytes:
    """Receive once from a connection whose socket is a blocking one.

    :raises OSError: if nothing has come by the deadline, or the client has gone.
    """
    sock = connection.sock
    sock.setblocking(False)
    try:
        left_s = deadline - time.monotonic()
        return receive_blocking(sock, connection.output.lock, max(wanted, 1024), left_s)
    finally:
        sock.setblocking(True)
