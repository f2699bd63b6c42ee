"""What is known of a server's send() beforehand, where it is a method of uvicorn's cycle."""

from __future__ import annotations

from .messages import Send


def has_to_wait(send: Send) -> bool | None:
    """Whether send() would wait until the client has read; None if it is not uvicorn's."""
    flow = getattr(getattr(send, "__self__", None), "flow", None)
    waits: bool | None = getattr(flow, "write_paused", None)
    return waits


def has_head(send: Send) -> bool | None:
    """Whether the head was taken from the app; None if send() is not uvicorn's."""
    has: bool | None = getattr(getattr(send, "__self__", None), "response_started", None)
    return has
