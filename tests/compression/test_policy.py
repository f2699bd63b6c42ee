"""Which responses are compressed, and with which headers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast import Compression, ConfigurationError
from wsgifast.compression.codings import compressor
from wsgifast.compression.policy import compressed_tag, suffix_check
from wsgifast.compression.response import ResponseCoding
from wsgifast.http import headers as http

Headers = list[tuple[str, str]]
JSON: Headers = [("Content-Type", "application/json"), ("Content-Length", "5000")]


class Decided(NamedTuple):
    coding: str | None
    headers: Headers


def coding_of(
    accept_encoding: str | None = "br",
    options: Compression | None = None,
    *,
    method: str = "GET",
    requested: bool | None = None,
) -> ResponseCoding:
    wish = [] if requested is None else [requested]
    return ResponseCoding(options or Compression(), method, accept_encoding, wish)


def decided(
    headers: Headers,
    options: Compression | None = None,
    *,
    accept_encoding: str | None = "br",
    code: int = 200,
    size: int | None = None,
    **conditions: Any,
) -> Decided | None:
    decision = coding_of(accept_encoding, options, **conditions).decide(code, headers, size)
    return decision and Decided(decision.coding, decision.apply(http.Headers(headers)))


def names(decision: Decided | None) -> dict[str, str]:
    assert decision is not None
    return {name.lower(): value for name, value in decision.headers}


@pytest.mark.parametrize(
    "kind",
    [
        "text/html", "text/plain; charset=utf-8", "TEXT/CSV", "application/json",
        "application/problem+json", "application/graphql-response+json;charset=utf-8",
        "application/x-ndjson", "image/svg+xml", "application/wasm", "font/ttf",
        "application/javascript", "application/geo+json", " application/json",
        "application/ecmascript", "application/x-font-ttf", "application/vnd.ms-fontobject",
    ],
)  # fmt: skip
def test_type_that_shrinks_is_compressed(kind: str) -> None:
    decision = decided([("Content-Type", kind), ("Content-Length", "5000")])
    assert decision is not None
    assert decision.coding == "br"
    assert names(decision) == {
        "content-type": kind, "vary": "Accept-Encoding", "content-encoding": "br",
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "image/png", "video/mp4", "application/zip", "application/grpc", "application/grpc+json",
        "application/grpc-web+json", "application/octet-stream", "font/woff2", "", "text",
        "text/event-stream", "application/pdf",
    ],
)  # fmt: skip
def test_other_type_is_left_alone(kind: str) -> None:
    assert decided([("Content-Type", kind), ("Content-Length", "5000")]) is None


@pytest.mark.parametrize(
    ("headers", "conditions"),
    [
        ([*JSON, ("Content-Encoding", "gzip")], {}),
        ([*JSON, ("content-encoding", "identity")], {}),
        ([*JSON, ("Cache-Control", "public, no-transform")], {}),
        ([*JSON, ("Cache-Control", "No-Transform")], {}),
        (JSON, {"code": 204}),
        (JSON, {"code": 205}),
        (JSON, {"code": 101}),
        (JSON, {"method": "CONNECT"}),
        ([("Content-Length", "5000")], {}),
        ([("Content-Type", "text/html"), ("Content-Length", "999")], {}),
        ([("Content-Type", "text/html")], {"size": 999}),
        (JSON, {"requested": False}),
    ],
)
def test_exception_is_left_alone(headers: Headers, conditions: dict[str, Any]) -> None:
    assert decided(headers, **conditions) is None


def test_part_made_by_the_app_is_plain_with_vary() -> None:
    decision = decided(JSON, code=206)
    assert decision is not None
    assert decision.coding is None
    assert decision.headers == [*JSON, ("Vary", "Accept-Encoding")]


def test_cache_control_extension_with_word_is_no_match() -> None:
    assert decided([*JSON, ("Cache-Control", "x-no-transformer")]) is not None
    assert decided([*JSON, ("Cache-Control", 'max-age=5,no-transform="x"')]) is None


@pytest.mark.parametrize("code", [200, 201, 404, 500, 203])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_any_status_with_a_body_is_compressed(code: int, method: str) -> None:
    decision = decided(JSON, code=code, method=method)
    assert decision is not None
    assert decision.coding == "br"


def test_client_without_coding_gets_vary_alone() -> None:
    decision = decided([*JSON, ("ETag", '"a"'), ("Accept-Ranges", "bytes")], accept_encoding=None)
    assert decision is not None
    assert decision.coding is None
    assert decision.headers == [
        *JSON, ("ETag", '"a"'), ("Accept-Ranges", "bytes"), ("Vary", "Accept-Encoding"),
    ]  # fmt: skip


def test_headers_of_the_uncompressed_body_are_dropped() -> None:
    decision = decided(
        [
            *JSON, ("Content-MD5", "x"), ("Digest", "x"), ("Content-Digest", "x"),
            ("Repr-Digest", "x"), ("Accept-Ranges", "bytes"), ("Set-Cookie", "a=b"),
            ("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT"),
        ]
    )  # fmt: skip
    assert set(names(decision)) == {
        "content-type", "set-cookie", "last-modified", "vary", "content-encoding",
    }  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [JSON, [*JSON, ("ETag", '"a"')], [("Content-Type", "text/html"), ("Accept-Ranges", "bytes")]],
)
def test_head_without_body_omits_compressed_fields(headers: list[tuple[str, str]]) -> None:
    """The app's middleware may compress the body for GET, and gets no body for HEAD."""
    content_type = dict(headers)["Content-Type"]
    found = names(decided(headers, method="HEAD"))
    assert found == {"content-type": content_type, "vary": "Accept-Encoding"}


