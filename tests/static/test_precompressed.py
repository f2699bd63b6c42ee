"""StaticFiles: .gz, .br and .zst beside a file, and their cache."""

from __future__ import annotations

import gzip
import math
import os
import time
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.static.calls import LARGE, Answered, call, write_precompressed
from tests.support.effort import effort
from tests.support.files import settle
from wsgifast import StaticFiles
from wsgifast.files.found import has_same_time, is_outdated


@pytest.mark.parametrize("settled", [True, False])
def test_precompressed_change_is_seen_at_once(site: Path, settled: bool) -> None:
    original = site / "app.js"
    packed = gzip.compress(original.read_bytes())
    app = StaticFiles(directory=site)

    def ask(encodings: str = "gzip, br") -> Answered:
        if settled:
            settle(*site.glob("app.js*"))
            call(app, "/app.js", Accept_Encoding=encodings)
        return call(app, "/app.js", Accept_Encoding=encodings)

    assert "vary" not in ask().headers
    precompressed = write_precompressed(original, ".gz", packed)
    response = call(app, "/app.js", Accept_Encoding="gzip, br")
    assert (response.body, response.headers["content-encoding"]) == (packed, "gzip")
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    identity = ask("identity")
    assert identity.headers["vary"] == "Accept-Encoding"
    assert identity.headers["etag"] != response.headers["etag"]
    assert ask("gzip;q=0").body == original.read_bytes()
    assert call(app, "/app.js", Accept_Encoding="gzip", Range="bytes=0-3").body == packed[:4]
    ask()
    repacked = gzip.compress(original.read_bytes(), 1)
    # Written in place: the directory does not change
    write_precompressed(original, ".gz", repacked)
    assert call(app, "/app.js", Accept_Encoding="gzip").body == repacked
    ask()
    write_precompressed(original, ".br", b"brotli")
    assert ask().body == b"brotli"
    (site / "app.js.br").unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip, br").body == repacked
    ask()
    precompressed.unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


SECOND = 1_700_000_000 * 10**9  # in nanoseconds


@pytest.mark.parametrize(
    ("original_ns", "precompressed_ns", "is_used"),
    [
        (SECOND + 123_456_789, SECOND + 123_456_789, True),
        (SECOND + 123_456_789, SECOND + 123_456_717, True),  # converted to a float and back
        (SECOND + 123_456_789, SECOND + 123_456_954, True),
        (SECOND + 123_456_789, SECOND + 123_456_000, True),  # a precision of microseconds
        (SECOND + 123_456_789, SECOND + 123_000_000, True),  # a precision of milliseconds
        (SECOND + 999_999_999, SECOND, True),  # a precision of seconds
        (SECOND, SECOND, True),
        (SECOND + 123_456_789, SECOND + 10**9, True),  # newer
        (SECOND + 123_456_789, SECOND + 123_455_000, False),
        (SECOND + 123_456_789, SECOND + 122_000_000, False),
        (SECOND + 999_999_999, SECOND + 500_000_001, False),  # the time is not rounded
        (SECOND + 10**9, SECOND, False),  # times of whole seconds, with a difference of one
        (SECOND + 10**9 + 1, SECOND, False),
        (SECOND + 10**9, SECOND + 10**9 - 200_000_000, False),
    ],
)
def test_precompressed_is_sent_if_rounded_times_equal(
    site: Path, original_ns: int, precompressed_ns: int, is_used: bool
) -> None:
    original, precompressed = (
        site / "app.js",
        write_precompressed(site / "app.js", ".gz", b"packed"),
    )
    os.utime(original, ns=(original_ns, original_ns))
    os.utime(precompressed, ns=(precompressed_ns, precompressed_ns))
    response = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip")
    assert (response.body == b"packed") == is_used
    assert is_outdated(precompressed.stat(), original.stat()) != is_used


@given(ns=st.integers(10**18, 2 * 10**18), unit=st.sampled_from([1, 10**3, 10**6, 10**9, None]))
def test_time_copied_by_a_tool_is_the_originals(ns: int, unit: int | None) -> None:
    """Set the times of a file. None means a float, as in os.utime(name, (st_atime, st_mtime))."""
    copied = math.floor(ns / 1e9 * 1e9) if unit is None else ns // unit * unit
    one, other = stat_at(ns), stat_at(copied)
    assert has_same_time(one, other)
    assert has_same_time(other, one)
    assert not is_outdated(other, one)


@given(st.integers(10**18, 2 * 10**18), st.integers(10**9, 10**12))
def test_time_a_second_apart_is_never_the_originals(ns: int, difference: int) -> None:
    one, other = stat_at(ns), stat_at(ns + difference)
    assert not has_same_time(one, other)
    assert is_outdated(one, other)
    assert not is_outdated(other, one)


