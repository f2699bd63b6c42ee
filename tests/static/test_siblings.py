"""StaticFiles: .gz, .br and .zst beside a file, and what is kept of them in memory."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.static.calls import LARGE, Answered, call, settle, write_sibling
from tests.support.effort import effort
from wsgifast import StaticFiles


@pytest.mark.parametrize("settled", [True, False])
def test_siblings_appear_change_and_disappear_at_once(site: Path, settled: bool) -> None:
    original = site / "app.js"
    packed = gzip.compress(original.read_bytes())
    app = StaticFiles(directory=site)

    def ask(encodings: str = "gzip, br") -> Answered:
        if settled:
            settle(*site.glob("app.js*"))
            call(app, "/app.js", Accept_Encoding=encodings)
        return call(app, "/app.js", Accept_Encoding=encodings)

    assert "vary" not in ask().headers
    sibling = write_sibling(original, ".gz", packed)
    answer = call(app, "/app.js", Accept_Encoding="gzip, br")
    assert (answer.body, answer.headers["content-encoding"]) == (packed, "gzip")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    identity = ask("identity")
    assert identity.headers["vary"] == "Accept-Encoding"
    assert identity.headers["etag"] != answer.headers["etag"]
    assert ask("gzip;q=0").body == original.read_bytes()
    assert call(app, "/app.js", Accept_Encoding="gzip", Range="bytes=0-3").body == packed[:4]
    ask()
    repacked = gzip.compress(original.read_bytes(), 1)
    write_sibling(original, ".gz", repacked)  # in place: the directory does not change
    assert call(app, "/app.js", Accept_Encoding="gzip").body == repacked
    ask()
    write_sibling(original, ".br", b"brotli")
    assert ask().body == b"brotli"
    (site / "app.js.br").unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip, br").body == repacked
    ask()
    sibling.unlink()
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


def test_a_stale_sibling_is_not_sent(site: Path) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", b"of an earlier content", age_s=1)
    app = StaticFiles(directory=site)
    answer = call(app, "/app.js", Accept_Encoding="gzip")
    assert answer.body == original.read_bytes()
    assert "vary" not in answer.headers
    write_sibling(original, ".gz", b"fresh")
    settle(*site.glob("app.js*"))
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"fresh"
    original.write_text("let answer = 43;\n" * 40)
    assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()


@pytest.mark.parametrize(
    ("content", "age_s"), [(b"of an earlier content", 1), (b"", 0), (b"x" * 10_000, 0)]
)
def test_a_sibling_of_no_use_is_sent_once_it_is(site: Path, content: bytes, age_s: float) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", content, age_s=age_s)
    settle(*site.glob("app.js*"))
    app = StaticFiles(directory=site)
    for _ in range(2):
        assert call(app, "/app.js", Accept_Encoding="gzip").body == original.read_bytes()
    assert app.cached_bytes > 0
    write_sibling(original, ".gz", b"fresh")  # in place: the directory does not change
    assert call(app, "/app.js", Accept_Encoding="gzip").body == b"fresh"


def test_siblings_that_are_no_use(site: Path) -> None:
    original = site / "app.js"
    write_sibling(original, ".gz", b"x" * 10_000)  # larger than the original
    (site / "app.js.br").mkdir()
    os.mkfifo(site / "app.js.zst")
    answer = call(StaticFiles(directory=site), "/app.js", Accept_Encoding="gzip, br, zstd")
    assert answer.body == original.read_bytes()


def test_a_large_sibling_is_sent_from_its_file(site: Path) -> None:
    (site / "big.txt").write_bytes(LARGE * 2)
    write_sibling(site / "big.txt", ".zst", LARGE)
    app = StaticFiles(directory=site)
    for _ in range(2):
        answer = call(app, "/big.txt", Accept_Encoding="zstd")
        assert answer.body == LARGE
        assert answer.headers["content-encoding"] == "zstd"
        assert isinstance(answer.iterable, FileWrapper)


STEPS = st.tuples(
    st.sampled_from(["", ".gz", ".br"]),
    # Write so many hundred bytes, or ...
    st.integers(1, 9) | st.sampled_from(["delete", "older", "newer"]),
)


@given(steps=st.lists(STEPS, min_size=3, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(30))
def test_what_is_kept_is_what_the_disk_says(
    site: Path, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, Any]]
) -> None:
    """Beside a model that looks at everything each time."""
    # Kept at once: every step below shows, since each content has a length of its own.
    monkeypatch.setattr("wsgifast.files.lookup._SETTLED_NS", -1)
    app = StaticFiles(directory=site)
    original = site / "model.txt"
    siblings = {"br": site / "model.txt.br", "gzip": site / "model.txt.gz"}
    for path in siblings.values():
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
        time.sleep(0.011)  # a tick of the kernel's clock: the directory's change is to be seen
        for asked in ("identity", "gzip", "br", "gzip, br"):
            answer = call(app, "/model.txt", Accept_Encoding=asked)
            assert answer.status == (200 if original.exists() else 404)
            if not original.exists():
                continue
            facts = original.stat()
            fitting = [
                path
                for coding, path in siblings.items()
                if coding in asked
                and path.exists()
                and path.stat().st_size < facts.st_size
                and path.stat().st_mtime_ns >= facts.st_mtime_ns
            ]
            best = min(fitting, key=lambda path: path.stat().st_size, default=original)
            assert answer.body == best.read_bytes(), (asked, steps[: number + 1])
