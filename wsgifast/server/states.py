"""The states of a connection, and the events that lead from one to the next.

The table is complete: :meth:`Endpoint.move` looks each event up in it, and one that is missing is a
bug. Only the connection's owner moves it (see registry.py).
"""

from __future__ import annotations

from typing import Final

HANDSHAKE: Final = "handshake"  # TLS handshake
IDLE: Final = "idle"  # nothing of the next request has been received
RECEIVING: Final = "receiving"  # a part of a request has been received
RUNNING: Final = "running"  # the app runs, or waits for a thread
SENDING: Final = "sending"  # the app has returned, or was not called; the output queue has more
SKIPPING: Final = "skipping"  # all is sent; the rest of a body arrives that the app has not read
STREAMS: Final = "streams"  # HTTP/2 (http2/connection.py), whose streams have states of their own
LINGERING: Final = "lingering"  # all is sent; the client closes first (RFC 9112 section 9.6)
CLOSED: Final = "closed"

SECURED: Final = "the handshake is complete"
BEGUN: Final = "the beginning of a request was received"
READY: Final = "the request is complete, as far as the app needs it"
REFUSED: Final = "the request is answered with an error"
ANSWERED: Final = "the app has returned, and not all is sent"
STAYS: Final = "all is sent, and the connection is kept"
SKIPS: Final = "all is sent, and the connection is kept once the rest of the body has come"
LEAVES: Final = "all is sent, and the connection ends; or its handshake has failed"
SWITCHES: Final = "HTTP/2 was negotiated"
GONE: Final = "the connection is lost, given up, or closed by the client"

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    HANDSHAKE: {SECURED: IDLE, LEAVES: LINGERING, GONE: CLOSED},
    IDLE: {
        BEGUN: RECEIVING,
        READY: RUNNING,
        SWITCHES: STREAMS,
        REFUSED: SENDING,
        GONE: CLOSED,
    },
    RECEIVING: {READY: RUNNING, SWITCHES: STREAMS, REFUSED: SENDING, GONE: CLOSED},
    RUNNING: {ANSWERED: SENDING, STAYS: IDLE, SKIPS: SKIPPING, LEAVES: LINGERING, GONE: CLOSED},
    SENDING: {STAYS: IDLE, SKIPS: SKIPPING, LEAVES: LINGERING, GONE: CLOSED},
    SKIPPING: {STAYS: IDLE, LEAVES: LINGERING, GONE: CLOSED},
    STREAMS: {LEAVES: LINGERING, GONE: CLOSED},
    LINGERING: {GONE: CLOSED},
    CLOSED: {},
}
