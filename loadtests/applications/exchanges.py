"""Send requests in several variants, and compare the responses of two servers.

A variant has another method, a condition or another Accept-Encoding. A difference counts only if
two runs of the usual server do not differ in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urljoin, urlsplit

from wsgifast.commands.client import BROWSER_ACCEPT_ENCODING as BROWSER
from wsgifast.commands.client import HTTPClient, NoResponse, decoded

from .catalogue import Ask

RESPONSE_S = 60.0
_MAX_LINKS = 16
_TOKEN_BYTES = 16  # the maximum difference between the lengths of two tokens
_CONTEXT_BYTES = 30  # the bytes to show before and after a difference
_RANGE = (100, 299)
# Headers that describe the connection or the server, which are not compared. Content-Length is
# compared separately.
_CONNECTION_HEADERS = {
    "connection", "content-length", "date", "keep-alive", "server", "transfer-encoding", "via",
}  # fmt: skip
_TIMES = {"server-timing", "x-process-time", "x-response-time", "x-runtime"}
_CODING_HEADERS = {"content-encoding", "etag"}
# Headers that a response to HEAD may omit if the body of GET may be compressed. A server need not
# compress a body to find out its length or ETag (RFC 9110, section 9.3.2).
_OMITTED_BY_CODING = {
    "accept-ranges", "content-digest", "content-encoding", "content-length", "content-md5",
    "digest", "etag", "repr-digest",
}  # fmt: skip
# Maps the suffix of a variant's name to its Accept-Encoding header.
_ACCEPTED = {"": [], " identity": [("Accept-Encoding", "identity")], " browser": [BROWSER]}
# Headers that improve a response.
_IMPROVEMENTS = {"accept-ranges", "content-range", "etag", "last-modified", "vary"}
# Text that differs between requests or processes, and its replacement for the comparison.
_CHANGING = [
    (re.compile(pattern), mark)
    for pattern, mark in (
        (rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", b"<time>"),
        (rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", b"<time>"),
        (rb"\d+ (second|minute)s?\b", b"<time>"),
        (rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"<uuid>"),
        (rb"[A-Za-z0-9_+/.-]{20,}=*", b"<token>"),
        (rb"\b(\d{9,}(\.\d+)?|\d+\.\d{3,})\b", b"<token>"),
    )
]


@dataclass(frozen=True)
class Exchange:
    """A response with its decoded body. The body of a 206 response is not decoded.

    :ivar sent: the body without decoding.
    :ivar error: the reason why there is no usable response. "" if there is a response.
    """

    status: int = 0
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    wire_bytes: int = 0
    error: str = ""
    sent: bytes = b""

    def header(self, name: str) -> str:
        """Return all values of a header, separated by commas."""
        return ", ".join(v for k, v in self.headers if k.lower() == name)


Key = tuple[str, str]  # the request as text, and the name of its variant
PLAIN = "GET"  # the variant with the method of the request, and without Accept-Encoding


@dataclass
class Outcome:
    """The result of the comparison of a contender with the usual server.

    :ivar same: the number of equal responses.
    :ivar varies: the number of responses that also differ between two runs of the usual server.
    :ivar tracebacks: the number of additional tracebacks in the contender's log.
    """

    same: int = 0
    varies: int = 0
    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    tracebacks: int = 0


def ask_all(
    client: HTTPClient, asks: Sequence[Ask], names: Mapping[str, str]
) -> dict[Key, Exchange]:
    """Send all requests in all variants, in a fixed order, and return the responses.

    :param names: the values of {name} placeholders in paths.
    """
    found: dict[Key, Exchange] = {}
    for ask in asks:
        path = ask.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        label = path if ask.method == "GET" else f"{ask.method} {path}"
        plain = _send_request(client, path, ask)
        if ask.once:
            continue
        found[label, PLAIN] = plain
        found[label, f"{PLAIN} gzip"] = _send_request(
            client, path, ask, [("Accept-Encoding", "gzip")]
        )
        for codings, accepted in _ACCEPTED.items():
            if codings:
                found[label, PLAIN + codings] = _send_request(client, path, ask, accepted)
            if ask.method != "GET":
                continue
            seen = found[label, PLAIN + codings]
            found[label, f"HEAD{codings}"] = _send_request(
                client, path, ask, accepted, method="HEAD"
            )
            conditions = [("Range", "bytes={}-{}".format(*_RANGE)), *accepted]
            found[label, f"Range{codings}"] = _send_request(client, path, ask, conditions)
            if tag := seen.header("etag"):
                conditions = [("If-None-Match", tag), *accepted]
                found[label, f"If-None-Match{codings}"] = _send_request(
                    client, path, ask, conditions
                )
            if changed := seen.header("last-modified"):
                conditions = [("If-Modified-Since", changed), *accepted]
                found[label, f"If-Modified-Since{codings}"] = _send_request(
                    client, path, ask, conditions
                )
    return found


def _send_request(
    client: HTTPClient,
    path: str,
    ask: Ask,
    headers: Sequence[tuple[str, str]] = (),
    method: str | None = None,
) -> Exchange:
    try:
        response = client.ask(
            path, method=method or ask.method, headers=[*ask.headers, *headers], body=ask.body
        )
    except NoResponse as error:
        return Exchange(error=re.sub(r"127\.0\.0\.1:\d+: ", "", str(error)))
    if response.missing:
        return Exchange(response.status, error=f"{response.missing} bytes of the body are missing")
    body: bytes | None = response.body
    if body and response.status != 206:
        body = decoded(body, response.header("Content-Encoding") or "")
    if body is None:
        return Exchange(response.status, response.headers, error="the body cannot be decoded")
    return Exchange(response.status, response.headers, body, len(response.body), sent=response.body)


_LINK = re.compile(rb"<(?:script|link|img|source)\b[^>]*?\b(?:src|href)\s*=\s*[\"']([^\"'#]+)")


def links(found: Mapping[Key, Exchange]) -> Iterator[Ask]:
    """Yield requests for some scripts, styles and images in the pages."""
    seen = {path.partition("?")[0] for path, _ in found}
    kinds: dict[str, int] = {}
    for (path, variant), exchange in found.items():
        if variant != PLAIN or "html" not in exchange.header("content-type"):
            continue
        for match in _LINK.finditer(exchange.body):
            url = urljoin(path, unescape(match[1].decode(errors="replace")))
            parts = urlsplit(url)
            kind = parts.path.rpartition(".")[2]
            if (
                parts.netloc
                or not re.fullmatch(r"/[!-~]*", url)
                or parts.path in seen
                or kinds.get(kind, 0) >= _MAX_LINKS // 4
                or sum(kinds.values()) >= _MAX_LINKS
            ):
                continue
            seen.add(parts.path)
            kinds[kind] = kinds.get(kind, 0) + 1
            yield Ask(url)


def compare(
    raw: Mapping[Key, Exchange], again: Mapping[Key, Exchange], ours: Mapping[Key, Exchange]
) -> Outcome:
    """Compare the responses of a contender with those of the usual server.

    :param raw: the responses of the usual server.
    :param again: the responses of a second run of the usual server. Differences between both runs
        are ignored.
    :param ours: the responses of the contender.
    """
    outcome = Outcome()
    for key, exchange in ours.items():
        path, variant = key
        requested = _get(ours, key)
        if key not in raw:
            # This is a conditional request, and only the contender has sent a validator.
            if exchange.status == 304 or (exchange.status, exchange.body) == (
                requested.status,
                requested.body,
            ):
                outcome.better.append(f"{path} [{variant}]: {exchange.status}")
            else:
                outcome.worse.append(f"{path} [{variant}]: {exchange.error or exchange.status}")
            continue
        worse, better, varies = _compared(raw, again, key, exchange, requested)
        outcome.worse += [f"{path} [{variant}]: {text}" for text in worse]
        outcome.better += [f"{path} [{variant}]: {text}" for text in better]
        outcome.same += not (worse or better or varies)
        outcome.varies += varies and not worse
    outcome.worse += [f"{path} [{variant}]: the validator is missing"
                      for path, variant in raw if (path, variant) not in ours]  # fmt: skip
    return outcome


def _get(found: Mapping[Key, Exchange], key: Key) -> Exchange:
    """Return the response to a GET with the same Accept-Encoding."""
    return found[key[0], PLAIN + key[1].removeprefix(key[1].partition(" ")[0])]


def _compared(
    exchanges: Mapping[Key, Exchange],
    exchanges_again: Mapping[Key, Exchange],
    key: Key,
    ours: Exchange,
    full: Exchange,
) -> tuple[list[str], list[str], bool]:
    """Return disadvantages, improvements, and whether the response varies without wsgifast.

    :param full: the contender's response to a GET with the same Accept-Encoding.
    """
    raw, variant = exchanges[key], key[1]
    again = exchanges_again.get(key, raw)
    if raw.error or ours.error:
        if raw.error and not ours.error:
            return [], [f"a response in place of: {raw.error}"], False
        return ([ours.error] if ours.error and not raw.error else []), [], bool(raw.error)
    if raw.status != ours.status:
        if again.status != raw.status:
            return [], [], True
        complete = exchanges[key[0], PLAIN].body
        if ours.header("content-encoding"):
            complete = full.sent  # the range refers to the compressed body
        start, end = _RANGE
        is_range = ours.status == 206 and ours.body == complete[start : end + 1]
        if variant.startswith("Range") and (is_range or ours.status == 416):
            return [], [f"{ours.status} in place of {raw.status}"], False
        if variant.startswith("If-") and ours.status == 304:
            return [], [f"304 in place of {raw.status}"], False
        return [f"status {ours.status} in place of {raw.status}"], [], False
    if variant.startswith("HEAD"):
        may_omit = variant.endswith("browser") and (
            bool(full.header("content-encoding"))
            or "accept-encoding" in _tokens(full.header("vary"))
        )
        raw_full = _get(exchanges, key)
        worse, better = _compared_with_get(raw, raw_full, again, ours, full, may_omit=may_omit)
    else:
        worse, better = _compared_headers(raw, again, ours, full)
    varies = _normal(raw.body) != _normal(again.body)
    if not varies and raw.body != ours.body and _normal(raw.body) != _normal(ours.body):
        lengths = f"{len(ours.body):,} in place of {len(raw.body):,}"
        worse.append(f"other bytes, {lengths}: {_difference(raw.body, ours.body)}")
    max_bytes = max(raw.wire_bytes, again.wire_bytes)
    if ours.wire_bytes > max_bytes * 1.02 + 64:
        worse.append(f"{ours.wire_bytes:,} bytes sent in place of {max_bytes:,}")
    elif ours.wire_bytes < min(raw.wire_bytes, again.wire_bytes) * 0.9:
        better.append(f"{ours.wire_bytes:,} bytes sent in place of {raw.wire_bytes:,}")
    return worse, better, varies


def _difference(before: bytes, now: bytes) -> str:
    """Describe the first difference of two bodies. Ignore text that differs at each request."""
    old, new = _normal(before), _normal(now)
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    start, end = max(0, at - _CONTEXT_BYTES), at + _CONTEXT_BYTES
    return f"{old[start:end]!r} became {new[start:end]!r}"


def _compared_with_get(
    raw: Exchange,
    raw_full: Exchange,
    again: Exchange,
    ours: Exchange,
    full: Exchange,
    *,
    may_omit: bool,
) -> tuple[list[str], list[str]]:
    """Compare the headers of a response to HEAD with those of the contender's response to GET.

    If the statuses of both responses differ, compare with the usual server's response to HEAD.

    :param raw_full: the usual server's response to GET.
    :param full: the contender's response to GET.
    :param may_omit: whether the contender's response to GET may be compressed.
    :returns: the disadvantages and the improvements of the contender.
    """
    worse, better = [], []
    names = {name.lower() for exchange in (raw, ours) for name, _ in exchange.headers}
    for name in sorted(names - _CONNECTION_HEADERS | {"content-length"}):
        before, now = _value(raw, name), _value(ours, name)
        expected = _value(full, name) if full.status == ours.status else before
        if now and now != before and now == expected:
            better.append(f"{name}: {ours.header(name)}")
        if _value(again, name) != before or now == (before if not now else expected):
            continue
        if not now and may_omit and name in _OMITTED_BY_CODING:
            continue
        if now == before and before != _value(raw_full, name):
            continue  # HEAD also differs from GET without wsgifast
        if name == "content-length" and now and expected and _normal(full.body) != full.body:
            # A token in a page may have a different length in each response.
            now = now if abs(int(now) - int(expected)) > _TOKEN_BYTES else expected
        if now != expected or not now:
            was = f"in place of {before or 'none'}"
            worse.append(f"{name}: {now or 'none'} {was}, GET has {expected or 'none'}")
    return worse, better


def _compared_headers(
    raw: Exchange, again: Exchange, ours: Exchange, full: Exchange
) -> tuple[list[str], list[str]]:
    """Return the disadvantages and the improvements of the contender's headers.

    :param full: the contender's response to a GET with the same Accept-Encoding.
    """
    worse, better = [], []
    # A 304 has the ETag of the compressed body, but no Content-Encoding.
    coding = full.header("content-encoding") if ours.status == 304 else ""
    coding = ours.header("content-encoding") or coding
    is_compressed = bool(coding and not raw.header("content-encoding"))
    if is_compressed and ours.header("content-encoding"):
        better.append(f"content-encoding: {ours.header('content-encoding')}")
        if "accept-encoding" not in _tokens(ours.header("vary")):
            worse.append("a compressed body without Vary: Accept-Encoding")
    names = {name.lower() for exchange in (raw, ours) for name, _ in exchange.headers}
    for name in sorted(names - _CONNECTION_HEADERS):
        before, now = _value(raw, name), _value(ours, name)
        if before == now or _value(again, name) != before:
            continue
        if now and not before and name in _IMPROVEMENTS:
            better.append(f"{name}: {ours.header(name)}")
        elif name == "vary" and _tokens(before) <= _tokens(now):
            better.append(f"vary: {now}")
        elif is_compressed and (name == "accept-ranges" or (now and name in _CODING_HEADERS)):
            continue  # a compressed body has another ETag, and may not support ranges
        else:
            worse.append(f"{name}: {now or 'none'} in place of {before or 'none'}")
    length, our_length = raw.header("content-length"), ours.header("content-length")
    same_coding = ours.header("content-encoding") == raw.header("content-encoding")
    if length and not our_length and same_coding and ours.status != 304:
        worse.append("Content-Length is missing")
    return worse, better


def _tokens(value: str) -> set[str]:
    return {token.strip().lower() for token in value.split(",")}


def _value(exchange: Exchange, name: str) -> str:
    if name == "set-cookie":
        cookies = [v for k, v in exchange.headers if k.lower() == name]
        return ", ".join(sorted(re.sub(r"=[^;]*", "", cookie, count=1) for cookie in cookies))
    if name == "vary":  # a set
        return ", ".join(sorted(_tokens(exchange.header(name))))
    value = _normal(exchange.header(name).encode()).decode()
    return re.sub(r"\d+(\.\d+)?", "<number>", value) if name in _TIMES else value


def _normal(body: bytes) -> bytes:
    for pattern, mark in _CHANGING:
        body = pattern.sub(mark, body)
    return body
