"""RFC 9842: the headers of dictionaries for a pattern of URLs, and the content coding dcz."""

from __future__ import annotations

import base64
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.decoders import decoded_delta, zstd
from wsgifast.compression.dictionaries import (
    ClientDictionary,
    client_dictionary,
    hashless_name,
    is_surely_hashed,
    make_delta,
    prefers_delta,
    use_as_dictionary,
)

DIGEST = bytes(range(32))
ENCODED = base64.b64encode(DIGEST).decode()


def no_header(name: str) -> None:
    """Return a request without other headers."""


@pytest.mark.parametrize("value", [f":{ENCODED}:", f" :{ENCODED}: ", f":{ENCODED[:-1]}:"])
def test_digest_of_a_client_is_read(value: str) -> None:
    header = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "https://a"}.get
    client = client_dictionary(value, header)
    assert client == ClientDictionary(DIGEST, "cross-site", "cors", "https://a")


@pytest.mark.parametrize(
    "value",
    [
        "", "::", ":", ENCODED, f'"{ENCODED}"', f":{ENCODED}", f":{ENCODED}:;a=1",
        f":{ENCODED}:, :{ENCODED}:", f":{base64.b64encode(DIGEST[:31]).decode()}:",
        f":{base64.b64encode(DIGEST + b'x').decode()}:", f":{'=' * 44}:", f":{'-' * 43}=:",
        f":{ENCODED}\n:", f":{ENCODED}:\n", "\xff" * 46,
    ],
)  # fmt: skip
def test_malformed_digest_is_none(value: str) -> None:
    assert client_dictionary(value, no_header) is None


@given(st.text(alphabet=st.characters(max_codepoint=255)))
def test_any_header_is_a_digest_or_none(value: str) -> None:
    client = client_dictionary(value, no_header)
    assert client is None or len(client.digest) == 32


@pytest.mark.parametrize(
    ("site", "mode", "origin", "allowed", "may"),
    [
        (None, "no-cors", None, None, True),
        ("same-origin", "no-cors", None, None, True),
        ("cross-site", None, None, None, True),
        ("cross-site", "navigate", None, None, True),
        ("same-site", "same-origin", None, None, True),
        ("cross-site", "no-cors", None, "*", False),
        ("same-site", "no-cors", None, None, False),
        ("cross-site", "cors", "https://a", None, False),
        ("cross-site", "cors", None, "*", False),
        ("cross-site", "cors", "https://a", "*", True),
        ("cross-site", "cors", "https://a", "https://a", True),
        ("cross-site", "cors", "https://a", "https://b", False),
        ("cross-site", "websocket", "https://a", "*", False),
    ],
)
def test_dictionary_is_for_who_may_read_the_response(
    site: str | None, mode: str | None, origin: str | None, allowed: str | None, may: bool
) -> None:
    assert ClientDictionary(DIGEST, site, mode, origin).may_be_used(allowed) is may


@pytest.mark.parametrize(
    ("accepted", "prefers"),
    [
        ("gzip, deflate, br, zstd, dcb, dcz", True),
        ("DCZ", True),
        ("dcz;q=0.5, identity;q=0.1", True),
        ("br, zstd, dcb", False),
        ("dcz;q=0, gzip", False),
        ("br, dcz;q=0.9", False),
        ("*", False),
        ("", False),
        (None, False),
    ],
)
def test_delta_is_for_who_prefers_it(accepted: str | None, prefers: bool) -> None:
    assert prefers_delta(accepted) is prefers


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("/static/app.3f2a1b9c.js", "/static/app.*.js"),
        ("/static/css/base.523eb49842a7.min.css", "/static/css/base.*.min.css"),
        ("/app.min.3f2a1b9c.js.map", "/app.min.*.js.map"),
        ("/assets/index-DiwrgTda.js", "/assets/index-*.js"),
        ("/assets/index-Di_r-Tda.css", "/assets/index-*.css"),
        ("/main.12ab34cd.3f2a1b9c.js", "/main.12ab34cd.*.js"),
        ("/\xfc b/a\"(1)+b:c*{d}?\\.3f2a1b9c.js",
         r"/%C3%BC%20b/a%22\\(1\\)\\+b\\:c\\*%7Bd%7D%3F%5C.*.js"),
        ("/static/app.js", None),
        ("/static/jquery-3.7.1.min.js", None),
        ("/static/3f2a1b9c.js", None),
        ("/static/app.3f2a1b9c", None),
        ("/static/app.3f2a1b9c.js/", None),
    ],
)  # fmt: skip
def test_pattern_is_made_of_the_name(url: str, header: str | None) -> None:
    assert use_as_dictionary(url) == (None if header is None else f'match="{header}"')


@given(st.text())
def test_any_pattern_is_a_string_of_a_structured_field(name: str) -> None:
    header = use_as_dictionary(f"/{name}.3f2a1b9c.js")
    if header is not None:
        assert re.fullmatch(r'match="(?:[ !#-\[\]-~]|\\["\\])*"', header)


def test_only_a_hexadecimal_hash_is_beyond_doubt() -> None:
    assert is_surely_hashed("app.3f2a1b9c.js")
    assert is_surely_hashed("base.523eb49842a7.css")
    for name in (
        "app.js",
        "page-chapter1.html",
        "list.20240101.csv",
        "a-deadbeef.js",
        "b-Diwr3Tda.js",
    ):
        assert not is_surely_hashed(name)


def test_release_of_a_file_differs_in_the_hash_alone() -> None:
    name = hashless_name("app.3f2a1b9c.min.js")
    assert name is not None
    assert hashless_name("app.12ab34cd56.min.js") == name
    for other in ("app.12ab34cd.js", "apps.12ab34cd.min.js", "app.min.js", "app.x.min.js"):
        assert hashless_name(other) != name


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("size", [0, 8, 5000, 300_000])
def test_delta_is_decoded_with_the_dictionary(size: int, best: bool) -> None:
    noise = random.Random(size).randbytes(size)
    dictionary = noise or b"nothing like it"
    content = noise[: size // 2] + b"changed" + noise[size // 2 :]
    delta = make_delta(content, dictionary, best=best)
    assert decoded_delta(delta, dictionary) == content
    assert len(delta) < 200 + size // 100


@pytest.mark.parametrize(
    ("content", "dictionary"), [(9_000_000, 5_000_000), (9_000_000, 9_500_000), (100, 9_000_000)]
)
def test_window_is_within_what_clients_decode(content: int, dictionary: int) -> None:
    noise = random.Random(1).randbytes(max(content, dictionary))
    delta = make_delta(noise[:content], noise[:dictionary])
    assert decoded_delta(delta, noise[:dictionary]) == noise[:content]
    assert zstd.get_frame_info(delta[40:]).decompressed_size == content
