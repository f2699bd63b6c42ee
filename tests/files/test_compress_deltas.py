"""`wsgifast compress --against` writes deltas to earlier releases before any request."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.static.calls import call
from tests.support.decoders import available, decoded_delta
from tests.support.files import settle
from wsgifast import StaticFiles
from wsgifast.commands import cli
from wsgifast.files.compress import compress

SCRIPT = "".join(f"let name{number} = {number * number % 977};\n" for number in range(900)).encode()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a directory with an earlier release."""
    old = tmp_path / "old"
    (old / "css").mkdir(parents=True)
    (old / "app.0a1b2c3d.js").write_bytes(SCRIPT)
    (old / "css" / "site.0a1b2c3d.css").write_bytes(SCRIPT[100:])
    (old / "other.0a1b2c3d.js").write_bytes(SCRIPT)
    return old


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Return a directory with the next release."""
    new = tmp_path / "new"
    (new / "css").mkdir(parents=True)
    (new / "app.4e5f6a7b.js").write_bytes(SCRIPT + b"let more;\n")
    (new / "css" / "site.4e5f6a7b.css").write_bytes(SCRIPT[300:])
    (new / "plain.js").write_bytes(SCRIPT)
    return new


def delta_of(name: str, dictionary: bytes) -> str:
    return f"{name}.{hashlib.sha256(dictionary).hexdigest()[:16]}.dcz"


def test_deltas_are_written_against_an_earlier_release(new: Path, old: Path) -> None:
    report = compress(new, codings=["gzip"], against=iter([old]))
    script = delta_of("app.4e5f6a7b.js", SCRIPT)
    style = delta_of("css/site.4e5f6a7b.css", SCRIPT[100:])
    deltas = [name for name in report.written if name.endswith(".dcz")]
    assert deltas == sorted([script, style])
    assert decoded_delta((new / script).read_bytes(), SCRIPT) == SCRIPT + b"let more;\n"
    assert decoded_delta((new / style).read_bytes(), SCRIPT[100:]) == SCRIPT[300:]
    assert (new / script).stat().st_mtime_ns == (new / "app.4e5f6a7b.js").stat().st_mtime_ns
    again = compress(new, codings=["gzip"], against=[old])
    assert (again.written, again.removed) == ([], [])
    assert set(deltas) <= set(again.current)
    compress(new, codings=["gzip"])  # the deltas stay when the earlier release is removed
    assert all((new / name).exists() for name in deltas)
    (new / "app.4e5f6a7b.js").unlink()
    (new / "css" / "site.4e5f6a7b.css").write_bytes(SCRIPT[400:])
    removed = compress(new, codings=["gzip"]).removed
    assert {script, style} <= set(removed)
    assert not list(new.rglob("*.dcz"))


def test_useless_delta_is_not_written(new: Path, old: Path) -> None:
    (old / "app.0a1b2c3d.js").write_bytes(os.urandom(2000))
    (old / "css" / "site.0a1b2c3d.css").write_bytes(SCRIPT[300:])  # the file is unchanged
    assert not [name for name in compress(new, against=[old]).written if name.endswith(".dcz")]


def test_written_delta_needs_no_earlier_release(new: Path, old: Path) -> None:
    assert cli.main(["compress", str(new), "--against", str(old), "--codings", "gzip"]) == 0
    shutil.rmtree(old)
    settle(*new.iterdir())
    app = StaticFiles(directory=new, dictionaries=True)
    requested = {"Accept_Encoding": "gzip, dcz", "Available_Dictionary": available(SCRIPT)}
    delta = new / delta_of("app.4e5f6a7b.js", SCRIPT)
    for _ in range(2):
        response = call(app, "/app.4e5f6a7b.js", **requested)
        assert response.headers["content-encoding"] == "dcz"
        assert response.body == delta.read_bytes()
    # A delta is not sent if its dictionary differs, or if it belongs to an earlier content.
    for change in (lambda: delta.write_bytes(b"x" * 100), lambda: os.utime(delta, (1, 1))):
        change()
        (new / "app.4e5f6a7b.js").touch()
        settle(*new.iterdir())
        response = call(app, "/app.4e5f6a7b.js", **requested)
        assert response.headers.get("content-encoding") != "dcz"


def test_wrong_earlier_release_is_an_error(
    new: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (str(old / "none"), str(old / "app.0a1b2c3d.js"), ""):
        assert cli.main(["compress", str(new), "--against", wrong]) == 2
        assert f"{wrong!r} is not a directory" in capsys.readouterr().err


def test_releases_in_the_directory_can_be_dictionaries(new: Path) -> None:
    (new / "app.0a1b2c3d.js").write_bytes(SCRIPT)
    compress(new, codings=["gzip"], against=[new])
    delta = new / delta_of("app.4e5f6a7b.js", SCRIPT)
    assert decoded_delta(delta.read_bytes(), SCRIPT) == SCRIPT + b"let more;\n"
