"""HTTP/2: gthread's own code, on a blocking socket, in a thread of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gunicorn import http
from gunicorn.workers import gthread

try:
    from gunicorn.http2 import negotiation
    from gunicorn.http2.errors import HTTP2Error
except ImportError:  # cleartext HTTP/2 came later than HTTP/2
    negotiation = None
    HTTP2Error = OSError

from ..server.poller import READ

if TYPE_CHECKING:
    from ..server.connection import Connection
    from .worker import FastWorker

__all__ = ["HTTP2"]


class HTTP2:
    """The ways into HTTP/2 that a worker's configuration allows, and serving it.

    Over TLS it is agreed on by ALPN; in the clear a client begins with HTTP/2's preface (prior
    knowledge, RFC 9113 section 3.3) or asks for an upgrade (RFC 7540 section 3.2).
    """

    #: Whether a connection begins with the preface: True or False (more must come, or it has been
    #: refused), or None if it does not. None where the configuration does not allow it.
    prior_knowledge: Callable[[Connection, bytes], bool | None] | None = None
    #: The HTTP/2 settings of a request that asks for an upgrade, or None.
    upgrade: Callable[[Connection, Any], Any] | None = None

    def __init__(self, worker: FastWorker) -> None:
        self._worker = worker
        mode = getattr(worker.settings, "http2_cleartext", "off")
        if negotiation is not None:
            if mode in ("prior-knowledge", "both"):
                self.prior_knowledge = self._match_prior_knowledge
            if mode in ("upgrade", "both"):
                self.upgrade = self._match_upgrade

    def run(self, connection: Connection) -> None:
        """Serve a connection on which HTTP/2 is agreed, until it ends."""
        worker = self._worker
        conn = self._blocking(connection)
        conn.is_http2 = True
        conn.parser = http.get_parser(worker.cfg, conn.sock, connection.peer, http2_connection=True)
        try:
            conn.parser.initiate_connection()
            if connection.received.data:
                # In the clear, what came with the preface may hold whole requests already.
                for req in conn.parser.receive_data(connection.received.take_buffered()):
                    self._serve_first_stream(req, conn)
            worker.handle_http2(conn)
        except (OSError, HTTP2Error) as error:
            worker.log.debug("HTTP/2 connection lost: %s", error)
        except Exception:
            # Nothing may go on to who would close the connection, which is given up below.
            worker.log.exception("HTTP/2 connection error")
        finally:
            connection.app_is_done()

    def run_upgrade(self, connection: Connection) -> None:
        """Answer a request that asks for an upgrade, and serve what follows."""
        worker = self._worker
        settings, connection.upgrade_settings = connection.upgrade_settings, None
        exchange = connection.exchange
        assert exchange is not None
        conn = self._blocking(connection)
        conn.parser = _UpgradeParser(connection.received)
        try:
            worker.handle_h2c_upgrade(conn, exchange.req, settings)
        except (OSError, HTTP2Error) as error:
            worker.log.debug("HTTP/2 connection lost: %s", error)
        except Exception:
            worker.log.exception("HTTP/2 connection error")  # as above
        finally:
            connection.app_is_done()

    def _match_prior_knowledge(self, connection: Connection, data: bytes) -> bool | None:
        cfg = self._worker.cfg
        if not negotiation.prior_knowledge_allowed(cfg, connection.peer):
            return None
        match = negotiation.preface_match(data[: len(negotiation.H2C_PREFACE)])
        if match == negotiation.MATCH:
            return True
        if match == negotiation.PARTIAL:
            connection.wait(READ)
            return False
        if negotiation.mismatch_is_error(cfg):
            connection.reject(http.errors.InvalidH2CPreface(data[:24]))
            return False
        return None

    def _match_upgrade(self, connection: Connection, req: Any) -> Any:
        if not negotiation.upgrade_allowed(self._worker.cfg, connection.peer):
            return None
        return negotiation.upgrade_settings(req)

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
        except Exception as error:
            self._worker.log.exception("Error handling HTTP/2 request")
            conn.parser.send_error(req.stream.stream_id, 500, str(error))
        finally:
            conn.parser.cleanup_stream(req.stream.stream_id)


class _UpgradeParser:
    """What gthread's upgrade asks of an HTTP/1 parser: the bytes behind the request."""

    def __init__(self, unreader: Any) -> None:
        self.unreader = unreader
