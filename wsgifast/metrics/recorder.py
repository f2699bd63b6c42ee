"""What is told of requests: the interface behind which every back end stands."""

from __future__ import annotations

from typing import Any, Literal, Protocol

__all__ = ["RECORDER", "LengthError", "Recorder", "Spans"]

# Where whoever records a request says with what: an app within need not do it again, and the URL
# pattern is wanted.
RECORDER = "wsgifast.recorder"

LengthError = Literal["short", "long", "corrected"]


class Recorder(Protocol):
    """Where requests are recorded; what WSGIFast's `metrics` takes.

    Each request is begun once, and then either recorded or abandoned, perhaps by another thread.
    Whatever it raises is logged once, and costs no response.
    """

    def begin(self, method: str, scheme: str) -> object:
        """A request has come to the app.

        :param method: as the client sent it.
        :param scheme: "http" or "https".
        """

    def abandon(self, method: str, scheme: str) -> object:
        """A request that has begun will have no response: the app has taken its connection over."""

    def record(
        self,
        method: str,
        scheme: str,
        status: int,
        pattern: str | None,
        route: str,
        seconds: float,
        size: int,
    ) -> object:
        """A request has been answered.

        :param method: as the client sent it.
        :param scheme: "http" or "https".
        :param status: 500 where the app has raised before it said one.
        :param pattern: the framework's URL pattern; None where there is none.
        :param route: the way of the body; "" where nothing tells it.
        :param seconds: from its head to the end of its response.
        :param size: bytes of the body.
        """

    def count_length_error(self, kind: LengthError) -> object:
        """A body broke its Content-Length."""

    def count_client_left(self) -> object:
        """A client left before it had all of its response."""


class Spans(Protocol):
    """What is told of bodies to the traces of whoever instruments the app."""

    def current(self) -> object | None:
        """The span that is current; None if none is recorded."""

    def describe(
        self,
        span: Any,
        *,
        pattern: str | None,
        route: str | None,
        chunks: int | None,
        size: int,
        length_error: LengthError | None,
        left: bool,
    ) -> object:
        """Set the attributes of the span of a request that has been answered."""
