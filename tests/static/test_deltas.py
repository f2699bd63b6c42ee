"""StaticFiles(dictionaries=True) sends files as deltas to releases that the client has."""

from __future__ import annotations

import base64
import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asgifast
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.asgi.support import call as call_asgi
from tests.asgi.support import scope_of
from tests.static.calls import call, call_with, environ_of
from tests.static.deltas import LINES, NEW, NEW_NAME, OLD, OLD_NAME, VARY, ask
from tests.support.calls import raising
from tests.support.decoders import BROWSERS, available, decoded, decoded_delta
from tests.support.files import settle
from wsgifast import Compression, ConfigurationError, StaticFiles, WSGIFast
from wsgifast.compression.dictionaries import make_delta
from wsgifast.files import deltas


@pytest.fixture(autouse=True)
def _waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "_WAIT_S", 60)


def test_release_offers_itself_as_a_dictionary(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    response = call(app, f"/{OLD_NAME}")
    assert response.body == OLD
    assert response.headers["use-as-dictionary"] == 'match="/app.*.js"'
    assert response.headers["cache-control"] == "max-age=31536000, public, immutable"
    assert response.headers["vary"] == VARY
    again = call(app, f"/{OLD_NAME}", If_None_Match=response.headers["etag"])
    assert (again.status, again.headers["vary"]) == (304, VARY)
    for path in ("/app.js", "/index.html"):
        plain = call(app, path)
        assert "use-as-dictionary" not in plain.headers
        assert "vary" not in plain.headers
    off = call(StaticFiles(directory=releases), f"/{OLD_NAME}")
    assert not {"use-as-dictionary", "vary"} & set(off.headers)
    assert off.headers["cache-control"] == "max-age=60, public"


def test_pattern_begins_at_the_root_of_the_origin(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, prefix="/s/")
    environ = {**environ_of(f"/s/{OLD_NAME}"), "SCRIPT_NAME": "/below"}
    assert call_with(app, environ).headers["use-as-dictionary"] == 'match="/below/s/app.*.js"'
    scope = {**scope_of(f"/below/s/{OLD_NAME}"), "root_path": "/below"}
    twin = asgifast.StaticFiles(directory=releases, dictionaries=True, prefix="/s/")
    response = call_asgi(twin, scope)
    assert dict(response.headers)["use-as-dictionary"] == 'match="/below/s/app.*.js"'


def test_changing_or_packed_file_is_no_dictionary(releases: Path) -> None:
    names = ["app.0a1b2c3d.png", "main-DiwrgTda.js", "app.0a1b2c3d.css"]
    for name in names:
        (releases / name).write_bytes(OLD)
    by_name = StaticFiles(directory=releases, dictionaries=True)
    assert [name for name in names if "use-as-dictionary" in call(by_name, f"/{name}").headers] == [
        "app.0a1b2c3d.css"
    ]
    by_rule = StaticFiles(directory=releases, dictionaries=True, immutable=r"\.js$")
    assert [name for name in names if "use-as-dictionary" in call(by_rule, f"/{name}").headers] == [
        "main-DiwrgTda.js"
    ]

    def withheld(headers: Any, path: str, url: str) -> None:
        del headers["Use-As-Dictionary"]

    none = StaticFiles(directory=releases, dictionaries=True, add_headers=withheld)
    assert ask(none).headers.get("content-encoding") is None


def test_compressed_and_pinned_files_have_no_deltas(releases: Path) -> None:
    for number, name in enumerate(("app.0a1b2c3d.svgz", "app.4e5f6a7b.svgz")):
        (releases / name).write_bytes(gzip.compress(OLD + bytes([number])))
    settle(*releases.iterdir())
    app = StaticFiles(directory=releases, dictionaries=True)
    old = (releases / "app.0a1b2c3d.svgz").read_bytes()
    response = ask(app, old=old, path="/app.4e5f6a7b.svgz")
    assert response.headers["content-encoding"] == "gzip"
    assert "use-as-dictionary" not in response.headers

    def pinned(headers: Any, path: str, url: str) -> None:
        headers["Cache-Control"] = "max-age=1000, No-Transform"

    assert ask(StaticFiles(directory=releases, dictionaries=True, add_headers=pinned)).body == NEW


@pytest.mark.parametrize(
    ("cache_control", "fresh"),
    [
        ("no-cache", False),
        ("public, No-Store", False),
        ("max-age=0, must-revalidate", False),
        ('max-age="00"', False),
        ("max-age=-1", False),
        ("max-age", False),
        ("max-age=10", True),
        ("private", True),
        (None, True),
    ],
)
def test_release_that_is_never_fresh_is_no_dictionary(
    releases: Path, cache_control: str | None, fresh: bool
) -> None:
    def changed(headers: Any, path: str, url: str) -> None:
        del headers["Cache-Control"]
        if cache_control is not None:
            headers["Cache-Control"] = cache_control

    app = StaticFiles(directory=releases, dictionaries=True, add_headers=changed)
    requested = ask(app)
    assert ("use-as-dictionary" in requested.headers) == fresh
    assert requested.headers.get("vary") == (VARY if fresh else None)
    assert requested.headers.get("content-encoding") == ("dcz" if fresh else None)
    twin = asgifast.StaticFiles(directory=releases, dictionaries=True, add_headers=changed)
    headers = dict(call_asgi(twin, scope_of(f"/{NEW_NAME}")).headers)
    assert ("use-as-dictionary" in headers) == fresh


def test_client_with_an_earlier_release_gets_its_delta(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, compress=True)
    plain = call(app, f"/{NEW_NAME}")
    zstd = call(app, f"/{NEW_NAME}", Accept_Encoding="zstd")
    first = ask(app)
    for _ in range(2):
        response = ask(app)
        assert (response.headers, response.body) == (first.headers, first.body)
    assert decoded_delta(response.body, OLD) == NEW
    assert len(response.body) < len(zstd.body) / 10
    headers = response.headers
    assert headers["content-encoding"] == "dcz"
    assert headers["vary"] == VARY
    assert headers["content-length"] == str(len(response.body))
    assert headers["use-as-dictionary"] == plain.headers["use-as-dictionary"]
    assert len(response.names) == len(headers)
    tag = headers["etag"]
    assert len({tag, plain.headers["etag"], zstd.headers["etag"]}) == 3
    assert not tag.startswith("W/")
    received = ask(app, "HEAD")
    assert (received.headers, received.body) == (headers, b"")
    again = ask(app, If_None_Match=tag)
    assert (again.status, again.headers["vary"]) == (304, VARY)
    assert ask(app, If_None_Match=zstd.headers["etag"]).status == 200
    assert ask(app, If_Match=plain.headers["etag"]).status == 412
    part = ask(app, Range="bytes=2-8", If_Range=tag)
    assert (part.status, part.body) == (206, response.body[2:9])
    assert ask(app, Range="bytes=2-8", If_Range=plain.headers["etag"]).body == response.body
    assert ask(app, Range="bytes=2-8", If_Range=headers["last-modified"]).body == response.body


def test_deltas_to_two_dictionaries_have_own_tags(releases: Path) -> None:
    other = OLD[:-500]
    (releases / "app.00000a1b.js").write_bytes(other)
    settle(releases / "app.00000a1b.js")
    app = StaticFiles(directory=releases, dictionaries=True)
    one, two = ask(app), ask(app, old=other)
    assert decoded_delta(one.body, OLD) == decoded_delta(two.body, other) == NEW
    assert one.headers["etag"] != two.headers["etag"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Available_Dictionary": available(b"unknown")},
        {"Available_Dictionary": available(NEW)},
        {"Available_Dictionary": available(LINES[0].encode())},
        {"Available_Dictionary": "nonsense"},
        {"Available_Dictionary": f"{available(OLD)}, {available(OLD)}"},
        {"Available_Dictionary": ":AAAA:"},
        {"Accept_Encoding": "gzip, br, zstd"},
        {"Accept_Encoding": "br, dcz;q=0.1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors", "Origin": "https://a"},
    ],
)
def test_client_without_dictionary_gets_other_coding(
    releases: Path, headers: dict[str, Any]
) -> None:
    (releases / "other.0a1b2c3d.js").write_bytes(LINES[0].encode())
    settle(releases / "other.0a1b2c3d.js")
    app = StaticFiles(directory=releases, dictionaries=True, compress=True)
    for _ in range(2):
        response = ask(app, **headers)
        coding = response.headers["content-encoding"]
        assert coding in ("zstd", "br")
        assert decoded(coding, response.body) == NEW
        assert response.headers["vary"] == VARY


