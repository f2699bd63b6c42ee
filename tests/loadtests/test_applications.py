"""The compared values of an application, unwrapped and wrapped."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace

import pytest

from loadtests.applications.catalogue import APPLICATIONS, Ask
from loadtests.applications.exchanges import Exchange, ask_all, compare, links
from tests.support.servers import free_port, live_server
from wsgifast.commands.client import HTTPClient

BODY = b"".join(b"line %d\n" % number for number in range(100))
HEADERS = (
    ("Content-Type", "text/html"), ("Content-Length", str(len(BODY))), ("ETag", '"1"'),
    ("Vary", "Accept-Encoding"), ("Set-Cookie", "session=one; Path=/; HttpOnly"),
)  # fmt: skip
PAGE = Exchange(200, HEADERS, BODY, len(BODY))
PACKED = Exchange(200, (*HEADERS, ("Content-Encoding", "gzip")), BODY, len(gzip.compress(BODY)))
RAW = {
    ("/", "GET"): PAGE,
    ("/", "GET browser"): PACKED,
    ("/", "HEAD"): replace(PAGE, body=b"", wire_bytes=0),
    ("/", "Range"): PAGE,
    ("/", "If-None-Match"): PAGE,
}


def without(exchange: Exchange, name: str, value: str | None = None) -> Exchange:
    headers = [(k, v) for k, v in exchange.headers if k != name]
    return replace(exchange, headers=[*headers, *([(name, value)] if value is not None else [])])


@pytest.mark.parametrize(
    ("variant", "ours", "worse", "better"),
    [
        ("GET", PAGE, "", ""),
        ("GET", replace(PAGE, status=500), "status 500 in place of 200", ""),
        ("GET", Exchange(error="no answer"), "no answer", ""),
        ("GET", replace(PAGE, body=BODY[:-1]), "other bytes", ""),
        ("GET", replace(PAGE, wire_bytes=2 * len(BODY)), "bytes sent in place of", ""),
        ("GET", without(PAGE, "ETag"), "etag: none", ""),
        ("GET", without(PAGE, "ETag", '"2"'), 'etag: "2" in place of "1"', ""),
        ("GET", without(PAGE, "Content-Length"), "Content-Length is missing", ""),
        ("GET", without(PAGE, "Set-Cookie"), "set-cookie", ""),
        ("GET", without(PAGE, "Set-Cookie", "session=two; Path=/; HttpOnly"), "", ""),
        ("GET", without(PAGE, "Set-Cookie", "session=two; Path=/"), "set-cookie", ""),
        ("GET", without(PAGE, "Vary", "Accept-Encoding, Cookie"), "", "vary"),
        ("GET", without(PAGE, "Vary", "accept-encoding"), "", ""),
        ("GET", without(PAGE, "Vary", "Cookie"), "vary: cookie", ""),
        ("GET", without(PAGE, "Accept-Ranges", "bytes"), "", "accept-ranges: bytes"),
        ("GET", without(PAGE, "Cache-Control", "public"), "cache-control: public", ""),
        ("GET", replace(without(PACKED, "ETag", '"1+gzip"'), wire_bytes=99), "", "gzip"),
        ("GET", without(PACKED, "ETag"), "etag: none", "gzip"),
        ("GET", without(PACKED, "Vary", "Cookie"), "without Vary", "gzip"),
        ("GET browser", without(PACKED, "Content-Encoding"), "content-encoding: none", ""),
        ("GET browser", replace(PACKED, wire_bytes=len(BODY)), "bytes sent in place of", ""),
        ("GET browser", replace(PACKED, wire_bytes=99), "", "99 bytes sent"),
        ("HEAD", replace(without(PAGE, "Content-Length", "0"), body=b"", wire_bytes=0),
         "content-length: 0 in place of", ""),
        ("Range", replace(PAGE, status=206, body=BODY[100:300]), "", "206 in place of 200"),
        ("Range", replace(PAGE, status=206, body=BODY[101:301]), "status 206", ""),
        ("If-None-Match", Exchange(304, HEADERS), "", "304 in place of 200"),
        ("GET", Exchange(304, HEADERS), "status 304", ""),
    ],
)  # fmt: skip
def test_difference_of_responses_is_worse_or_better(
    variant: str, ours: Exchange, worse: str, better: str
) -> None:
    raw = dict(RAW)
    if variant != "HEAD":
        del raw["/", "HEAD"]  # it would differ from GET
    found = compare(raw, raw, {**raw, ("/", variant): ours})
    assert bool(found.worse) == bool(worse), found
    assert bool(found.better) == bool(better), found
    assert any(worse in line for line in found.worse) or not worse, found
    assert any(better in line for line in found.better) or not better, found
    assert found.same == len(raw) - bool(worse or better)


@pytest.mark.parametrize("codings", ["", " identity", " browser"])
@pytest.mark.parametrize("missing", ["ETag", "Content-Length", "Accept-Ranges", "Content-Type"])
def test_head_may_omit_headers_that_a_coding_changes(codings: str, missing: str) -> None:
    page = without(PAGE, "Accept-Ranges", "bytes")
    packed = without(without(PACKED, "ETag", 'W/"1+gzip"'), "Content-Length", "99")
    received = replace(page, body=b"", wire_bytes=0)
    raw = {("/", f"GET{codings}"): page, ("/", f"HEAD{codings}"): received}
    ours = {**raw, ("/", f"HEAD{codings}"): without(received, missing)}
    may_omit = codings == " browser" and missing != "Content-Type"
    assert bool(compare(raw, raw, ours).worse) is not may_omit
    if codings == " browser":
        compressed_headers = replace(packed, body=b"", wire_bytes=0)
        ours = {
            ("/", "GET browser"): packed,
            ("/", "HEAD browser"): without(compressed_headers, missing),
        }
        assert bool(compare(raw, raw, ours).worse) is not may_omit
        # The compressed response must contain no header that belongs to the uncompressed body.
        ours["/", "HEAD browser"] = without(received, "Content-Encoding", "gzip")
        assert len(compare(raw, raw, ours).worse) == 3


def test_head_differing_from_get_unwrapped_may_differ() -> None:
    raw = {("/", "GET"): PAGE, ("/", "HEAD"): without(PAGE, "Content-Length", "0")}
    assert compare(raw, raw, raw).worse == []
    refused = Exchange(405, [("Content-Type", "text/plain"), ("Content-Length", "5")])
    raw = {("/", "GET"): PAGE, ("/", "HEAD"): refused}
    ours = {("/", "GET"): without(PAGE, "Vary", "Accept-Encoding, Cookie"), ("/", "HEAD"): refused}
    assert compare(raw, raw, ours).worse == []
    ours["/", "HEAD"] = without(refused, "Content-Length", "6")
    assert len(compare(raw, raw, ours).worse) == 1


def test_304_with_the_compressed_tag_is_not_worse() -> None:
    raw = {
        **RAW,
        ("/", "GET browser"): PAGE,
        ("/", "If-None-Match browser"): Exchange(304, HEADERS),
    }
    packed = without(PACKED, "ETag", 'W/"1"')
    unchanged = without(Exchange(304, HEADERS), "ETag", 'W/"1"')
    ours = {**raw, ("/", "GET browser"): packed, ("/", "If-None-Match browser"): unchanged}
    assert compare(raw, raw, ours).worse == []


def test_range_of_a_compressed_body_is_of_sent_bytes() -> None:
    compressed = gzip.compress(os.urandom(1000))
    raw = {**RAW, ("/", "GET browser"): PAGE, ("/", "Range browser"): PAGE}
    packed = replace(PACKED, sent=compressed)
    for part, worse in ((compressed[100:300], 0), (compressed[99:299], 1)):
        ranged = replace(packed, status=206, body=part, sent=part)
        ours = {**raw, ("/", "GET browser"): packed, ("/", "Range browser"): ranged}
        assert len(compare(raw, raw, ours).worse) == worse


def test_change_by_the_application_itself_is_ignored() -> None:
    key = "/", "GET"
    again = {**RAW, key: replace(without(PAGE, "ETag", '"7"'), body=BODY.replace(b"9", b"8"))}
    ours = {**RAW, key: replace(without(PAGE, "ETag", '"8"'), body=BODY.replace(b"9", b"7"))}
    del ours["/", "HEAD"], again["/", "HEAD"]
    raw = {at: one for at, one in RAW.items() if at in ours}
    found = compare(raw, again, ours)
    assert (found.worse, found.better, found.varies) == ([], [], 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a" * 32, "b" * 32),
        ("/a.css?m=1764093900.1234567", "/a.css?m=1764093900.123"),
        ("0123456789012345678901", "ab23456789012345678901"),
        ("1234567890123456789", "12345678901234567890"),  # of 64 bits
        ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:06+00:00"),
        ("Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:06 GMT"),
        ("c0ffee00-0000-4000-8000-000000000000", "c0ffee01-0000-4000-8000-000000000000"),
        ("3 seconds", "1 second"),
        ("0.12345", "12.345"),
    ],
)
def test_token_or_time_in_a_page_is_ignored(one: str, other: str) -> None:
    raw, ours = (
        {**RAW, ("/", "GET"): replace(PAGE, body=BODY + f'<input value="{value}">'.encode())}
        for value in (one, other)
    )
    found = compare(raw, raw, ours)
    assert (found.worse, found.varies) == ([], 0)


def test_page_links_are_scripts_styles_and_images() -> None:
    html = b"""
        <link rel=x href="/a.css?v=1"><script defer src='b.js'></script><img src="/c.png">
        <a href="/logout"></a><script src="https://elsewhere.test/d.js"></script><img src="data:,">
        <script src="/a.css"></script>
    """
    page = replace(PAGE, body=html)
    found = {("/pages/", "GET"): page, ("/pages/", "GET gzip"): page}
    assert [ask.path for ask in links(found)] == ["/a.css?v=1", "/pages/b.js", "/c.png"]


def test_request_is_sent_in_all_variants() -> None:
    app = "tests.benchmark.apps:app"
    found = []
    for served in (app, f"wsgifast.commands.run:wrapped({app!r})"):
        port = free_port()
        command = ["python", "-m", "gunicorn", served, "--threads=2", f"--bind=127.0.0.1:{port}"]
        with live_server(command, ("127.0.0.1", port)):
            client = HTTPClient("127.0.0.1", port, limit_s=60)
            asks = [Ask("/"), Ask("/{name}"), Ask("/away", "POST", b"a body"), Ask("/", once=True)]
            found.append(ask_all(client, asks, {"name": "crumbs"}))
    raw, ours = found
    assert {variant for _, variant in raw} == {
        "GET", "GET gzip", "GET identity", "GET browser", "HEAD", "HEAD identity", "HEAD browser",
        "Range", "Range identity", "Range browser",
    }  # fmt: skip
    assert {path for path, _ in raw} == {"/", "/crumbs", "POST /away"}
    assert ("POST /away", "HEAD") not in raw
    assert not any(one.error for one in ours.values()), ours
    assert compare(raw, raw, ours).worse == []


def test_application_has_a_unique_name_and_paths() -> None:
    assert len({application.name for application in APPLICATIONS}) == len(APPLICATIONS) == 18
    assert all(application.paths and application.packages for application in APPLICATIONS)
