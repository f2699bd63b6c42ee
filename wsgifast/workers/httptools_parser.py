"""Parse plain requests with httptools (llhttp), and all other requests with gunicorn's parser.

For a short request, gunicorn's parser takes as long as all other work of the server. Most requests
are *plain*:

- The method is known, and the target is a path.
- Header names consist of letters, digits and hyphens. No header is repeated.
- There is no body, or its length is known.

All parsers agree about such a request, and llhttp is the fastest. gunicorn accepts a plain request
with any settings. If a request is not plain, or llhttp refuses it, gunicorn's parser parses all of
the request. So each request has the same result as with gunicorn's parser, and refused requests get
gunicorn's error responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from ..http.fields import parse_length
from ..http.framing import wants_to_persist
from ..http.request_headers import PLAIN_METHODS, PlainKeys, check_host, header_key
from ..http.stream_headers import Field, PlainHeaders
from ..server.receiving import Exchange
from .gunicorn_parser import GunicornParser, Unreader

_END_OF_HEADERS = b"\r\n\r\n"
_METHODS = {name.encode(): name for name in PLAIN_METHODS}
_HTTP11 = (1, 1)
_HTTP2 = (2, 0)
_VERSIONS = {b" HTTP/1.1\r\n": _HTTP11, b" HTTP/1.0\r\n": (1, 0)}
# Errors of a request that is not plain: an error of llhttp, a wrong number of targets, or an
# unknown method or header name.
_UNSUPPORTED = (HttpParserError, HttpParserUpgrade, KeyError, ValueError)


class HttptoolsParser:
    """Parses plain requests with httptools, and passes all other requests to gunicorn's parser.

    It implements the interface `Parser` of wsgifast/server/receiving.py.

    :param gunicorn: the parser for all other requests of the same peers.
    """

    def __init__(self, gunicorn: GunicornParser) -> None:
        settings = gunicorn.settings
        self._gunicorn = gunicorn
        self.eager_bytes = gunicorn.eager_bytes
        self.head_limit_bytes = gunicorn.head_limit_bytes
        self.add_trailers = gunicorn.add_trailers
        # HTTP/2's preface or a PROXY header may precede a connection's first request.
        self._may_have_preamble = gunicorn.has_preface or settings.proxy_protocol != "off"
        self._line_bytes = settings.max_line_bytes
        self._field_bytes = settings.max_field_bytes
        self._max_fields = settings.max_fields
        self._checks_host = gunicorn.checks_host
        # The last valid Host header. Most requests repeat it, so it is not checked again.
        self._host: str | None = None
        self._scheme = "https" if settings.is_ssl else "http"
        # A plain request has no header whose name contains an underscore.
        schemes = settings.secure_scheme_headers if gunicorn.trusted else {}
        self._secure = {header_key(name): schemes[name] for name in schemes if "_" not in name}
        self._secure_keys = frozenset(self._secure)
        # These are attributes of a class, because all requests of this parser share them.
        self._request_class = type(
            PlainRequest.__name__,
            (PlainRequest,),
            {
                "cfg": settings,
                "limit_request_line": settings.max_line_bytes,
                "limit_request_fields": settings.max_fields,
                "limit_request_field_size": settings.max_field_bytes,
            },
        )
        # Readers that can be reused. A reader in use is not in this list, so no other thread uses
        # it.
        self._readers: list[_Reader] = []

    def parse(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        if number > 1 or not self._may_have_preamble:
            exchange = self._parse_plain(data, peer, number)
            if exchange is not None:
                return exchange
        return self._gunicorn.parse(data, peer, number)

    def parse_stream(
        self, received: Sequence[Field], plain: PlainHeaders | None, peer: Any, number: int
    ) -> Exchange:
        exchange = None if plain is None else self._make_plain(plain, peer, number)
        return exchange or self._gunicorn.parse_stream(received, plain, peer, number)

    def _make_plain(self, plain: PlainHeaders, peer: Any, number: int) -> Exchange | None:
        """Make a request from the headers of an HTTP/2 stream.

        :returns: None if the request is not plain with this worker's settings.
        :raises MalformedRequest: if the Host header is malformed.
        """
        method, target, client_scheme, length, fields, size = plain
        scheme, scheme_headers = self._scheme_of(fields)
        line_bytes = len(method) + len(target) + len(" HTTP/1.1\r\n")
        host = fields["HTTP_HOST"]
        # The size of the same headers in HTTP/1: each header has ": " and CR LF, and Host is added.
        size += 4 * len(fields) + len("host") + len(host)
        if (
            scheme_headers > 1
            or line_bytes > self._line_bytes
            or len(fields) > self._max_fields
            or size > self._field_bytes
            or size + line_bytes + 2 > self.head_limit_bytes
        ):
            return None
        if self._checks_host and host != self._host:
            check_host([host], http11=True)
            self._host = host
        if self._gunicorn.trusted and not scheme_headers and client_scheme in ("http", "https"):
            scheme = client_scheme
        req = self._request_class(method, target, _HTTP2, fields, scheme, True, peer, number)
        return Exchange(req, length or 0, b"", fields)

    def _scheme_of(self, fields: dict[str, str]) -> tuple[str, int]:
        """Return a plain request's scheme, and the number of headers that define it."""
        scheme, scheme_headers = self._scheme, 0
        for key in self._secure:
            if key in fields:
                scheme = "https" if fields[key] == self._secure[key] else "http"
                scheme_headers += 1
        return scheme, scheme_headers

    def _parse_plain(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        """Parse a request. Return None if it is not plain.

        :raises MalformedRequest: if the Host header is missing or malformed.
        """
        end = data.find(_END_OF_HEADERS) + len(_END_OF_HEADERS)
        headers = data[:end]
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = _Reader()
        llhttp, raw = reader.llhttp, reader.fields
        try:
            llhttp.feed_data(headers)
            (target,) = reader.targets
            method = llhttp.get_method()
            name = _METHODS[method]
            uri = target.decode("ascii")
            fields = {}
            for field, value in raw.items():
                fields[_keys[field]] = value.decode("latin-1").rstrip(" \t")
        except _UNSUPPORTED:
            return None
        # A plain request line has single spaces, and no empty line precedes it.
        line_end = len(method) + len(target) + 10
        version = _VERSIONS.get(headers[line_end - 9 : line_end + 2])
        # A repeated or folded header (RFC 9112 section 5.2) makes `fields` shorter than `count`. A
        # header that ends with a bare LF makes `fields` longer.
        count = headers.count(b"\r\n") - 2
        declared = fields.get("CONTENT_LENGTH")
        length = 0 if declared is None else parse_length(declared)
        scheme, scheme_headers = self._scheme, 0
        if not self._secure_keys.isdisjoint(fields):
            scheme, scheme_headers = self._scheme_of(fields)
        if (
            version is None
            or length is None
            or scheme_headers > 1
            or len(fields) != count
            or uri[0] != "/"
            or uri[:2] == "//"
            or "#" in uri
            or line_end > self._line_bytes
            or count > self._max_fields
            or (end > self._field_bytes and _longest_line(headers) + 4 > self._field_bytes)
        ):
            return None
        http11 = version == _HTTP11
        host = fields.get("HTTP_HOST")
        if self._checks_host and (host is None or host != self._host):
            check_host([] if host is None else [host], http11=http11)
            self._host = host
        connection = fields.get("HTTP_CONNECTION")
        if connection is None:
            persists = http11
        else:
            persists = connection == "keep-alive" or wants_to_persist([connection], http11=http11)
        if not length and llhttp.should_keep_alive():  # the parser can parse another request
            reader.targets.clear()
            raw.clear()
            self._readers.append(reader)
        req = self._request_class(name, uri, version, fields, scheme, persists, peer, number)
        return Exchange(req, length, data[end:], fields)


class PlainRequest:
    """A plain request. It has the attributes of gunicorn's request, for hooks and loggers.

    A hook may add attributes and assign existing ones.

    :ivar body: `wsgi.input`. It is None until the hooks are called.
    """

    fragment = ""
    body: Any = None
    proxy_protocol_info: dict[str, Any] | None = None
    # HttptoolsParser sets these attributes in a subclass.
    cfg: Any
    limit_request_line: int
    limit_request_fields: int
    limit_request_field_size: int

    def __init__(
        self,
        method: str,
        uri: str,
        version: tuple[int, int],
        fields: dict[str, str],
        scheme: str,
        persists: bool,
        peer: Any,
        number: int,
    ) -> None:
        self.method = method
        self.uri = uri
        self.path, _, self.query = uri.partition("?")
        self.version = version
        self.scheme = scheme
        self.peer_addr = peer
        self.req_number = number
        self._fields = fields
        self.must_close = False
        self._persists = persists

    @cached_property
    def headers(self) -> list[tuple[str, str]]:
        """The headers as pairs of an upper-case name and a value."""
        return [
            (key.removeprefix("HTTP_").replace("_", "-"), value)
            for key, value in self._fields.items()
        ]

    @cached_property
    def remote_addr(self) -> Any:
        return self.peer_addr

    @cached_property
    def trailers(self) -> list[tuple[str, str]]:
        return []

    @cached_property
    def unreader(self) -> Unreader:
        return Unreader(b"")

    @cached_property
    def max_buffer_headers(self) -> int:
        return self.limit_request_fields * (self.limit_request_field_size + 2) + 4

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close or not self._persists


class _Reader:
    """An llhttp parser for one request at a time. Its callbacks store the target and the headers.

    The callbacks are methods of a list and a dict, which are faster than functions in Python.
    """

    __slots__ = ("fields", "llhttp", "targets")

    def __init__(self) -> None:
        self.targets: list[bytes] = []
        self.fields: dict[bytes, bytes] = {}
        self.llhttp = HttpRequestParser(
            SimpleNamespace(on_url=self.targets.append, on_header=self.fields.setdefault)
        )


_keys = PlainKeys()


def _longest_line(headers: bytes) -> int:
    """Return the length of the longest line. gunicorn's parsers add up to four bytes to it."""
    return max(map(len, headers.split(b"\r\n")))
