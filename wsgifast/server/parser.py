"""The interface of request parsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .exchange import Exchange


class NeedMoreData(Exception):
    """The head is incomplete."""


class Parser(Protocol):
    """Parses the requests of all connections: it keeps no state between calls, and never waits.

    :ivar eager_bytes: up to this many bytes, :meth:`parse` is called without an empty line, for
        protocols in which none ends the head.
    :ivar head_limit_bytes: the most bytes of a head.
    """

    eager_bytes: int
    head_limit_bytes: int

    def parse(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        """Parse the head at the start of some data.

        :param peer: the client's address as accept() returned it.
        :param number: of the request on its connection, from 1.
        :returns: None for HTTP/2's preface (RFC 9113 section 3.4).
        :raises NeedMoreData: if the head is incomplete.
        :raises Exception: if it is malformed; the parser's owner knows how to answer it.
        """

    def parse_stream(
        self, head: bytes, peer: Any, number: int, *, scheme: str, has_body: bool
    ) -> Exchange:
        """Parse the complete head of an HTTP/2 request, in HTTP/1's form.

        :param number: 2 or more.
        :param scheme: the client's `:scheme`.
        :param has_body: whether a body follows, and perhaps trailers.
        :raises Exception: as :meth:`parse`.
        """

    def take_trailers(self, req: Any, lines: Sequence[bytes]) -> None:
        """Add trailers, whose syntax has been checked, to a request of this parser.

        :raises Exception: as :meth:`parse`.
        """
