"""WSGIFast(app, compress=True) and ASGIFast(app, compress=True): the promises of both."""

from __future__ import annotations

import random

import pytest

from tests.support.coded import decoded
from wsgifast.compression.policy import coded_tag

from .interfaces import TEXT, Ask, Site, ask_wsgi

BINARY = ("Content-Type", "application/octet-stream")


@pytest.mark.parametrize("accepted", ["identity", "deflate", "gzip;q=0"])
def test_body_is_uncoded_without_accepted_coding(ask: Ask, accepted: str) -> None:
    answer = ask(Site(), accept_encoding=accepted)
    assert answer.body == TEXT
    assert answer.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in answer.headers


def test_small_body_is_uncoded(ask: Ask) -> None:
    answer = ask(Site(b"short"), accept_encoding="gzip")
    assert answer.body == b"short"
    assert "vary" not in answer.headers


@pytest.mark.parametrize("declared", [True, False])
def test_body_that_does_not_shrink_is_uncoded(ask: Ask, declared: bool) -> None:
    noise = random.Random(1).randbytes(5000)
    length = [("Content-Length", "5000")] * declared
    answer = ask(Site(noise, *length, tag='"n"'), accept_encoding="gzip")
    assert answer.body == noise
    assert answer.headers["etag"] == '"n"'
    assert answer.headers["vary"] == "Accept-Encoding"
    if declared or ask is ask_wsgi:
        assert answer.headers["content-length"] == "5000"


@pytest.mark.parametrize("tag", ['"abc"', 'W/"abc"', '"abc+br"', "abc", 'W/"a, b c/GMT"'])
def test_app_evaluates_its_own_preconditions(ask: Ask, tag: str) -> None:
    site, coded = Site(tag=tag), coded_tag(tag, "br")
    answer = ask(site, accept_encoding="br")
    assert (decoded("br", answer.body), answer.headers["etag"]) == (TEXT, coded)
    answer = ask(site, accept_encoding="br", if_none_match=coded)
    assert (answer.status, answer.body) == (304, b"")
    assert (answer.headers["etag"], answer.headers["vary"]) == (coded, "Accept-Encoding")
    # To a cache that has br it does not say that this is good for the client.
    assert ask(site, accept_encoding="gzip", if_none_match=coded).status == 200
    assert ask(site, accept_encoding="gzip", if_match=coded).status == 200
    assert site.seen == (None, tag)
    assert ask(site, accept_encoding="gzip", if_match=coded_tag('"abd"', "br")).status == 412


@pytest.mark.parametrize("tag", ['"abc"', 'W/"abc"', '"abc+br"', "abc"])
def test_webdav_if_has_the_apps_tag(ask: Ask, tag: str) -> None:
    site = Site(tag=tag)
    condition = f"(<urn:uuid:1> [{ask(site, accept_encoding='br').headers['etag']}])"
    ask(site, method="PUT", **{"if": condition})
    assert site.webdav_if == f"(<urn:uuid:1> [{tag}])"


@pytest.mark.parametrize("asked", [True, False])
def test_app_decides_on_compression_of_one_response(ask: Ask, asked: bool) -> None:
    answer = ask(Site(TEXT, BINARY, asked=asked), accept_encoding="gzip")
    assert ("content-encoding" in answer.headers) is asked
