"""What the streams of a connection ask of the one that has them all."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from ..endpoint import Core, Endpoint
from ..output_rules import OutputRules
from .floods import Floods
from .frames import Frames

__all__ = ["Session"]


class Session(Protocol):
    """See :class:`~.multiplexer.Multiplexer`.

    :ivar lock: under which all that is sent is framed, and all states change.
    """

    connection: Endpoint
    core: Core
    frames: Frames
    floods: Floods
    lock: threading.RLock
    rules: OutputRules

    # For senders, which have the lock.

    @property
    def is_congested(self) -> bool:
        """Whether what has been framed is not sent yet."""

    @property
    def quantum(self) -> int:
        """Bytes that a stream may frame at once."""

    def check(self, number: int) -> None:
        """:raises ClientGone: if nothing can be sent on a stream any more."""

    def on_framed(self, size: int) -> None:
        """A stream has framed some bytes of its body."""

    def transmit(self) -> None:
        """Send what has been framed.

        :raises ClientGone: if the client has gone.
        """

    def queue(self, stream: Any, *, is_over: bool = False) -> None:
        """A stream waits for its turn, or for a window.

        :param is_over: for its end: it has failed.
        """

    # For anybody, without it.

    def acknowledge(self, size: int, number: int) -> None:
        """So many bytes of a stream have been taken in: its windows open again, in h2's time."""

    def open_window(self, size: int, number: int | None) -> None:
        """Open the window of a stream, or that of the connection, at once."""

    def note_deadline(self, deadline: float) -> None:
        """Somebody is to be given up by then; the sweep finds out who."""

    def end(self, stream: Any) -> None:
        """A stream is over."""
