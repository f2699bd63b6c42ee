"""StaticFiles(dictionaries=True): files as deltas to earlier releases that the client has."""

from __future__ import annotations

import base64
import errno
import gzip
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asgifast
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.asgi.support import call as call_asgi
from tests.asgi.support import scope_of
from tests.static.calls import Answered, call, call_with, environ_of
from tests.support.coded import BROWSERS, available, decoded, decoded_delta
from tests.support.files import settle
from wsgifast import Compression, ConfigurationError, StaticFiles, WSGIFast
from wsgifast.compression.dictionaries import make_delta
from wsgifast.files import deltas
from wsgifast.files.directory import Directory, Opened

LINES = [f"function f{number}() {{ return {number * 7919 % 1009}; }}\n" for number in range(4000)]
OLD = "".join(LINES).encode()
NEW = "".join([*LINES[:2000], "let added = true;\n", *LINES[2001:]]).encode()
OLD_NAME, NEW_NAME = "app.0a1b2c3d.js", "app.4e5f6a7b.js"
VARY = "Accept-Encoding, Available-Dictionary"


@pytest.fixture(autouse=True)
def _waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "_WAIT_S", 60)


@pytest.fixture
def releases(site: Path) -> Path:
    """A directory with two releases of a script."""
    (site / OLD_NAME).write_bytes(OLD)
    (site / NEW_NAME).write_bytes(NEW)
    os.utime(site / OLD_NAME, (1e9, 1e9))
    settle(*site.iterdir())
    return site


def ask(
    app: Any, method: str = "GET", *, old: bytes = OLD, path: str = f"/{NEW_NAME}", **headers: Any
) -> Answered:
    asked = {"Accept_Encoding": BROWSERS, "Available_Dictionary": available(old), **headers}
    return call(app, path, method, **asked)


def test_release_offers_itself_as_a_dictionary(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    answer = call(app, f"/{OLD_NAME}")
    assert answer.body == OLD
    assert answer.headers["use-as-dictionary"] == 'match="/app.*.js"'
    assert answer.headers["cache-control"] == "max-age=31536000, public, immutable"
    assert answer.headers["vary"] == VARY
    again = call(app, f"/{OLD_NAME}", If_None_Match=answer.headers["etag"])
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
    answer = call_asgi(twin, scope)
    assert dict(answer.headers)["use-as-dictionary"] == 'match="/below/s/app.*.js"'


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


def test_coded_and_pinned_files_have_no_deltas(releases: Path) -> None:
    for number, name in enumerate(("app.0a1b2c3d.svgz", "app.4e5f6a7b.svgz")):
        (releases / name).write_bytes(gzip.compress(OLD + bytes([number])))
    settle(*releases.iterdir())
    app = StaticFiles(directory=releases, dictionaries=True)
    old = (releases / "app.0a1b2c3d.svgz").read_bytes()
    answer = ask(app, old=old, path="/app.4e5f6a7b.svgz")
    assert answer.headers["content-encoding"] == "gzip"
    assert "use-as-dictionary" not in answer.headers

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
    asked = ask(app)
    assert ("use-as-dictionary" in asked.headers) == fresh
    assert asked.headers.get("vary") == (VARY if fresh else None)
    assert asked.headers.get("content-encoding") == ("dcz" if fresh else None)
    twin = asgifast.StaticFiles(directory=releases, dictionaries=True, add_headers=changed)
    headers = dict(call_asgi(twin, scope_of(f"/{NEW_NAME}")).headers)
    assert ("use-as-dictionary" in headers) == fresh


def test_client_with_an_earlier_release_gets_its_delta(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, compress=True)
    plain = call(app, f"/{NEW_NAME}")
    zstd = call(app, f"/{NEW_NAME}", Accept_Encoding="zstd")
    first = ask(app)
    for _ in range(2):
        answer = ask(app)
        assert (answer.headers, answer.body) == (first.headers, first.body)
    assert decoded_delta(answer.body, OLD) == NEW
    assert len(answer.body) < len(zstd.body) / 10
    headers = answer.headers
    assert headers["content-encoding"] == "dcz"
    assert headers["vary"] == VARY
    assert headers["content-length"] == str(len(answer.body))
    assert headers["use-as-dictionary"] == plain.headers["use-as-dictionary"]
    assert len(answer.names) == len(headers)
    tag = headers["etag"]
    assert len({tag, plain.headers["etag"], zstd.headers["etag"]}) == 3
    assert not tag.startswith("W/")
    head = ask(app, "HEAD")
    assert (head.headers, head.body) == (headers, b"")
    again = ask(app, If_None_Match=tag)
    assert (again.status, again.headers["vary"]) == (304, VARY)
    assert ask(app, If_None_Match=zstd.headers["etag"]).status == 200
    assert ask(app, If_Match=plain.headers["etag"]).status == 412
    part = ask(app, Range="bytes=2-8", If_Range=tag)
    assert (part.status, part.body) == (206, answer.body[2:9])
    assert ask(app, Range="bytes=2-8", If_Range=plain.headers["etag"]).body == answer.body
    assert ask(app, Range="bytes=2-8", If_Range=headers["last-modified"]).body == answer.body


def test_deltas_to_two_dictionaries_have_tags_of_their_own(releases: Path) -> None:
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
def test_client_without_the_dictionary_gets_an_ordinary_coding(
    releases: Path, headers: dict[str, Any]
) -> None:
    (releases / "other.0a1b2c3d.js").write_bytes(LINES[0].encode())
    settle(releases / "other.0a1b2c3d.js")
    app = StaticFiles(directory=releases, dictionaries=True, compress=True)
    for _ in range(2):
        answer = ask(app, **headers)
        coding = answer.headers["content-encoding"]
        assert coding in ("zstd", "br")
        assert decoded(coding, answer.body) == NEW
        assert answer.headers["vary"] == VARY


def test_other_origins_get_deltas_where_they_may_read_files(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True, allow_all_origins=True)
    cors: dict[str, Any] = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "cors",
        "Origin": "https://a",
    }
    assert ask(app, **cors).headers["content-encoding"] == "dcz"
    embedded: dict[str, Any] = {**cors, "Sec_Fetch_Mode": "no-cors"}
    assert "content-encoding" not in ask(app, **embedded).headers


