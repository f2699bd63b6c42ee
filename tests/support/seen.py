"""One response as a client sees it on the wire, and its comparison with another."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from wsgifast.compression.policy import compressed_tag

from .http import Address, Connection, Response

# A case that fails without a response is tried several times, while Hypothesis makes it smaller.
_TIMEOUT_S = 20.0
# A response with one of these statuses has no body, despite its headers (RFC 9110, section 6.4.1).
_WITHOUT_BODY = (204, 304)


@dataclass
class Seen:
    """One response, read to the end of its connection.

    :ivar status: 0 if no headers arrived.
    :ivar body: decoded, as far as it arrived.
    :ivar is_complete: whether the framing and the content coding both end.
    :ivar surplus: bytes after the end of the response.
    """

    status: int = 0
    headers: dict[str, list[str]] = field(default_factory=dict)
    coding: str | None = None
    body: bytes = b""
    sent_bytes: int = 0
    is_complete: bool = False
    surplus: bytes = b""
    has_body: bool = True

    def values(self, name: str) -> list[str]:
        return self.headers.get(name, [])

    def __str__(self) -> str:
        end = "complete" if self.is_complete else "cut off"
        surplus = f", then {self.surplus[:40]!r}" if self.surplus else ""
        shown = f"{len(self.body)} bytes {self.body[:20]!r}"
        return f"{self.status} {self.headers} {shown} {self.coding or ''} {end}{surplus}"


def ask(
    address: Address,
    target: str,
    method: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    bare_lf: bool = False,
) -> Seen:
    """Send a request on a new connection, and read all bytes.

    :param bare_lf: as :class:`.Connection` takes it.
    """
    with Connection(address, timeout=_TIMEOUT_S, bare_lf=bare_lf) as connection:
        fields = [*headers, ("Connection", "close")]
        connection.send_request(target, method=method, headers=fields)
        return _read(connection, method)


def _read(connection: Connection, method: str) -> Seen:
    try:
        received = connection.read_headers()
    except EOFError:
        return Seen()
    seen = Seen(received.status)
    for name, value in received.headers:
        seen.headers.setdefault(name.lower(), []).append(value)
    seen.coding = received.header("Content-Encoding")
    seen.has_body = method != "HEAD" and received.status not in _WITHOUT_BODY
    rest = connection.read_to_end()
    if not seen.has_body:
        seen.is_complete, seen.surplus = True, rest
        return seen
    content, seen.is_complete, seen.surplus = _framed(received, rest)
    seen.sent_bytes = len(content)
    seen.body = content
    if seen.coding is not None:
        assert seen.coding == "gzip"
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        seen.body = decoder.decompress(content)
        assert not decoder.unused_data
        seen.is_complete = seen.is_complete and decoder.eof
    return seen


def _framed(received: Response, rest: bytes) -> tuple[bytes, bool, bytes]:
    """Split the bytes after the headers.

    Return the content, whether it is complete, and the surplus.
    """
    if received.header("Transfer-Encoding") is None:
        length = received.header("Content-Length")
        if length is None:
            return rest, True, b""
        size = int(length)
        return rest[:size], len(rest) >= size, rest[size:]
    content = b""
    while True:
        line, ends, following = rest.partition(b"\r\n")
        if not ends:
            return content, False, b""
        try:
            size = int(line, 16)
        except ValueError:
            raise AssertionError(f"no size of a chunk: {rest[:60]!r} behind\n{received}") from None
        if not size:
            is_end = following.startswith(b"\r\n")
            return content, is_end, following[2:]
        content += following[:size]
        if following[size : size + 2] != b"\r\n":
            return content, False, b""
        rest = following[size + 2 :]


def differences(
    raw: Seen, other: Seen, *, has_file: bool = False, fails: bool = False, declares: bool = True
) -> list[str]:
    """Return how a response is worse than the raw app's, or how it differs.

    :param fails: the app raises an error.
    :param declares: the app sends a Content-Length. A server may add one.
    :param has_file: the body is a file, to which a middleware may add validators.
    """
    found = []
    # Waitress ends a response to HEAD by a last chunk
    if other.surplus and other.surplus != raw.surplus:
        found.append("bytes follow the response")
    # The server can still send a 500 in place of a response that breaks off at once.
    if (fails or not raw.is_complete) and not raw.body and other.status in (0, 500):
        return found
    if raw.status != other.status:
        return [*found, "another status"]
    if raw.is_complete != other.is_complete:
        found.append("cut off" if raw.is_complete else "looks complete")
    if raw.body != other.body:
        found.append("another body")
    for name in ("content-type", "cache-control", "set-cookie", "x-request-headers"):
        if raw.values(name) != other.values(name):
            found.append(f"another {name}")
    vary, raw_vary = _members(other, "vary"), _members(raw, "vary")
    if not raw_vary <= vary <= raw_vary | {"accept-encoding"}:
        found.append("another vary")
    tags, raw_tags = other.values("etag"), raw.values("etag")
    if other.coding is not None:
        raw_tags = [
            tag for each in raw_tags if (tag := compressed_tag(each, other.coding)) is not None
        ]
    if tags != raw_tags and (raw_tags or not has_file) and (tags or raw.has_body):
        found.append("another etag")
    if other.has_body and other.is_complete:
        lengths, raw_lengths = other.values("content-length"), raw.values("content-length")
        if lengths and lengths != [str(other.sent_bytes)]:
            found.append("a wrong content-length")
        if raw_lengths and declares and not lengths and other.coding is None:
            found.append("no content-length")
    if other.status == 204 and other.values("content-length"):
        found.append("a content-length of a 204")
    return found


def _members(seen: Seen, name: str) -> set[str]:
    return {each.strip().lower() for value in seen.values(name) for each in value.split(",")} - {""}
