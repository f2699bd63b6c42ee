"""StaticFiles: files that change, race conditions with changes, and memory."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from wsgiref.headers import Headers

import pytest

from tests.static.calls import LARGE, Answered, call, environ_of, write_precompressed
from tests.support.files import settle
from tests.support.process import open_descriptors
from wsgifast import StaticFiles
from wsgifast.files import RequestFacts
from wsgifast.files import directory as directory_module
from wsgifast.sockets.sending import FileTruncated

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["app.js", "large.bin"])
def test_changed_file_is_sent_at_once(site: Path, name: str) -> None:
    app = StaticFiles(directory=site)
    path = site / name
    size = path.stat().st_size
    for number in range(30):
        if number % 10 == 5:
            settle(path)  # cached from here on
            call(app, f"/{name}")
        # All contents have one length, and change as fast as the disk allows. Times and sizes alone
        # would not show a change.
        content = bytes([number]) * size
        path.write_bytes(content)
        # A GET uses the fast path if possible. A range never does.
        for byte_range in [{"Range": "bytes=1-"}, {}] if number % 2 else [{}]:
            response = call(app, f"/{name}", **byte_range)
            expected = content[1:] if byte_range else content
            assert response.body == expected, f"write {number} is not seen"
    path.unlink()
    assert call(app, f"/{name}").status == 404
    path.write_bytes(b"back")
    assert call(app, f"/{name}").body == b"back"
    (site / "new").write_bytes(b"replaced")
    os.replace(site / "new", path)
    assert call(app, f"/{name}").body == b"replaced"


def test_swapped_directory_is_not_followed_out(site: Path) -> None:
    app = StaticFiles(directory=site)
    settle(site / "docs" / "index.html")
    assert call(app, "/docs/").body == b"<h1>docs</h1>"
    outside = site.parent / "outside"
    outside.mkdir()
    (outside / "index.html").write_text("secret")
    (site / "docs").rename(site / "old")
    (site / "docs").symlink_to("../outside")
    assert call(app, "/docs/").status == 404


def test_file_replaced_before_reopening_is_looked_up(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and bytes belong to the same file, even if it changes at any moment in between."""
    app = StaticFiles(directory=site)
    real = directory_module.Directory.reopen
    swaps = []

    def swapping(self: Any, path: str, identity: Any) -> int | None:
        swaps.append(path)
        (site / "new").write_bytes(bytes([len(swaps)]) * (300_000 + len(swaps)))
        os.replace(site / "new", site / "large.bin")
        return real(self, path, identity)

    monkeypatch.setattr(directory_module.Directory, "reopen", swapping)
    before = open_descriptors()
    for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=0-9,20-29"}):
        settle(site / "large.bin")
        call(app, "/large.bin", "HEAD")  # cached from here on
        response = call(app, "/large.bin", **headers)
        assert int(response.headers["content-length"]) == len(response.body)
        assert bytes([len(swaps)]) in response.body
    assert len(swaps) == 3
    assert call(app, "/large.bin", "HEAD").headers["content-length"] == str(300_000 + len(swaps))
    assert call(app, "/large.bin", Range="bytes=999999-").status == 416
    assert open_descriptors() <= before


def test_file_that_shrinks_while_sent_raises(site: Path) -> None:
    app = StaticFiles(directory=site)
    for headers in ({}, {"Range": "bytes=400000-"}, {"Range": "bytes=0-9,400000-400009"}):
        (site / "large.bin").write_bytes(LARGE)
        iterable = app(environ_of("/large.bin", **headers), lambda *args: None)  # type: ignore[arg-type]
        os.truncate(site / "large.bin", 100)
        with pytest.raises(FileTruncated, match="shrank"):
            b"".join(iterable)
        with pytest.raises(FileTruncated):
            iterable.close()  # type: ignore[attr-defined]


