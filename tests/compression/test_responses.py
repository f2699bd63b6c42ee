"""WSGIFast(app, compress=True) and ASGIFast(app, compress=True) keep the same promises."""

from __future__ import annotations

import random

import pytest

from tests.support.decoders import decoded
from wsgifast.compression.policy import compressed_tag

from .interfaces import TEXT, Ask, Site, ask_wsgi

BINARY = ("Content-Type", "application/octet-stream")


@pytest.mark.parametrize("accepted", ["identity", "deflate", "gzip;q=0"])
def test_body_is_uncompressed_without_accepted_coding(ask: Ask, accepted: str) -> None:
    response = ask(Site(), accept_encoding=accepted)
    assert response.body == TEXT
    assert response.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in response.headers


def test_small_body_is_uncompressed(ask: Ask) -> None:
    response = ask(Site(b"short"), accept_encoding="gzip")
    assert response.body == b"short"
    assert "vary" not in response.headers


@pytest.mark.parametrize("declared", [True, False])
def test_body_that_does_not_shrink_is_uncompressed(ask: Ask, declared: bool) -> None:
    noise = random.Random(1).randbytes(5000)
    length = [("Content-Length", "5000")] * declared
    response = ask(Site(noise, *length, tag='"n"'), accept_encoding="gzip")
    assert response.body == noise
    assert response.headers["etag"] == '"n"'
    assert response.headers["vary"] == "Accept-Encoding"
    if declared or ask is ask_wsgi:
        assert response.headers["content-length"] == "5000"


@pytest.mark.parametrize("tag", ['"abc"', 'W/"abc"', '"abc+br"', "abc", 'W/"a, b c/GMT"'])
def test_app_evaluates_its_own_preconditions(ask: Ask, tag: str) -> None:
    site, compressed = Site(tag=tag), compressed_tag(tag, "br")
    response = ask(site, accept_encoding="br")
    assert (decoded("br", response.body), response.headers["etag"]) == (TEXT, compressed)
    response = ask(site, accept_encoding="br", if_none_match=compressed)
    assert (response.status, response.body) == (304, b"")
    assert (response.headers["etag"], response.headers["vary"]) == (compressed, "Accept-Encoding")
    # The validator does not tell a cache with a br response that this client accepts br.
    assert ask(site, accept_encoding="gzip", if_none_match=compressed).status == 200
    assert ask(site, accept_encoding="gzip", if_match=compressed).status == 200
    assert site.seen == (None, tag)
    assert ask(site, accept_encoding="gzip", if_match=compressed_tag('"abd"', "br")).status == 412


@pytest.mark.parametrize("tag", ['"abc"', 'W/"abc"', '"abc+br"', "abc"])
def test_webdav_if_has_the_apps_tag(ask: Ask, tag: str) -> None:
    site = Site(tag=tag)
    condition = f"(<urn:uuid:1> [{ask(site, accept_encoding='br').headers['etag']}])"
    ask(site, method="PUT", **{"if": condition})
    assert site.webdav_if == f"(<urn:uuid:1> [{tag}])"


@pytest.mark.parametrize("requested", [True, False])
def test_app_decides_on_compression_of_one_response(ask: Ask, requested: bool) -> None:
    response = ask(Site(TEXT, BINARY, requested=requested), accept_encoding="gzip")
    assert ("content-encoding" in response.headers) is requested
