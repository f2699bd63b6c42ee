"""What the coalescing writers share: limits, errors, and the context manager."""

from __future__ import annotations

from typing import TypeVar

from ...checks import is_count, is_number
from ...errors import ConfigurationError, WSGIFastError
from ..options import SocketInUse

# About the time of five small sends: less saves little, more adds noticeable latency.
WINDOW_US = 10.0
# The size of a send with the best rate over loopback; it fits into a socket's buffer.
MAX_BYTES = 64 * 1024

Writer = TypeVar("Writer", bound="ClosingWriter")


class SendFailed(WSGIFastError, OSError):
    """An earlier send failed (see __cause__): the peer misses bytes, so close the socket."""


class WriterClosed(WSGIFastError, ValueError):
    """A write after close()."""


class ClosingWriter:
    """A writer that a with statement closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def check(*, max_bytes: int, window_us: float = 0.0) -> None:
    if not is_count(max_bytes, least=1):
        raise ConfigurationError(f"max_bytes={max_bytes!r}: a whole number from 1 on")
    if not is_number(window_us, least=0, most=1e6):
        raise ConfigurationError(
            f"window_us={window_us!r}: allowed are 0 to 1,000,000 microseconds"
        )


def again(refusal: Exception) -> Exception:
    """Return what to raise for a writer that is closed or broken."""
    if isinstance(refusal, (WriterClosed, SocketInUse)):
        return type(refusal)(*refusal.args)
    error = SendFailed(f"an earlier send failed: {refusal}")
    error.__cause__ = refusal
    return error
