"""What is known of servers: uvicorn's versions, and the state of its send() before a call."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .messages import Message, Send


class UvicornVersions(NamedTuple):
    """tests/test_versions.py compares pyproject.toml, pages and docstrings with them."""

    # asgifast is tested with these.
    oldest: str
    newest: str
    # From these on --http takes a class by its name; and zttp.
    with_class_names: str
    with_zttp: str
    # Whose send() over httptools is the one that whole_responses.py replaces.
    known_send: tuple[str, ...]


UVICORN = UvicornVersions(
    oldest="0.30.0",
    newest="0.54.0",
    with_class_names="0.36.0",
    with_zttp="0.54.0",
    known_send=("0.53.0", "0.54.0"),
)


def has_to_wait(send: Send) -> bool | None:
    """Whether send() would wait until the client has read; None if it is not uvicorn's."""
    flow = getattr(getattr(send, "__self__", None), "flow", None)
    waits: bool | None = getattr(flow, "write_paused", None)
    return waits


class HoldsStart(Protocol):
    start: Message | None


async def forward_start(holder: HoldsStart, send: Send, planned: Message | None = None) -> None:
    """Send the head of a response if it is held; it still is if send() is cancelled before.

    :param planned: what is sent in its place.
    """
    start, holder.start = holder.start, None
    if start is None:
        return
    try:
        await send(start if planned is None else planned)
    except Exception:
        raise
    except BaseException:
        # Whether uvicorn has taken the head; other servers are not asked.
        if getattr(getattr(send, "__self__", None), "response_started", None) is False:
            holder.start = start
        raise
