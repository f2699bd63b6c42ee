"""Check an app's status and headers, and encode them.

The grammar of header fields is here too, also for the modules that parse requests.

The app decides about the content. The server decides about framing and the connection (RFC 9110
7.6.1, RFC 9112 6). So the Content-Length is read, but the server sends its own. Hop-by-hop headers
are dropped. Of a Connection header, only "close" and "upgrade" have an effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..errors import BodyError
from .framing import Framing, frame_response, list_members
from .headers import LOWER, Header, Headers

# A token (RFC 9110 5.6.2), such as a method, a field name or a content coding.
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Names of hop-by-hop headers, in lower case (RFC 9110 7.6.1, RFC 9113 8.2.2). The app's headers
# with these names are dropped, and the server may add its own. Some of the names are not in the
# RFCs, but older servers and proxies drop them.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "trailers", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# Fields for framing, routing, authentication or the content's format must not be trailers (RFC 9110
# section 6.5.1).
NO_TRAILERS = frozenset(
    {
        "authorization", "content-encoding", "content-length", "content-range", "content-type",
        "host", "te", "trailer", "transfer-encoding",
    }
)  # fmt: skip

# Headers that determine, together with Content-Type, whether a body is compressed: see
# :func:`~..compression.policy.type_to_compress`.
CODING_HEADERS = frozenset({"cache-control", "content-encoding", "vary"})

# RFC 9112 4: three digits, a space, a reason that may be empty. RFC 9110 15 defines the classes 1
# to 5. A code above 599 is accepted, and framed like that of any final response.
_STATUS = re.compile(r"[1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?")
_NAME = re.compile(TOKEN)
# RFC 9110 5.5: visible characters, SP, HTAB, and the part of Latin-1 beyond ASCII.
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
# CR or LF alone ends a line for some clients and proxies. NUL ends the string for a server in C.
_LINE_END = re.compile(r"[\r\n\0]")
# The most digits of a Content-Length, which suffice for any body.
_MAX_LENGTH_DIGITS = 18

# Headers to drop from interim responses (RFC 9110 8.6, RFC 9112 6.1), and fields to drop from
# trailers (RFC 9110 6.5.1).
_NOT_INTERIM = HOP_BY_HOP | {"content-length"}
_NOT_IN_TRAILERS = HOP_BY_HOP | NO_TRAILERS

# Caches of valid values. Apps use few different values.
_MAX_CACHED = 500
_codes: dict[str, int] = {}  # by status
_lengths: dict[str, int] = {}  # by value of Content-Length
# From a header name to the same name, and to its meaning. Hop-by-hop names are not in it.
_names: dict[str, tuple[str, str]] = {}
# Returns the characters of a str subclass, such as an enum's member. str() and format() of such an
# object may return other text.
_characters = str.__str__
_strip = str.strip
# The meaning of a header name in this module: the name in lower case, or "" for most names.
_LENGTH, _TYPE = "content-length", "content-type"
# If one of these headers is set, the Content-Type alone does not determine whether a body is
# compressed.
_DECIDING = CODING_HEADERS | {"transfer-encoding"}
_MEANINGS = {each: each for each in {_LENGTH, _TYPE, "date", "server"} | _DECIDING}
# A cache of checked responses by status and headers. Long headers are not cached. Headers with a
# cookie are not cached, because the cookie may be a secret.
_starts: dict[tuple[object, ...], ResponseStart] = {}
_MAX_STARTS = 256
_MAX_CACHED_CHARACTERS = 1024


class ResponseStart:
    """An app's status and headers, checked.

    The constructor checks its arguments, which may be any objects of an app.

    :param status: such as "200 OK". The reason may be missing.
    :param headers: pairs of str.
    :ivar status: the app's status, such as "200 OK".
    :ivar code: 101, or 200 and above.
    :ivar given: all headers, in order, without whitespace around their values.
    :ivar headers: the headers to send, without Content-Length.
    :ivar content_length: in bytes. None if the app has not set it.
    :ivar deciding_type: the Content-Type, if it alone decides whether the body may be compressed.
        None if there is also a Transfer-Encoding, or a header in CODING_HEADERS.
    :ivar has_date: whether there is a Date header. If not, the server adds one (RFC 9110 6.6.1).
    :ivar has_server: whether there is a Server header.
    :ivar closes: whether there is a "Connection: close".
    :ivar upgrades: whether there is a "Connection: upgrade".
    :raises BodyError: for a value that cannot be sent. The message never contains a header's value,
        which may be a secret.
    """

    __slots__ = (
        "_changed", "_encoded", "_framed", "closes", "code", "content_length", "deciding_type",
        "given", "has_date", "has_server", "headers", "status", "upgrades",
    )  # fmt: skip

    def __init__(self, status: Any, headers: Iterable[Any]) -> None:
        self.code = status_code(status)
        self.status = _characters(status)
        self.content_length: int | None = None
        self.deciding_type: str | None = None
        self.closes = self.upgrades = self.has_date = self.has_server = False
        # The arguments and results of the last calls of frame(), encode() and changed(). Most
        # requests repeat them.
        self._framed: tuple[str, bool, Framing] | None = None
        self._encoded: tuple[str, str, Framing, bytes] | None = None
        self._changed: ResponseStart | None = None
        to_send: list[Header] = []
        upgrade: list[Header] = []
        has_deciding = False
        self.given = given = Headers()
        self.headers = to_send
        try:
            for name, value in headers:
                known = _names.get(name)
                if known is None:
                    name, value = check_field(name, value)
                    lower = name.lower()
                    if lower == "upgrade":
                        upgrade.append((name, value))
                    elif lower == "connection":
                        self._read_connection(value)
                    if lower in HOP_BY_HOP:
                        given.append((name, value))
                        has_deciding = has_deciding or lower in _DECIDING
                        continue
                    meaning = _MEANINGS.get(lower, "")
                    if len(_names) < _MAX_CACHED:
                        _names[name] = name, meaning
                else:
                    name, meaning = known
                    if not isinstance(value, str):
                        raise _bad_value_type(name, value)
                    printable = value.isascii() and value.isprintable()
                    if not printable and not _VALUE.fullmatch(value):
                        raise _bad_value(name)
                    value = _strip(value, " \t")
                header = name, value
                given.append(header)
                if meaning is _LENGTH:
                    self.content_length = _checked_length(self.content_length, value)
                    continue
                to_send.append(header)
                if meaning is _TYPE:
                    self.deciding_type = value
                elif meaning == "date":
                    self.has_date = True
                elif meaning == "server":
                    self.has_server = True
                elif meaning:
                    has_deciding = True
        except BodyError:
            raise
        except (TypeError, ValueError):
            raise invalid_pairs_error(headers) from None
        if has_deciding:
            self.deciding_type = None
        if upgrade and self.upgrades:
            to_send.append(upgrade[-1])
        if self.code == 101 and not self.upgrades:
            raise BodyError(f"the status is {status!r} without a 'Connection: upgrade'")

    def _read_connection(self, connection: str) -> None:
        options = list_members(connection)
        self.closes = self.closes or "close" in options
        self.upgrades = self.upgrades or "upgrade" in options

    def changed(self, status: str, code: int, headers: Headers) -> ResponseStart:
        """Return a copy with another status and other headers, which are not checked.

        :param headers: the new value of `given`. The caller guarantees that they are valid.
        """
        known = self._changed
        if known is not None and known.status == status and known.given == headers:
            return known
        start = ResponseStart("200", ())
        start.status, start.code = status, code
        start.closes, start.upgrades = self.closes, self.upgrades
        start.given = headers
        for header in headers:
            name = LOWER[header[0]]
            if name == "content-length":
                start.content_length = parse_length(header[1])
            elif name not in HOP_BY_HOP or (name == "upgrade" and header in self.headers):
                start.headers.append(header)
                start.has_date = start.has_date or name == "date"
                start.has_server = start.has_server or name == "server"
        self._changed = start
        return start

    def frame(self, method: str, *, chunks: bool) -> Framing:
        """Return the framing of the response: see :func:`~.framing.frame_response`."""
        framed = self._framed
        if framed is None or framed[0] != method or framed[1] is not chunks:
            framing = frame_response(method, self.code, self.content_length, chunks=chunks)
            self._framed = framed = method, chunks, framing
        return framed[2]

    def encode(self, http_version: str, framing: Framing, server_lines: str) -> bytes:
        """Return the bytes of the status line, the headers and the empty line.

        :param http_version: "1.0" or "1.1".
        :param server_lines: the server's header lines, each with CR LF.
        """
        encoded = self._encoded
        if (
            encoded is not None
            and encoded[0] is server_lines
            and encoded[1] == http_version
            and encoded[2] is framing
        ):
            return encoded[3]
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers])
        if framing.length is not None:
            lines += f"Content-Length: {framing.length}\r\n"
        elif framing.chunked:
            lines += "Transfer-Encoding: chunked\r\n"
        # RFC 9112 4 requires this space even if there is no reason.
        space = "" if len(self.status) > 3 else " "
        text = f"HTTP/{http_version} {self.status}{space}\r\n{server_lines}{lines}\r\n"
        data = text.encode("latin-1")
        self._encoded = server_lines, http_version, framing, data
        return data


def known_start(status: Any, headers: Any) -> ResponseStart:
    """Return a :class:`ResponseStart` from a cache. Callers share it, and must not change it.

    :param headers: pairs of str. If it is a :class:`ResponseStart`, it is returned.
    """
    if type(headers) is ResponseStart:  # from WSGIFast, already checked
        return headers
    if type(headers) is not list:
        return ResponseStart(status, headers)
    key = (status, *headers)
    try:
        start = _starts.get(key)
    except TypeError:  # a header is unhashable
        return ResponseStart(status, headers)
    if start is None:
        start = ResponseStart(status, headers)
        if _may_be_cached(start):
            if len(_starts) >= _MAX_STARTS:
                _starts.clear()
            _starts[key] = start
    return start


def _may_be_cached(start: ResponseStart) -> bool:
    size = 0
    for name, value in start.headers:
        size += len(name) + len(value)
        if len(name) == 10 and name.lower() == "set-cookie":
            return False
    return size <= _MAX_CACHED_CHARACTERS


def status_code(status: Any) -> int:
    """Return the code of a status, such as 200 for "200 OK".

    :raises BodyError: if it is malformed or interim (RFC 9110 15.2). 101 (Switching Protocols) is
        accepted, because no other response follows it.
    """
    try:
        code = _codes.get(status)
    except TypeError:  # unhashable
        code = None
    if code is not None:
        return code
    if not isinstance(status, str) or not _STATUS.fullmatch(status):
        raise BodyError(f"the status is {status!r}; give a str such as '200 OK'")
    code = int(status[:3])
    if code < 200 and code != 101:
        raise BodyError(
            f"the status is {status!r}, which is interim, so that another response must follow; "
            "give a final status such as '200 OK'"
        )
    if len(_codes) < _MAX_CACHED:
        _codes[status] = code
    return code


def check_field(name: Any, value: Any) -> tuple[str, str]:
    """Check a header. Return its name, and its value without outer whitespace (RFC 9110 5.5).

    :raises BodyError: if the header cannot be sent.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _bad_name(name)
    if not isinstance(value, str):
        raise _bad_value_type(name, value)
    if not _VALUE.fullmatch(value):
        raise _bad_value(name)
    return _characters(name), _strip(value, " \t")