def test_dictionary_that_is_gone_changed_or_hidden_gives_the_file(
    releases: Path, tmp_path: Path
) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    old = releases / OLD_NAME
    old.write_bytes(b"changed" + OLD)
    settle(old)
    assert ask(app).body == NEW
    old.unlink()
    (tmp_path / "outside.js").write_bytes(OLD)
    old.symlink_to(tmp_path / "outside.js")
    settle(old)
    assert ask(app).body == NEW
    old.unlink()
    old.write_bytes(OLD)
    settle(old)
    delta = ask(app).body
    assert decoded_delta(delta, OLD) == NEW
    old.unlink()  # the client has it all the same
    assert ask(app).body == delta


def test_release_that_arrives_later_is_found(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    third = OLD + b"// the end\n"
    assert ask(app, old=third).body == NEW
    (releases / "app.0123abcd.js").write_bytes(third)
    settle(releases / "app.0123abcd.js")
    assert decoded_delta(ask(app, old=third).body, third) == NEW


@pytest.mark.parametrize("order", [("new", "old"), ("old", "new")])
def test_release_under_the_same_path_of_another_directory_is_a_dictionary(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    for name in ("new/assets", "old"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "new/assets" / NEW_NAME).write_bytes(NEW)
    (tmp_path / "old" / OLD_NAME).write_bytes(OLD)  # under another path
    settle(tmp_path / "new/assets" / NEW_NAME, tmp_path / "old" / OLD_NAME)
    app = StaticFiles(directory=[tmp_path / name for name in order], dictionaries=True)
    path = f"/assets/{NEW_NAME}"
    assert ask(app, path=path).body == NEW
    (tmp_path / "old/assets").mkdir()
    (tmp_path / "old/assets" / OLD_NAME).write_bytes(OLD)
    settle(tmp_path / "old/assets" / OLD_NAME)
    assert decoded_delta(ask(app, path=path).body, OLD) == NEW
    (tmp_path / "old/assets" / OLD_NAME).unlink()
    newer = NEW + b"// newer\n"
    (tmp_path / "new/assets" / NEW_NAME).write_bytes(newer)
    settle(tmp_path / "new/assets" / NEW_NAME)
    assert ask(app, path=path).body == newer


@pytest.mark.parametrize("there", ["file", "link out", "unreadable"])
def test_release_is_found_beside_a_directory_that_has_no_such_folder(
    releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    assets, other = releases / "assets", tmp_path / "other"
    assets.mkdir()
    other.mkdir()
    for name in (OLD_NAME, NEW_NAME):
        (releases / name).rename(assets / name)
    if there == "file":
        (other / "assets").write_bytes(b"no folder")
    elif there == "link out":
        (other / "assets").symlink_to(tmp_path)
    else:
        (other / "assets").mkdir()
        open_ = Directory.open

        def open_if_readable(directory: Directory, names: Sequence[str]) -> Opened | None:
            if directory.path == str(other) and names:
                raise PermissionError(errno.EACCES, "Permission denied")
            return open_(directory, names)

        monkeypatch.setattr(Directory, "open", open_if_readable)
    settle(tmp_path, *assets.iterdir(), assets, *other.iterdir())
    app = StaticFiles(directory=[releases, other], dictionaries=True)
    path = f"/assets/{NEW_NAME}"
    assert decoded_delta(ask(app, path=path).body, OLD) == NEW
    looks = Mock(side_effect=os.listdir)
    monkeypatch.setattr(os, "listdir", looks)
    assert ask(app, old=b"unknown", path=path).body == NEW
    looks.assert_not_called()


def test_unknown_dictionary_reads_the_releases_once(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (releases / "app.00000a1b.js").symlink_to(__file__)  # out of the directory
    settle(releases / "app.00000a1b.js")
    read: list[str] = []
    content_of = deltas.content_of

    def counted(root: Directory, names: Sequence[str], *identity: Any) -> bytes | None:
        read.append(names[-1])
        return content_of(root, names, *identity)

    monkeypatch.setattr(deltas, "content_of", counted)
    app = StaticFiles(directory=releases, dictionaries=True)
    for number in range(20):
        assert ask(app, old=bytes([number])).body == NEW
    assert sorted(read) == ["app.00000a1b.js", OLD_NAME, NEW_NAME]
    for number in range(30):
        path = releases / f"app.{number:08x}a.js"
        path.write_bytes(OLD + bytes([number]))
        os.utime(path, (2e9 + number, 2e9 + number))
    settle(*releases.iterdir())
    ask(app, old=b"unknown")
    assert len(read) == 3 + 16  # the newest ones


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "two releases"])
def test_unknown_dictionary_costs_little_after_a_look(
    site: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """However many files there are: a client may name any digest, for any file."""
    names = [f"f{number}.{place}a1b2c3d.js" for number in range(1500) for place in range(count)]
    for name in names:
        (site / name).write_bytes(OLD[:1000] + name.encode())
    settle(*site.iterdir(), site)
    app = StaticFiles(directory=site, dictionaries=True)
    asked = names[::count]
    for name in asked[:1] if count == 1 else asked:
        ask(app, old=b"unknown", path=f"/{name}")
    spent: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def note(*args: Any) -> Any:
            spent.append(name)
            return call(*args)

        return note

    monkeypatch.setattr(os, "listdir", noted("listing", os.listdir))
    monkeypatch.setattr(deltas, "content_of", noted("reading", deltas.content_of))
    monkeypatch.setattr(threading.Thread, "start", noted("thread", threading.Thread.start))
    for number, name in enumerate(asked):
        ask(app, old=f"unknown {number}".encode(), path=f"/{name}")
    assert not spent


def test_folder_with_many_releases_is_remembered_in_part(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{number}.{place}a1b2c3d.js" for number in range(100) for place in range(2)]
    for name in names:
        (site / name).write_bytes(OLD[:1000] + name.encode())
    settle(*site.iterdir(), site)
    monkeypatch.setattr(deltas, "_REMEMBERED_BYTES", 100 * deltas._NAME_BYTES)
    deltas.DELTAS.reset()
    app = StaticFiles(directory=site, dictionaries=True)
    with monkeypatch.context() as patched:
        looks = Mock(side_effect=os.listdir)
        patched.setattr(os, "listdir", looks)
        answers = []
        for old, new in zip(names[::2], names[1::2], strict=True):
            answers.append(ask(app, old=(site / old).read_bytes(), path=f"/{new}").body)
    assert looks.call_count == 1
    full = [(site / new).read_bytes() for new in names[1::2]]
    as_deltas = [body != whole for body, whole in zip(answers, full, strict=True)]
    assert 0 < sum(as_deltas) < 100


def test_release_that_is_being_written_is_read_again(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    late = releases / "app.0123abcd.js"
    late.write_bytes(OLD[:1000])
    ask(app, old=b"unknown")
    with late.open("ab") as file:
        file.write(OLD[1000:-1])
    settle(late)
    assert decoded_delta(ask(app, old=OLD[:-1]).body, OLD[:-1]) == NEW


def test_system_without_threads_gives_an_ordinary_coding(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(2):
        monkeypatch.setattr(threading.Thread, "start", refused)
        assert ask(app).body == NEW
    monkeypatch.setattr(threading.Thread, "start", start)
    assert decoded_delta(ask(app).body, OLD) == NEW


@pytest.fixture
def slow_makings(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Have deltas wait for an event. Return it, and the list of deltas that were begun."""
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
        asked = [pool.submit(ask, app) for _ in range(100)]
        while not made:
            pass
        go_on.set()
        assert {decoded_delta(each.result().body, OLD) for each in asked} == {NEW}
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
    asked: dict[str, Any] = {
        "Available_Dictionary": dictionary, "Accept_Encoding": accepted,
        "Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode,
    }  # fmt: skip
    answer = ask(app, **asked)
    coding = answer.headers.get("content-encoding")
    assert answer.status == 200
    assert answer.headers["vary"] == VARY
    if coding == "dcz":
        assert dictionary.strip(" ") == available(OLD)
        assert decoded_delta(answer.body, OLD) == NEW
    else:
        assert decoded(coding, answer.body) == NEW


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
        answer = ask(wrapped)
        assert (answer.headers, answer.body) == (delta.headers, delta.body)
        assert ask(wrapped, If_None_Match=tag).status == 304
        # The dictionary of pages is none of the script's.
        answer = ask(wrapped, old=OLD[:5000])
        assert answer.headers["vary"] == VARY
        assert answer.headers["content-encoding"] == "zstd"


def test_cached_delta_is_answered_without_a_look_at_the_disk(
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
