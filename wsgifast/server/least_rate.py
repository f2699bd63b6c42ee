"""How long a client is waited for, to send or to take a body: a timeout, and a least rate."""

from __future__ import annotations

__all__ = ["BODY_BYTES_PER_S", "time_left_s"]

# Apache's rule against request bodies that drip (mod_reqtimeout, MinRate).
BODY_BYTES_PER_S = 500.0


def time_left_s(timeout_s: float, least_bytes_per_s: float, moved: int, waited_s: float) -> float:
    """For how many more seconds a client is waited for.

    :param timeout_s: the longest wait for a byte.
    :param least_bytes_per_s: on average, from `timeout_s` on; 0 for any rate.
    :param moved: bytes that it has sent, or taken, since it was waited for first.
    :param waited_s: how long that has been.
    """
    if not least_bytes_per_s:
        return timeout_s
    return min(timeout_s, timeout_s + moved / least_bytes_per_s - waited_s)
