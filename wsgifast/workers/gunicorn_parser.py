"""Parse HTTP/1 and uwsgi requests with gunicorn's parsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gunicorn import http
from gunicorn.http import errors
from gunicorn.http.body import ChunkedReader
from gunicorn.http.message import MAX_REQUEST_LINE, Request
from gunicorn.http.wsgi import proxy_environ
from gunicorn.http2 import negotiation
from gunicorn.uwsgi import errors as uwsgi_errors

from ..errors import HeadersTooLarge, MalformedRequest
from ..http.framing import wants_to_persist
from ..http.request_headers import check_host, header_fields
from ..http.stream_headers import Field, PlainHeaders, http1_headers
from ..server.receiving import Exchange, NeedMoreData
from .gunicorn_support import Settings

# gunicorn's own workers respond with 500 to these errors, although the client made them.
_CLIENT_ERRORS_ANSWERED_500 = (
    errors.InvalidProxyHeader,
    uwsgi_errors.InvalidUWSGIHeader,
    uwsgi_errors.UnsupportedModifier,
)

# The maximum size of a uwsgi packet: 4 bytes of header and 0xFFFF bytes of data.
_UWSGI_BYTES = 4 + 0xFFFF


class GunicornParser:
    """Passes received bytes to gunicorn's parser, and makes an Exchange from its request.

    It implements the interface `Parser` of wsgifast/server/receiving.py.

    :param settings: gunicorn's settings.
    :param trusted: whether the peers are in forwarded_allow_ips. Only these peers may use HTTP/2
        without TLS.
    :param checks_host: whether to refuse requests with a missing, malformed or repeated Host
        header. uwsgi requests are never checked.
    :param head_limit_bytes: the maximum size of request line and headers. gunicorn's own limits
        apply too.
    :ivar has_preface: whether a connection may begin with HTTP/2's connection preface.
    """

    def __init__(
        self, settings: Settings, *, trusted: bool, checks_host: bool, head_limit_bytes: int
    ) -> None:
        self.settings = settings
        self.trusted = trusted
        self.checks_host = checks_host and not settings.uses_uwsgi
        # A client begins HTTP/2 without TLS with the connection preface ("prior knowledge", RFC
        # 9113 section 3.3). The Upgrade header of RFC 7540 is obsolete.
        self.has_preface = trusted and negotiation.prior_knowledge_allowed(settings, None)
        kind = Request
        self.eager_bytes = len(negotiation.H2C_PREFACE) if self.has_preface else 0
        if settings.uses_uwsgi:
            kind = http.get_parser(settings, [], None).mesg_class
            self.eager_bytes = _UWSGI_BYTES
        # gunicorn would compare each request's peer with forwarded_allow_ips. The result is the
        # same for all peers of this parser, so these settings contain the result in place of the
        # list.
        self._request_settings = settings.for_peers(trusted=trusted)
        self._request_class = type(kind.__name__, (_Persistence, kind), {})
        self.head_limit_bytes = min(head_limit_bytes, _header_limit_bytes(settings))

    def parse(self, data: bytes, peer: Any, number: int) -> Exchange | None:
        if number == 1 and self.has_preface and self._begins_with_preface(data):
            return None
        unreader = Unreader(data)
        try:
            req = self._request_class(self._request_settings, unreader, peer, number)
        except _CLIENT_ERRORS_ANSWERED_500 as error:
            raise MalformedRequest(str(error)) from error
        req.cfg = self.settings  # hooks may read it
        if self.checks_host:
            hosts = [value for name, value in req.headers if name == "HOST"]
            check_host(hosts, http11=req.version >= (1, 1))
        fields = header_fields(req.headers)
        script_name = None
        if "HTTP_SCRIPT_NAME" in fields:
            # gunicorn accepts this header, which has an underscore, only from trusted peers.
            for name, value in req.headers:
                if name == "SCRIPT_NAME":
                    script_name = value
        reader, req.body = req.body.reader, None  # the app must not read from this body
        is_chunked = isinstance(reader, ChunkedReader)
        if is_chunked:
            reader.req = None  # breaks a reference cycle that would keep the request in memory
        unparsed, unreader.data = unreader.data, b""
        return Exchange(
            req,
            None if is_chunked else reader.length,
            unparsed,
            fields,
            script_name=script_name,
            # HTTP/1.0 has no 100 Continue (RFC 9110 section 10.1.1). With uwsgi, the proxy sends
            # 100 Continue.
            expects_continue=(
                "HTTP_EXPECT" in fields and req.version >= (1, 1) and not self.settings.uses_uwsgi
            ),
            proxy=proxy_addresses(req) if number == 1 else None,
        )

    def parse_stream(
        self, received: Sequence[Field], plain: PlainHeaders | None, peer: Any, number: int
    ) -> Exchange:
        headers, scheme = http1_headers(received)
        if len(headers) > self.head_limit_bytes:
            raise HeadersTooLarge(self.head_limit_bytes)
        # A PROXY header or a preface may only precede a connection's request number 1. So a
        # stream's request gets a higher number while it is parsed.
        exchange = self.parse(headers, peer, number + 1)
        if exchange is None:
            raise MalformedRequest("an HTTP/2 preface in place of a request")
        req = exchange.req
        req.version = (2, 0)
        req.req_number = number
        # A trusted peer may set :scheme, like a header of secure_scheme_headers.
        if self.trusted and scheme in ("http", "https"):
            names = self.settings.secure_scheme_headers
            if not any(name in names for name, _ in req.headers):
                req.scheme = scheme
        return exchange

    def add_trailers(self, req: Any, lines: Sequence[bytes]) -> None:
        if lines:
            message = req
            if not isinstance(req, self._request_class):  # HttptoolsParser made this request
                unreader = Unreader(b"GET / HTTP/1.1\r\n\r\n")
                message = self._request_class(self.settings, unreader, req.peer_addr, 2)
            req.trailers = message.parse_headers(b"\r\n".join(lines), from_trailer=True)

    def _begins_with_preface(self, data: bytes) -> bool:
        """Return whether the data begins with HTTP/2's connection preface.

        :raises NeedMoreData: if more data is necessary to decide.
        """
        match = negotiation.preface_match(data[: len(negotiation.H2C_PREFACE)])
        if match == negotiation.PARTIAL:
            raise NeedMoreData
        if match == negotiation.MISMATCH and negotiation.mismatch_is_error(self.settings):
            raise errors.InvalidH2CPreface(data[: len(negotiation.H2C_PREFACE)])
        return bool(match == negotiation.MATCH)


class Unreader:
    """A source of received bytes for gunicorn's parsers.

    :ivar data: the unread bytes.
    :ivar sock: the client's socket, for hooks. None while a request is parsed.
    """

    __slots__ = ("data", "sock")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sock: Any = None

    def read(self, size: int | None = None, read_ahead: int | None = None) -> bytes:
        """Read `size` bytes, or all bytes if `size` is None.

        :raises NeedMoreData: if fewer than `size` bytes remain, or no bytes.
        """
        if size is None:
            size = len(self.data) or 1
        if len(self.data) < size:
            raise NeedMoreData
        data, self.data = self.data[:size], self.data[size:]
        return data

    def unread(self, data: bytes) -> None:
        self.data = bytes(data) + self.data


class _Persistence:
    """A base class that reads Connection headers as lists (RFC 9110 section 7.6.1)."""

    method: str
    version: tuple[int, int]
    headers: list[tuple[str, str]]
    must_close: bool

    def should_close(self) -> bool:
        # The bytes after a CONNECT request belong to a tunnel.
        if self.must_close or self.method == "CONNECT":
            return True
        options = [value for name, value in self.headers if name == "CONNECTION"]
        return not wants_to_persist(options, http11=self.version >= (1, 1))


def proxy_addresses(req: Any) -> dict[str, Any] | None:
    """Return the environ keys of a request's PROXY header, or None if there is no such header."""
    if not req.proxy_protocol_info:
        return None
    return {k: v for k, v in proxy_environ(req).items() if v not in (None, "None")}


def _header_limit_bytes(settings: Settings) -> int:
    """Return gunicorn's limit for the size of request line and headers (Message.__init__)."""
    line = settings.limit_request_line or 1024 * 1024
    fields = settings.max_fields * (settings.max_field_bytes + 2)
    return int(fields + 4 + max(line, MAX_REQUEST_LINE))