def test_head_with_the_body_has_what_get_would() -> None:
    headers = [*JSON, ("ETag", '"a"')]
    assert names(decided(headers, method="HEAD", size=5000)) == names(decided(headers, size=5000))


@pytest.mark.parametrize(
    ("tag", "sent"),
    [
        ('"abc"', 'W/"abc+br.577ccea2"'),
        ('W/"abc"', 'W/"abc~br.3d0b22f9"'),
        ('W/"a b/G\xe4"', 'W/"W/%22a%20b/G%E4%22!br.5aed8ead"'),
        ("abc", 'W/"abc!br.5aeb4b74"'),
    ],
)
def test_tag_is_made_compressed_and_restored(tag: str, sent: str) -> None:
    assert compressed_tag(tag, "br") == sent
    assert names(decided([*JSON, ("ETag", tag)]))["etag"] == sent
    coding = coding_of("br")
    assert coding.app_preconditions(f'"other", {sent}', sent) == (f'"other", {tag}', tag)
    not_modified = coding.decide(304, [("ETag", tag)])
    assert not_modified is not None
    headers = not_modified.apply(http.Headers([("ETag", tag)]))
    assert headers.by_name() == {"etag": sent, "vary": "Accept-Encoding"}


@pytest.mark.parametrize("tag", ["", " ", "a\x00b"])
def test_tag_that_no_header_can_have_is_dropped(tag: str) -> None:
    assert "etag" not in names(decided([*JSON, ("ETag", tag)]))


@pytest.mark.parametrize("suffix", ["+gzip", "~br", "+zstd-0123abcd", "!dcz", "+gzip.0123abcd"])
@pytest.mark.parametrize("weak", ["", "W/"])
def test_tag_of_the_app_with_a_suffix_is_its_own(weak: str, suffix: str) -> None:
    tag = f'{weak}"v7{suffix}"'
    for coding in ("zstd", "br", "gzip"):
        requested = coding_of(coding)
        assert requested.app_preconditions(tag, tag) == (tag, tag)
        assert requested.app_if(f"([{tag}])") == f"([{tag}])"
        sent = compressed_tag(tag, coding)
        assert requested.app_preconditions(sent, sent) == (tag, tag)


def test_decoded_tag_brings_no_control_characters() -> None:
    forged = f"a%0D%0Ab!gzip.{suffix_check('a%0D%0Ab!gzip')}"
    header = f'W/"{forged}"'
    assert coding_of("gzip").app_preconditions(header, header) == (header, header)