def test_other_origins_get_deltas_if_they_may_read(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, allow_all_origins=True)
    cors: dict[str, Any] = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "cors",
        "Origin": "https://a",
    }
    assert ask(app, **cors).headers["content-encoding"] == "dcz"
    embedded: dict[str, Any] = {**cors, "Sec_Fetch_Mode": "no-cors"}
    assert "content-encoding" not in ask(app, **embedded).headers


def test_system_without_threads_gives_other_coding(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    start = threading.Thread.start

    for _ in range(2):
        monkeypatch.setattr(
            threading.Thread, "start", raising(RuntimeError, "can't start new thread")
        )
        assert ask(app).body == NEW
    monkeypatch.setattr(threading.Thread, "start", start)
    assert decoded_delta(ask(app).body, OLD) == NEW


@pytest.fixture
def slow_makings(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Delay deltas until an event is set.

    Return the event, and the list of deltas that were begun.
    """
    go_on = threading.Event()
    made: list[int] = []

    def slow(content: bytes, dictionary: bytes) -> bytes:
        made.append(len(content))
        assert go_on.wait(60)
        return make_delta(content, dictionary)

    monkeypatch.setattr(deltas, "make_delta", slow)
    return go_on, made


def test_delta_is_made_once_for_a_hundred_requests(
    releases: Path, slow_makings: tuple[threading.Event, list[int]]
) -> None:
    go_on, made = slow_makings
    app = StaticFiles(directory=releases, dictionaries=True)
    with ThreadPoolExecutor(100) as pool:
        requested = [pool.submit(ask, app) for _ in range(100)]
        while not made:
            pass
        go_on.set()
        assert {decoded_delta(each.result().body, OLD) for each in requested} == {NEW}
    assert len(made) == 1


def test_nobody_waits_for_a_delta_that_takes_long(
    releases: Path,
    slow_makings: tuple[threading.Event, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, made = slow_makings
    monkeypatch.setattr(deltas, "_WAIT_S", 0.001)
    app = StaticFiles(directory=releases, dictionaries=True)
    for _ in range(3):
        assert ask(app).body == NEW
    go_on.set()
    monkeypatch.setattr(deltas, "_WAIT_S", 60)
    assert decoded_delta(ask(app).body, OLD) == NEW
    assert len(made) == 1


def test_delta_that_saves_nothing_is_not_sent(releases: Path) -> None:
    (releases / OLD_NAME).write_bytes(b"nothing alike")
    (releases / NEW_NAME).write_bytes(os.urandom(5000))
    settle(releases / NEW_NAME)
    app = StaticFiles(directory=releases, dictionaries=True)
    for _ in range(2):
        assert "content-encoding" not in ask(app, old=b"nothing alike").headers


_HEADERS = st.text(st.characters(max_codepoint=255), max_size=60)
_DIGESTS = st.binary(min_size=30, max_size=34).map(lambda b: f":{base64.b64encode(b).decode()}:")
_CODINGS = st.lists(st.sampled_from(["dcz", "dcb", "br", "gzip", "*", "identity", "zstd;q=0"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    dictionary=_DIGESTS | _HEADERS | st.just(available(OLD)),
    accepted=_CODINGS.map(", ".join) | _HEADERS,
    site=st.sampled_from(["same-origin", "cross-site", "none"]) | _HEADERS,
    mode=st.sampled_from(["cors", "no-cors", "navigate"]) | _HEADERS,
)
def test_any_request_headers_get_the_file(
    releases: Path, dictionary: str, accepted: str, site: str, mode: str
) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, compress=True)
    requested: dict[str, Any] = {
        "Available_Dictionary": dictionary, "Accept_Encoding": accepted,
        "Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode,
    }  # fmt: skip
    response = ask(app, **requested)
    coding = response.headers.get("content-encoding")
    assert response.status == 200
    assert response.headers["vary"] == VARY
    if coding == "dcz":
        assert dictionary.strip(" ") == available(OLD)
        assert decoded_delta(response.body, OLD) == NEW
    else:
        assert decoded(coding, response.body) == NEW


def test_large_and_small_files_have_no_deltas(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltas, "MAX_FILE_BYTES", len(NEW) - 1)
    assert ask(StaticFiles(directory=releases, dictionaries=True)).body == NEW


def test_deltas_of_asgi_equal_those_of_wsgi(releases: Path) -> None:
    ours = StaticFiles(directory=releases, compress=True, dictionaries=True)
    theirs = asgifast.StaticFiles(directory=releases, compress=True, dictionaries=True)
    for old in (OLD, b"unknown"):
        for extra in ({}, {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}):
            wsgi = ask(ours, old=old, **extra)
            headers = {"accept_encoding": BROWSERS, "available_dictionary": available(old), **extra}
            asgi = call_asgi(theirs, scope_of(f"/{NEW_NAME}", **headers))
            assert (dict(asgi.headers), asgi.body) == (wsgi.headers, wsgi.body)


def test_compression_around_it_passes_deltas_on(releases: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages.dict"
    pages.write_bytes(OLD[:5000])
    static = StaticFiles(directory=releases, dictionaries=True)
    delta = ask(static)
    tag = delta.headers["etag"]
    for compression in (Compression(), Compression(dictionary=pages)):
        wrapped = WSGIFast(static, compress=compression)
        response = ask(wrapped)
        assert (response.headers, response.body) == (delta.headers, delta.body)
        assert ask(wrapped, If_None_Match=tag).status == 304
        # The dictionary of pages is not used for the script.
        response = ask(wrapped, old=OLD[:5000])
        assert response.headers["vary"] == VARY
        assert response.headers["content-encoding"] == "zstd"


def test_cached_delta_needs_no_look_at_the_disk(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    delta = ask(app).body
    monkeypatch.setattr(app, "look_up", None)
    assert ask(app).body == delta


def test_option_needs_zstd(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsgifast.files.site.available_codings", lambda: ("gzip",))
    with pytest.raises(ConfigurationError, match="pip install"):
        StaticFiles(directory=site, dictionaries=True)
    with pytest.raises(ConfigurationError, match="dictionaries"):
        StaticFiles(directory=site, dictionaries="yes")  # type: ignore[arg-type]
