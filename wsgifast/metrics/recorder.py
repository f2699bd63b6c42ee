"""The interface of metrics back ends."""

from __future__ import annotations

from typing import Any, Literal, Protocol

# The environ's key for what records a request: an app within does not record it again, and notes
# the URL pattern.
RECORDER = "wsgifast.recorder"

LengthError = Literal["short", "long", "corrected"]


class Recorder(Protocol):
    """What records requests; WSGIFast's option `metrics` takes one.

    Each request is begun once, and then recorded once, perhaps by another thread. What it raises is
    logged once, and costs no response.
    """

    def begin(self, method: str, scheme: str) -> object:
        """A request has reached the app.

        :param method: as the client sent it.
        :param scheme: "http" or "https".
        """

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
        :param status: 500 if the app raised before start_response.
        :param pattern: the framework's URL pattern; None if there is none.
        :param route: the route of the body; "" if unknown.
        :param seconds: from its head to the end of its response.
        :param size: bytes of the body.
        """

    def count_length_error(self, kind: LengthError) -> object:
        """A body broke its Content-Length."""

    def count_client_left(self) -> object:
        """A client left before it had all of its response."""


class Spans(Protocol):
    """What sets attributes on the spans of an instrumented app."""

    def current(self) -> object | None:
        """The current span; None if it is not recording."""

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
        """Set attributes on the span of a request that has been answered."""
