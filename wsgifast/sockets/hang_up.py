"""Whether a peer has hung up, which a sender learns only when it sends."""

from __future__ import annotations

import select
import socket

# Only Linux tells of a peer that has ended its own sending side alone.
_ENDED_ITS_SIDE = getattr(select, "POLLRDHUP", 0)


def has_hung_up(sock: socket.socket) -> bool:
    """Return whether the peer has closed the connection, or will send nothing more. Never waits.

    A peer that sends nothing more may still wait for what it has asked for.
    """
    poll = select.poll()
    try:
        poll.register(sock, _ENDED_ITS_SIDE)
    except (OSError, ValueError):
        return True  # it is closed on this side
    return bool(poll.poll(0))
