"""What the core asks of a parser of requests, whoever has made it."""

from __future__ import annotations

from typing import Any, Protocol

from .exchange import Exchange

__all__ = ["NeedMoreData", "Parser"]


class NeedMoreData(Exception):
    """The head has not come to its end."""


class Parser(Protocol):
    """Parses the requests of connections; it keeps nothing between two calls, and never waits."""

    # The first so many bytes of a request are worth a look as they come: where something else than
    # an empty line ends them.
    eager_bytes: int
    # The most bytes of a head.
    head_limit_bytes: int

    def parse(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        """Parse the head at the start of what has come.

        :param peer: the client's address as accept() gave it.
        :param number: of the request on its connection, from 1.
        :returns: None for HTTP/2's preface (RFC 9113 section 3.4).
        :raises NeedMoreData: if it has not come whole.
        :raises Exception: for what is no request; who made the parser knows how to answer it.
        """

    def parse_stream(
        self, head: bytes, peer: Any, number: int, *, scheme: str, has_body: bool
    ) -> Exchange:
        """Parse the head of an HTTP/2 request, which is here whole, in HTTP/1's words.

        :param number: not 1.
        :param scheme: what the client says of it.
        :param has_body: whether a body follows it, and perhaps trailers.
        :raises Exception: as :meth:`parse`.
        """

    def take_trailers(self, req: Any, lines: list[bytes]) -> None:
        """Take note of the trailers of a request of this parser's; their syntax has been checked.

        :raises Exception: as :meth:`parse`.
        """
