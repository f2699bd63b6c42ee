"""A plain request, as :mod:`.httptools_parser` has parsed it."""

from __future__ import annotations

from typing import Any


class PlainRequest:
    """A request with what gunicorn's own offers to hooks, loggers and error pages.

    A hook may add attributes.
    """

    fragment = ""
    body = None
    proxy_protocol_info = None

    def __init__(
        self,
        method: str,
        uri: str,
        version: tuple[int, int],
        fields: dict[str, str],
        scheme: str,
        persists: bool,
        peer: Any,
    ) -> None:
        self.method = method
        self.uri = uri
        self.path, _, self.query = uri.partition("?")
        self.version = version
        self.scheme = scheme
        self.peer_addr = peer
        self._fields = fields
        self.must_close = False
        self._persists = persists

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in upper case, and values."""
        return [
            (key.removeprefix("HTTP_").replace("_", "-"), value)
            for key, value in self._fields.items()
        ]

    @property
    def remote_addr(self) -> Any:
        return self.peer_addr

    @property
    def trailers(self) -> list[tuple[str, str]]:
        return []

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close or not self._persists