def test_tags_in_webdav_conditions_are_the_apps() -> None:
    weak, strong = compressed_tag('"a"', "gzip"), compressed_tag('"b"', "br", checksum=0xFF)
    given = f'<http://x/a> (<urn:uuid:1> [{weak}]) (Not [{strong}] ["c+gzip"])'
    assert coding_of(None).app_if(given) == (
        '<http://x/a> (<urn:uuid:1> ["a"]) (Not ["b"] ["c+gzip"])'
    )


def test_tags_of_other_codings_stay_in_if_none_match() -> None:
    other, own = compressed_tag('"a"', "gzip"), compressed_tag('"c"', "zstd")
    copy = compressed_tag('"d"', "zstd", checksum=0x0123ABCD)
    given_tags = f'{other}, "b", {own}, {copy}, *'
    none_match, match = coding_of("zstd").app_preconditions(given_tags, given_tags)
    assert none_match == f'{other}, "b", "c", "d", {copy}, *'
    # If-Match checks the state of the resource, whatever the content coding is.
    assert match == f'"a", "b", "c", "d", {copy}, *'
    assert coding_of(None).app_preconditions(given_tags, None)[0] == given_tags


def test_tag_of_a_copy_is_strong_and_restored() -> None:
    tag = compressed_tag('"abc"', "zstd", checksum=0xFF)
    assert tag is not None
    assert tag.startswith('"abc+zstd-000000ff.')
    assert coding_of("zstd").app_preconditions(tag, None)[0] == f'"abc", {tag}'


@given(header=st.text(max_size=60), coding=st.sampled_from(["br", "gzip", None]))
def test_preconditions_without_our_tags_are_unchanged(header: str, coding: str | None) -> None:
    restored = coding_of(coding).app_preconditions(header, header)
    assert restored == (header, header)


def test_unlisted_type_is_compressed_if_the_app_asks() -> None:
    protobuf: Headers = [("Content-Type", "application/x-protobuf"), ("Content-Length", "10")]
    assert decided(protobuf) is None
    decision = decided(protobuf, requested=True)
    assert decision is not None
    assert decision.coding == "br"


def test_event_stream_is_compressed_only_by_option() -> None:
    stream: Headers = [("Content-Type", "text/event-stream; charset=utf-8")]
    assert decided(stream) is None
    assert decided(stream, Compression(event_streams=True)) is not None
    assert decided(stream, requested=True) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_bytes": -1}, "-1"),
        ({"min_bytes": True}, "True"),
        ({"min_bytes": "1k"}, "1k"),
        ({"codings": []}, "codings"),
        ({"codings": ["deflate"]}, "'deflate'"),
        ({"levels": {"br": 12}}, "0 to 11, not 12"),
        ({"levels": {"zstd": 0}}, "1 to 19"),
        ({"levels": {"deflate": 1}}, "'deflate'"),
        ({"content_types": "text/x"}, "a list"),
        ({"content_types": ["text"]}, "'text'"),
        ({"content_types": [1]}, "1"),
        ({"event_streams": 1}, "event_streams"),
        ({"padding": "no"}, "padding"),
    ],
)
def test_invalid_option_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Compression(**options)


@pytest.mark.parametrize(("level", "lower"), [(0, 0), (1, 1), (4, 2), (11, 5)])
def test_level_is_halved_if_the_server_is_behind(level: int, lower: int) -> None:
    content = bytes(range(256)) * 40 + b"some text, some more text" * 40
    options = Compression(levels={"br": level}, padding=False)
    made = options.compressor("br", "text/plain", len(content), is_behind=True).whole(content)
    assert made == compressor("br", level=lower, size=len(content)).whole(content)


def test_further_types_are_compressed() -> None:
    options = Compression(content_types=["Application/Vnd.Mapbox-Vector-Tile"])
    headers: Headers = [("content-type", "application/vnd.mapbox-vector-tile")]
    assert decided(headers, options) is not None