def interim_fields(headers: Iterable[Any]) -> list[tuple[str, str]]:
    """Check the headers of an interim response. Return them without framing and hop-by-hop headers.

    :param headers: pairs of str or bytes.
    :raises BodyError: as :func:`check_field`.
    """
    return _fields_without(_NOT_INTERIM, headers)


def trailer_fields(headers: Iterable[Any]) -> list[tuple[str, str]]:
    """Check trailers. Return them without fields that must not be trailers.

    For parameters and errors see :func:`interim_fields`.
    """
    return _fields_without(_NOT_IN_TRAILERS, headers)


def _fields_without(names: frozenset[str], headers: Iterable[Any]) -> list[tuple[str, str]]:
    try:
        pairs = [(_text(name), _text(value)) for name, value in headers]
    except (TypeError, ValueError):
        raise invalid_pairs_error(headers) from None
    fields = [check_field(name, value) for name, value in pairs]
    return [field for field in fields if field[0].lower() not in names]


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def read_headers(headers: Iterable[Any]) -> tuple[int | None, str | None]:
    """Read the headers of a response that another server will send, and check their line ends.

    Not all servers check values: wsgiref, Werkzeug and cheroot send any value unchanged. So CR, LF
    and NUL are rejected here, which would end a line or a C string (RFC 9110 5.5). All other
    characters are accepted.

    :returns: the Content-Length and the Content-Type, or None for a missing header. The
        Content-Type is also None if it does not alone decide about compression: see `deciding_type`
        of :class:`ResponseStart`.
    :raises BodyError: if Content-Length is not a number, if two of them differ, if a header
        contains CR, LF or NUL, or if the headers are not pairs of str.
    """
    length = deciding_type = None
    content_type: str | None = _TYPE  # None after another deciding header
    try:
        for name, value in headers:
            meaning = _one_line_names[name]
            if meaning is _LENGTH:
                known = _lengths.get(value) if type(value) is str else None
                if known is None or (length is not None and length != known):
                    known = _checked_length(length, value)
                    if len(_lengths) < _MAX_CACHED:
                        _lengths[value] = known
                length = known
                continue
            try:
                if "\n" in value or "\r" in value or "\0" in value:
                    raise _bad_value(name)
            except BodyError:
                raise
            except TypeError:  # not a str
                if _ends_line(value):
                    raise _bad_value(name) from None
                if meaning is _TYPE:
                    content_type = deciding_type = None
            if meaning:
                if meaning is content_type:
                    deciding_type = value
                elif meaning in _DECIDING:
                    content_type = deciding_type = None
    except BodyError:
        raise
    except (AttributeError, TypeError, ValueError):
        raise invalid_pairs_error(headers) from None
    return length, deciding_type


