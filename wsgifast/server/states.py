"""The states of a connection, and what moves it from one to the next.

One table says what may happen when, and nothing else may: :meth:`Connection.move` looks it up, and
an event that has no place in it is a defect of ours. Who does the moving is the connection's owner,
the one thread that has taken it from those that wait.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TRANSITIONS"]

HANDSHAKE: Final = "handshake"  # TLS is being agreed on
IDLE: Final = "idle"  # nothing has come of the next request
RECEIVING: Final = "receiving"  # in the middle of a request, which is to be here whole
RUNNING: Final = "running"  # the app has it, or it waits for a thread
SENDING: Final = "sending"  # the app is done, or never had it; the output queue goes on by itself
SKIPPING: Final = "skipping"  # all is sent; the rest of a body comes that the app has not read
STREAMS: Final = "streams"  # HTTP/2 is spoken: its streams have states of their own (http2/)
LINGERING: Final = "lingering"  # all is sent; the client closes first (RFC 9112 section 9.6)
CLOSED: Final = "closed"

SECURED: Final = "TLS is agreed on"
BEGUN: Final = "the first bytes of a request, and not all"
READY: Final = "all is here that the app needs"
REFUSED: Final = "an error is the answer"
ANSWERED: Final = "the app is done"
STAYS: Final = "sent, and another request may come"
SKIPS: Final = "sent, and another request may come behind the rest of this one"
LEAVES: Final = "sent, and no other request may come"
SWITCHES: Final = "HTTP/2 is agreed on"
GONE: Final = "lost, given up, or closed by the client"

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    HANDSHAKE: {SECURED: IDLE, GONE: CLOSED},
    IDLE: {
        BEGUN: RECEIVING,
        READY: RUNNING,
        SWITCHES: STREAMS,
        REFUSED: SENDING,
        GONE: CLOSED,
    },
    RECEIVING: {READY: RUNNING, SWITCHES: STREAMS, REFUSED: SENDING, GONE: CLOSED},
    RUNNING: {ANSWERED: SENDING, GONE: CLOSED},
    SENDING: {STAYS: IDLE, SKIPS: SKIPPING, LEAVES: LINGERING, GONE: CLOSED},
    SKIPPING: {STAYS: IDLE, LEAVES: LINGERING, GONE: CLOSED},
    STREAMS: {LEAVES: LINGERING, GONE: CLOSED},
    LINGERING: {GONE: CLOSED},
    CLOSED: {},
}