def test_growing_file_is_sent_to_its_declared_length(site: Path) -> None:
    app = StaticFiles(directory=site)
    iterable = app(environ_of("/large.bin"), lambda *args: None)  # type: ignore[arg-type]
    with (site / "large.bin").open("ab") as file:
        file.write(b"more")
    assert b"".join(iterable) == LARGE
    iterable.close()  # type: ignore[attr-defined]


def grow(response: Callable[..., Answered], path: str) -> None:
    """Request every kind of response, since each of them stores something in a cache."""
    for method in ("GET", "HEAD"):
        for headers in (
            {},
            {"If_None_Match": "*"},
            {"If_Match": '"none"'},
            {"Range": "bytes=1-2"},
            {"Range": "bytes=999999999-"},
            {"Accept_Encoding": "gzip"},
            {"Accept_Encoding": "br", "Range": "bytes=1-2"},
            {"Accept_Encoding": "br", "If_None_Match": "*"},
        ):
            response(path, method, **headers)


@pytest.mark.parametrize("etag", ["stat", "content"])
def test_memory_stays_within_cache_bytes(tmp_path: Path, etag: str) -> None:
    """Python's allocations show it, not the cache's own counters."""
    root = tmp_path / "many"
    root.mkdir()
    files = [root / f"file-{number:04}.txt" for number in range(200)]
    for number, path in enumerate(files):
        path.write_bytes(os.urandom(10 + number * 80))
        if number % 3 == 0:
            write_precompressed(path, ".gz", b"1234567")
            write_precompressed(path, ".br", b"123456")
    bound = 1 << 19

    def add(headers: Headers, path: str, url: str) -> None:
        headers["X-Long"] = url * 20

    def raw(app: StaticFiles) -> None:
        # The ASGI half caches more.
        for found in app._cache._entries.values():
            for source in found.sources():
                for conditions in (
                    RequestFacts(),
                    RequestFacts("HEAD"),
                    RequestFacts(if_none_match="*"),
                    RequestFacts(if_match='"none"'),
                    RequestFacts(range="bytes=999999999-"),
                ):
                    _ = source.representation.plan(conditions).raw_headers

    def fill(app: StaticFiles) -> None:
        for path in files:
            grow(lambda *args, **headers: call(app, *args, **headers), f"/{path.name}")
            call(app, f"/none-{path.name}")
        raw(app)

    make = partial(
        StaticFiles, directory=root, cache_bytes=bound, etag=etag, add_headers=add,
        allow_all_origins=True,
    )  # fmt: skip
    settle(*files)
    fill(make())  # The code that a JIT compiles is Python's memory, too.
    app = make()
    grow(lambda *args, **headers: call(app, *args, **headers), "/file-0000.txt")
    gc.collect()
    tracemalloc.start()
    try:
        fill(app)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert app._cache.used_bytes <= bound
    assert app._cache.used_bytes > bound * 0.8, "the cache is not full: nothing was proved"
    assert used <= bound


def test_app_used_by_threads_answers_each(site: Path) -> None:
    app = StaticFiles(directory=site, cache_bytes=60_000)
    wrong: list[object] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            for name in ("app.js", "large.bin", "index.html"):
                response = call(app, f"/{name}", Accept_Encoding="gzip")
                if response.status != 200 or len(response.body) != int(
                    response.headers["content-length"]
                ):
                    wrong.append(response)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        (site / "new").write_bytes(b"x" * (1000 + number))
        os.replace(site / "new", site / "app.js")
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_large_tree_costs_nothing_at_the_start(tmp_path: Path) -> None:
    for folder in range(10):
        (tmp_path / str(folder)).mkdir()
        for number in range(200):
            (tmp_path / str(folder) / str(number)).touch()
    tracemalloc.start()
    try:
        app = StaticFiles(directory=tmp_path)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 200_000, "bytes; a table of the tree's 2,000 files would be larger"
    assert call(app, "/7/100").status == 200