def raw_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return headers as bytes for ASGI and HTTP/2: Latin-1, names in lower case."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def parse_length(value: str) -> int | None:
    """Return the value of a Content-Length, in bytes. None if it is malformed.

    RFC 9110 8.6 allows ASCII digits only. int() also accepts "+5", "1_0" and digits of other
    scripts. A regular expression would be shorter, but slower.
    """
    if value.isascii() and value.isdigit() and len(value) <= _MAX_LENGTH_DIGITS:
        return int(value)
    return None


class _OneLineNames(dict[object, str]):
    """A cache of the meanings of names.

    The names contain no line ends, but may be invalid otherwise.
    """

    def __missing__(self, name: object) -> str:
        if not isinstance(name, (str, bytes)):
            raise TypeError
        if _ends_line(name):
            raise _bad_name(name)
        if type(name) is not str:
            return ""
        meaning = _MEANINGS.get(name.lower(), "")
        if len(self) < _MAX_CACHED:
            self[name] = meaning
        return meaning


_one_line_names = _OneLineNames()


def _ends_line(part: Any) -> bool:
    # Some servers also accept bytes. Values of other types are checked by the server.
    text = part.decode("latin-1") if isinstance(part, bytes) else part
    return isinstance(text, str) and _LINE_END.search(text) is not None


def _checked_length(length: int | None, value: object) -> int:
    """Parse a Content-Length. Check that it does not differ from `length`, an earlier one."""
    size = parse_length(_strip(value, " \t")) if isinstance(value, str) else None
    if size is None or length not in (None, size):
        before = "" if length is None else f"{length} and to "
        raise BodyError(
            f"Content-Length is set to {before}{value!r}; give one number of bytes, in digits, "
            "or leave it out"
        )
    return size


def invalid_pairs_error(headers: object) -> BodyError:
    return BodyError(
        f"the headers are a {type(headers).__name__}, and not a list of (name, value) tuples of str"
    )


def _bad_value_type(name: object, value: object) -> BodyError:
    return BodyError(f"the header {name} has a value of type {type(value).__name__}; give a str")


def _bad_name(name: object) -> BodyError:
    return BodyError(f"a header's name is {name!r}; give a str of letters, digits and hyphens")


def _bad_value(name: str) -> BodyError:
    return BodyError(
        f"the header {name} has a value with a control character or a character beyond Latin-1"
    )