def stat_at(ns: int) -> os.stat_result:
    return os.stat_result((0,) * 10, {"st_mtime_ns": ns})


@pytest.mark.parametrize("suffix", [".gz", ".br"])
def test_precompressed_file_made_by_whitenoise_is_sent(site: Path, suffix: str) -> None:
    from whitenoise.compress import Compressor

    originals = [site / f"{number}.css" for number in range(30)]
    for original in originals:
        original.write_bytes(b"body { color: red }\n" * 100)
        Compressor(quiet=True).compress(str(original))
    app = StaticFiles(directory=site)
    for original in originals:
        packed = original.with_name(original.name + suffix).read_bytes()
        coding = {".gz": "gzip", ".br": "br"}[suffix]
        assert call(app, f"/{original.name}", Accept_Encoding=coding).body == packed


@pytest.mark.parametrize(
    ("content", "age_s"), [(b"of an earlier content", 1), (b"", 0), (b"x" * 10_000, 0)]
)
def test_precompressed_is_sent_once_it_is_usable(site: Path, content: bytes, age_s: float) -> None:
    original = site / "app.js"
    write_precompressed(original, ".gz", content, age_s=age_s)
    settle(*site.glob("app.js*"))
    app = StaticFiles(directory=site)
    for _ in range(2):
        response = call(app, "/app.js", Accept_Encoding="gzip")
        assert response.body == original.read_bytes()
        assert "vary" not in response.headers
    assert app._cache.used_bytes > 0
    # Written in place: the directory does not change
    write_precompressed(original, ".gz", b"fresh")
    settle(*site.glob("app.js*"))
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"fresh"
    original.write_text("let answer = 43;\n" * 40)
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


def test_unusable_precompressed_file_is_not_sent(site: Path) -> None:
    original = site / "app.js"
    write_precompressed(original, ".gz", b"x" * 10_000)  # larger than the original
    (site / "app.js.br").mkdir()
    os.mkfifo(site / "app.js.zst")
    response = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip, br, zstd")
    assert response.body == original.read_bytes()


def test_large_precompressed_is_sent_from_its_file(site: Path) -> None:
    (site / "big.txt").write_bytes(LARGE * 2)
    write_precompressed(site / "big.txt", ".zst", LARGE)
    app = StaticFiles(directory=site)
    for _ in range(2):
        response = call(app, "/big.txt", Accept_Encoding="zstd")
        assert response.body == LARGE
        assert response.headers["content-encoding"] == "zstd"
        assert isinstance(response.iterable, FileWrapper)


STEPS = st.tuples(
    st.sampled_from(["", ".gz", ".br"]),
    # The step writes a file of so many hundred bytes, or ...
    st.integers(1, 9) | st.sampled_from(["delete", "older", "newer"]),
)


@given(steps=st.lists(STEPS, min_size=3, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(30))
def test_cached_response_equals_that_from_disk(
    site: Path, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, Any]]
) -> None:
    """Compare with a model that looks at every file each time."""
    # The cache applies at once. Every step shows, since each content has a different length.
    monkeypatch.setattr("wsgifast.files.found._SETTLED_NS", -1)
    app = StaticFiles(directory=site)
    original = site / "model.txt"
    precompressed_files = {"br": site / "model.txt.br", "gzip": site / "model.txt.gz"}
    for path in precompressed_files.values():
        path.unlink(missing_ok=True)
    original.write_bytes(b"x" * 555)
    for number, (suffix, change) in enumerate(steps):
        path = site / f"model.txt{suffix}"
        if isinstance(change, int):
            path.write_bytes(bytes([change]) * (change * 100 + number))
        elif change == "delete":
            path.unlink(missing_ok=True)
        elif path.exists():
            moment = path.stat().st_mtime + (-1 if change == "older" else 1)
            os.utime(path, (moment, moment))
        # Wait for a tick of the kernel's clock, so that the directory's change is visible
        time.sleep(0.011)
        for requested in ("identity", "gzip", "br", "gzip, br"):
            response = call(app, "/model.txt", Accept_Encoding=requested)
            assert response.status == (200 if original.exists() else 404)
            if not original.exists():
                continue
            stat_result = original.stat()
            fitting = [
                path
                for coding, path in precompressed_files.items()
                if coding in requested
                and path.exists()
                and path.stat().st_size < stat_result.st_size
                and path.stat().st_mtime_ns >= stat_result.st_mtime_ns
            ]
            best = min(fitting, key=lambda path: path.stat().st_size, default=original)
            assert response.body == best.read_bytes(), (requested, steps[: number + 1])
