"""StaticFiles: types, caching, CORS, conditions and ranges."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from wsgiref.headers import Headers

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.static.calls import EPOCH, call, write_precompressed
from tests.support.effort import effort
from tests.support.files import settle
from wsgifast import StaticFiles
from wsgifast.bodies.files import SegmentedBody


def test_file_has_its_type_and_charset(site: Path) -> None:
    names = {
        "a.js": "text/javascript; charset=utf-8",
        "a.mjs": "text/javascript; charset=utf-8",
        "a.CSS": "text/css; charset=utf-8",
        "a.wasm": "application/wasm",
        "a.woff2": "font/woff2",
        "a.svg": "image/svg+xml",
        "a.tar.gz": "application/gzip",
        "a.unknown": "application/octet-stream",
        "README": "application/octet-stream",
        "special": "application/x-special",
        "a.foo": "text/foo; charset=utf-8",
        "a.bar": 'text/bar; charset="x"',
    }
    for name in names:
        (site / name).write_text("x")
    types = {
        ".foo": "text/foo",
        "special": "application/x-special",
        ".BAR": 'text/bar; charset="x"',
    }
    app = StaticFiles(directory=site, mimetypes=types)
    assert {name: call(app, f"/{name}").headers["content-type"] for name in names} == names
    plain = StaticFiles(directory=site, charset=None)
    assert call(plain, "/a.js").headers["content-type"] == "text/javascript"


def test_type_that_is_always_compressed_has_its_coding(site: Path) -> None:
    packed = gzip.compress(b"<svg/>")
    for name in ("a.svgz", "B.SVGZ", "a.tgz", "a.js.gz", "a.svg.gz", "a.svg"):
        (site / name).write_bytes(packed)
    for suffix in (".gz", ".br"):  # precompressed files of a compressed file
        write_precompressed(site / "a.svgz", suffix, b"packed again")
    app = StaticFiles(directory=site)
    for name in ("a.svgz", "B.SVGZ"):
        for accepted in ({}, {"Accept_Encoding": "identity"}, {"Accept_Encoding": "gzip, br"}):
            response = call(app, f"/{name}", **accepted)
            assert (response.status, response.body) == (200, packed)
            assert response.headers["content-type"] == "image/svg+xml"
            assert response.headers["content-encoding"] == "gzip"
            assert response.names.count("content-encoding") == 1
            assert "vary" not in response.headers
        part = call(app, f"/{name}", Range="bytes=2-5")
        assert (part.status, part.body) == (206, packed[2:6])
        assert part.headers["content-encoding"] == "gzip"
        assert call(app, f"/{name}", Range="bytes=0-1,4-5").body == packed
    for name in ("a.tgz", "a.js.gz", "a.svg.gz"):
        response = call(app, f"/{name}")
        assert response.headers["content-type"] == "application/gzip"
        assert "content-encoding" not in response.headers
    assert "content-encoding" not in call(app, "/a.svg").headers
    other = StaticFiles(directory=site, mimetypes={".svgz": "application/gzip"})
    assert "content-encoding" not in call(other, "/a.svgz").headers


def test_file_with_users_coding_has_no_precompressed(site: Path) -> None:
    def add(headers: Headers, path: str, url: str) -> None:
        headers["Content-Encoding"] = "br"

    write_precompressed(site / "app.js", ".gz", b"packed")
    app = StaticFiles(directory=site, add_headers=add)
    response = call(app, "/app.js", Accept_Encoding="gzip")
    assert response.body == (site / "app.js").read_bytes()
    assert response.names.count("content-encoding") == 1


def test_allowed_origins_see_the_headers_of_ranges(site: Path) -> None:
    def one_origin(headers: Headers, path: str, url: str) -> None:
        headers["Access-Control-Allow-Origin"] = "https://reader.example"

    def others(headers: Headers, path: str, url: str) -> None:
        headers["Access-Control-Allow-Origin"] = "*"
        headers["Access-Control-Expose-Headers"] = "X-Mine"

    def none(headers: Headers, path: str, url: str) -> None:
        del headers["Access-Control-Expose-Headers"]

    name = "access-control-expose-headers"
    for options in ({"allow_all_origins": True}, {"add_headers": one_origin}):
        app = StaticFiles(directory=site, **options)
        for headers in ({}, {"Range": "bytes=0-3"}, {"Range": "bytes=9999999-"}):
            exposed = call(app, "/app.js", **headers).headers[name]
            assert {"Accept-Ranges", "Content-Range", "Content-Encoding"} <= set(
                exposed.split(", ")
            )
    app = StaticFiles(directory=site, add_headers=others)
    assert call(app, "/app.js").headers[name] == "X-Mine"
    app = StaticFiles(directory=site, add_headers=none, allow_all_origins=True)
    assert name not in call(app, "/app.js").headers
    assert name not in call(StaticFiles(directory=site), "/app.js").headers


def test_file_has_caching_and_cors_headers(site: Path) -> None:
    assert call(StaticFiles(directory=site), "/app.js").headers["cache-control"] == (
        "max-age=60, public"
    )
    assert "access-control-allow-origin" not in call(StaticFiles(directory=site), "/").headers
    app = StaticFiles(directory=site, max_age=None, allow_all_origins=True, immutable=r"^/app\.")
    assert call(app, "/app.js").headers["cache-control"] == "max-age=31536000, public, immutable"
    assert "cache-control" not in call(app, "/").headers
    assert call(app, "/").headers["access-control-allow-origin"] == "*"
    seen = []

    def rule(path: str, url: str) -> bool:
        seen.append((path, url))
        return False

    call(StaticFiles(directory=site, immutable=rule, prefix="/s"), "/s/app.js")
    assert seen == [(str(site / "app.js"), "/s/app.js")]


def test_add_headers_applies_to_every_status(site: Path) -> None:
    def add(headers: Headers, path: str, url: str) -> None:
        headers["X-Path"] = f"{path} {url}"
        headers["Cache-Control"] = "no-store"
        if url.endswith("large.bin"):
            headers["ETag"] = '"mine"'

    app = StaticFiles(directory=site, add_headers=add, allow_all_origins=True)
    whole = call(app, "/app.js")
    assert whole.headers["x-path"] == f"{site / 'app.js'} /app.js"
    assert whole.headers["cache-control"] == "no-store"
    for headers in ({"If_None_Match": "*"}, {"Range": "bytes=9999999-"}, {"If_Match": '"x"'}):
        response = call(app, "/app.js", **headers)
        assert response.status in (304, 416, 412)
        assert response.headers["access-control-allow-origin"] == "*"
        assert ("cache-control" in response.headers) == (response.status == 304)
    assert call(app, "/large.bin", If_None_Match='"mine"').status == 304


def test_entity_tag_follows_the_option(site: Path) -> None:
    by_stat, by_content = StaticFiles(directory=site), StaticFiles(directory=site, etag="content")
    for name in ("app.js", "large.bin"):
        stat_tag = call(by_stat, f"/{name}").headers["etag"]
        content_tag = call(by_content, f"/{name}").headers["etag"]
        os.utime(site / name, (1_700_000_000, 1_700_000_000))
        assert call(by_stat, f"/{name}").headers["etag"] != stat_tag
        assert call(by_content, f"/{name}").headers["etag"] == content_tag
    assert "etag" not in call(StaticFiles(directory=site, etag=None), "/app.js").headers


@pytest.mark.parametrize("name", ["app.js", "large.bin"])
@pytest.mark.parametrize("cached", [True, False])
def test_preconditions_and_ranges_are_answered(site: Path, name: str, cached: bool) -> None:
    app = StaticFiles(directory=site, cache_bytes=(1 << 20) * cached)
    settle(site / name)
    content = (site / name).read_bytes()
    whole = call(app, f"/{name}")
    tag, date = whole.headers["etag"], whole.headers["last-modified"]
    assert call(app, f"/{name}", If_None_Match=tag).status == 304
    assert call(app, f"/{name}", If_Match='"other"').status == 412
    assert call(app, f"/{name}", If_Modified_Since=date).status == 304
    assert call(app, f"/{name}", If_Unmodified_Since=date).status == 200
    assert call(app, f"/{name}", If_Unmodified_Since=EPOCH).status == 412
    for header, part in (
        ("bytes=0-0", content[:1]),
        ("bytes=10-19", content[10:20]),
        ("bytes=-5", content[-5:]),
        ("bytes=100-", content[100:]),
    ):
        response = call(app, f"/{name}", Range=header)
        assert (response.status, response.body) == (206, part)
        assert response.headers["content-length"] == str(len(part))
    assert call(app, f"/{name}", Range="bytes=0-9", If_Range='"old"').body == content
    assert call(app, f"/{name}", Range="bytes=0-9", If_Range=tag).status == 206
    assert call(app, f"/{name}", Range="bytes=99999999-").status == 416
    several = call(app, f"/{name}", Range="bytes=0-9,20-29")
    assert several.status == 206
    assert several.headers["content-type"].startswith("multipart/byteranges")
    assert len(several.body) == int(several.headers["content-length"])
    assert content[:10] in several.body
    assert content[20:30] in several.body
    assert isinstance(several.iterable, SegmentedBody) == (name == "large.bin" or not cached)


MALFORMED = st.text(st.sampled_from('bytes=0123456789-, ;"W/*gziprqGMTMon:é\x00\x7f'), max_size=40)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("RANGE", "IF_RANGE", "IF_MATCH", "IF_NONE_MATCH", "ACCEPT_ENCODING"),
                *("IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE"),
            ]
        ),
        MALFORMED,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(100))
def test_malformed_headers_get_a_legal_response(site: Path, headers: dict[str, str]) -> None:
    app = StaticFiles(directory=site)
    response = call(app, "/app.js", **headers)
    assert response.status in (200, 206, 304, 412, 416)
    if response.status != 304:
        assert int(response.headers["content-length"]) == len(response.body)


CONDITIONS = {
    "ACCEPT_ENCODING": ["gzip", "br;q=0, *", "identity", ""],
    "IF_NONE_MATCH": ["*", '"other"', "<tag>", "W/<tag>", '"other", <tag>'],
    "IF_MODIFIED_SINCE": ["<date>", EPOCH, "never"],
    "IF_MATCH": ["*", "<tag>", '"other"'],
    "IF_UNMODIFIED_SINCE": ["<date>", EPOCH],
    "RANGE": ["bytes=0-3", "bytes=9999999-", "lines=1-2"],
    "IF_RANGE": ["<tag>", "<date>", '"other"'],
}


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    headers=st.fixed_dictionaries(
        {}, optional={k: st.sampled_from(v) for k, v in CONDITIONS.items()}
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_cached_file_is_answered_as_an_uncached_one(
    site: Path, method: str, headers: dict[str, str]
) -> None:
    """The fast path for cached files gives the same response as the full path."""
    if not (site / "app.js.gz").exists():
        write_precompressed(site / "app.js", ".gz", b"packed")
        settle(site / "app.js", site / "app.js.gz")
    cached, uncached = StaticFiles(directory=site), StaticFiles(directory=site, cache_bytes=0)
    whole = call(cached, "/app.js").headers
    filled = {
        name: value.replace("<tag>", whole["etag"]).replace("<date>", whole["last-modified"])
        for name, value in headers.items()
    }
    one, other = (call(app, "/app.js", method, **filled) for app in (cached, uncached))
    assert (one.status, one.headers, one.body) == (other.status, other.headers, other.body)
    assert cached._cache.used_bytes
