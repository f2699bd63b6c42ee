"""`wsgifast compress`: precompressed files, their manifest, and files of other programs."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import brotli
import pytest

from tests.files.conftest import TEXT
from tests.static.calls import call
from tests.support.calls import raising
from tests.support.decoders import decoded
from tests.support.process import NEEDS_ROOT, another_user, open_terminal
from tests.support.servers import wait_for
from wsgifast import ConfigurationError, StaticFiles
from wsgifast.commands import cli
from wsgifast.compression.codings import available_codings, compress_file
from wsgifast.files import compress as module
from wsgifast.files import directory
from wsgifast.files.compress import MANIFEST, compress


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the modification time of every file."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_precompressed_is_written_if_it_saves_enough(tree: Path) -> None:
    before = set(snapshot(tree))
    os.chmod(tree / "page.html", 0o640)
    report = compress(tree)
    made = set(snapshot(tree)) - before - {MANIFEST}
    assert made == set(report.written)
    assert made == {
        f"{name}{suffix}"
        for name in ("page.html", "css/site.css")
        for suffix in (".gz", ".br", ".zst")
    }
    original = (tree / "page.html").stat()
    for suffix, unpack in (
        (".gz", gzip.decompress),
        (".br", brotli.decompress),
        (".zst", partial(decoded, "zstd")),
    ):
        precompressed = tree / f"page.html{suffix}"
        assert unpack(precompressed.read_bytes()) == TEXT
        assert precompressed.stat().st_mtime_ns == original.st_mtime_ns
        assert stat.S_IMODE(precompressed.stat().st_mode) == 0o640
    assert report.original_bytes == len(TEXT) * 3
    assert report.smallest_bytes < report.original_bytes / 10


def test_same_content_gives_same_precompressed_files(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "copy"
    other.parent.mkdir()
    subprocess.run(["cp", "-a", str(tree), str(other)], check=True)
    (other / "link.txt").unlink()
    (tree / "link.txt").unlink()
    compress(tree, jobs=1)
    compress(other, jobs=4)
    first, second = snapshot(tree), snapshot(other)
    del first[MANIFEST], second[MANIFEST]
    assert first == second
    assert (tree / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()


def test_second_run_writes_changed_files_only(tree: Path) -> None:
    compress(tree)
    before = snapshot(tree)
    again = compress(tree)
    assert (again.written, again.removed) == ([], [])
    assert len(again.current) == 6
    assert {k: v for k, v in snapshot(tree).items() if k != MANIFEST} == {
        k: v for k, v in before.items() if k != MANIFEST
    }
    (tree / "page.html").write_bytes(TEXT[::-1])
    report = compress(tree)
    assert report.written == ["page.html.br", "page.html.gz", "page.html.zst"]
    assert gzip.decompress((tree / "page.html.gz").read_bytes()) == TEXT[::-1]


def test_precompressed_of_a_removed_file_is_removed(tree: Path) -> None:
    compress(tree)
    (tree / "page.html").unlink()
    # A higher level does not help any more
    (tree / "css" / "site.css").write_bytes(os.urandom(3000))
    report = compress(tree)
    assert len(report.removed) == 6
    assert not [name for name in snapshot(tree) if name.endswith((".gz", ".br", ".zst"))]
    assert not (tree / MANIFEST).exists()


def test_precompressed_that_stays_is_reported(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compress(tree, codings=["gzip"])
    (tree / "page.html").unlink()

    monkeypatch.setattr(os, "unlink", raising(PermissionError, 1, "Operation not permitted"))
    assert compress(tree, codings=["gzip"]).failed == {"page.html.gz": "Operation not permitted"}
    monkeypatch.undo()
    assert compress(tree, codings=["gzip"]).removed == ["page.html.gz"]


def test_folder_that_has_gone_is_forgotten(tree: Path) -> None:
    compress(tree, codings=["gzip"])
    for path in (tree / "css").iterdir():
        path.unlink()
    (tree / "css").rmdir()
    report = compress(tree, codings=["gzip"])
    assert (report.failed, report.removed) == ({}, [])
    assert "css" not in (tree / MANIFEST).read_text()


@pytest.mark.parametrize("name", [".git/a.txt", "css/.cache/a.txt", ".a.txt", "back\\slash.txt"])
def test_file_that_is_not_served_is_not_compressed(tree: Path, name: str) -> None:
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_bytes(TEXT)
    assert name + ".gz" not in compress(tree, codings=["gzip"]).written


def test_precompressed_of_another_tool_is_left_alone(tree: Path) -> None:
    own = tree / "page.html.gz"
    own.write_bytes(b"yesterday's backup")
    os.utime(own, (1, 1))
    lonely = tree / "dump.sql.gz"
    lonely.write_bytes(b"no original at all")
    report = compress(tree)
    assert report.left_alone == ["page.html.gz"]
    assert own.read_bytes() == b"yesterday's backup"
    compress(tree, overwrite=True)
    assert gzip.decompress(own.read_bytes()) == TEXT
    assert lonely.read_bytes() == b"no original at all"
    own.write_bytes(b"edited by hand")  # wsgifast has made it before, but not now
    (tree / "page.html").unlink()
    compress(tree)
    assert own.read_bytes() == b"edited by hand"


def test_failed_write_leaves_no_file_and_is_reported(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: Any, target: Any, **folders: Any) -> None:
        if str(target).endswith("page.html.gz"):
            raise OSError(28, "No space left on device")
        real(source, target, **folders)

    real = os.replace
    monkeypatch.setattr(os, "replace", failing)
    report = compress(tree)
    assert report.failed == {"page.html": "No space left on device"}
    assert not (tree / "page.html.gz").exists()
    assert not [path for path in tree.rglob(".*") if path.name not in (".hidden.txt", MANIFEST)]


def test_interrupt_waits_for_no_compression(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    waited_for: list[bytes] = []

    def slow(content: bytes, coding: str) -> bytes:
        if content == TEXT and not released.wait(10):  # that is page.html
            waited_for.append(content)
        return compress_file(content, coding)

    monkeypatch.setattr(module, "compress_file", slow)
    before = set(threading.enumerate())
    try:
        with pytest.raises(KeyboardInterrupt):
            compress(tree, codings=["gzip"], jobs=8, progress=raising(KeyboardInterrupt))
        manifest = tree / MANIFEST
        made = json.loads(manifest.read_text())["siblings"] if manifest.exists() else {}
    finally:
        released.set()
    assert not waited_for
    wait_for(lambda: set(threading.enumerate()) <= before, "its threads have ended")
    assert not (tree / "page.html.gz").exists()
    assert {str(path.relative_to(tree)) for path in tree.rglob("*.gz")} == set(made)


def test_missing_package_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brotli", None)
    assert available_codings() == ("zstd", "gzip")
    with pytest.raises(ConfigurationError, match="pip install brotli"):
        compress(tree, codings=["br"])
    compress(tree)
    assert not list(tree.rglob("*.br"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codings": ["lzma"]}, "'lzma'"),
        ({"codings": "gzip"}, r"codings='gzip': must be a list"),
        ({"skip_extensions": "jpg"}, r"skip_extensions='jpg': must be a list"),
    ],
)
def test_wrong_option_is_refused(tree: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compress(tree, **options)


@pytest.mark.parametrize(
    "content", ["[]", "", "{", '{"version": 1}', '{"version": 1, "siblings": ["a.gz"]}', "[" * 9999]
)
def test_broken_manifest_is_an_error(tree: Path, content: str) -> None:
    (tree / MANIFEST).write_text(content)
    with pytest.raises(ConfigurationError, match="manifest"):
        compress(tree)


def write_manifest(root: Path, *made: str, content: bytes) -> None:
    """Return a manifest that lists each name as made by wsgifast with that content."""
    digest = module._digest(content)
    precompressed_files = dict.fromkeys(made, digest)
    (root / MANIFEST).write_text(json.dumps({"version": 1, "siblings": precompressed_files}))


@pytest.mark.parametrize(
    "name",
    [
        "../x.gz",
        "css/../../x.gz",
        "<outside>/x.gz",
        "/x.gz",
        "./x.gz",
        "css//x.gz",
        "css\\x.gz",
        "x.gz/",
        ".gz",
        "css/.gz",
        ".hidden.txt.gz",
        "x",
        "page.html",
        "x.gz\n",
        "x\0.gz",
        "",
    ],
)
def test_manifest_of_other_files_has_no_effect_on_them(tree: Path, name: str) -> None:
    outside = tree.parent / "x.gz"
    outside.write_bytes(TEXT)
    write_manifest(tree, name.replace("<outside>", str(tree.parent)), content=TEXT)
    before = snapshot(tree.parent)
    with pytest.raises(ConfigurationError, match="manifest"):
        compress(tree)
    assert snapshot(tree.parent) == before


def test_manifest_leads_through_no_link(tree: Path) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "x.gz").write_bytes(TEXT)
    (tree / "out").symlink_to(outside)
    (tree / "x.gz").symlink_to(outside / "x.gz")
    write_manifest(tree, "out/x.gz", "x.gz", content=TEXT)
    compress(tree)
    assert (outside / "x.gz").read_bytes() == TEXT
    assert (tree / "x.gz").is_symlink()


@pytest.mark.parametrize("mode", [0o6777, 0o4755, 0o2640, 0o1644, 0o444, 0o7600, 0o600])
def test_precompressed_has_permissions_of_its_original(tree: Path, mode: int) -> None:
    os.chmod(tree / "page.html", mode)
    compress(tree, codings=["gzip"])
    assert stat.S_IMODE((tree / "page.html.gz").stat().st_mode) == mode & 0o777


@NEEDS_ROOT
def test_root_gives_precompressed_files_their_owner(tree: Path) -> None:
    os.chown(tree, 65_534, 65_533)
    page = tree / "page.html"
    os.chown(page, 1_234, 2_345)
    os.chmod(page, 0o6640)
    compress(tree, codings=["gzip"])
    precompressed = (tree / "page.html.gz").stat()
    assert (precompressed.st_uid, precompressed.st_gid) == (1_234, 2_345)
    assert stat.S_IMODE(precompressed.st_mode) == 0o640
    manifest = (tree / MANIFEST).stat()
    assert (manifest.st_uid, manifest.st_gid) == (65_534, 65_533)
    assert stat.S_IMODE(manifest.st_mode) == 0o600


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("mode", "expected"), [(0o640, 0o600), (0o664, 0o644), (0o644, 0o644), (0o604, 0o604)]
)
def test_precompressed_of_other_group_gives_no_rights(tree: Path, mode: int, expected: int) -> None:
    """The user compresses files of a group to which the user does not belong."""
    page = tree / "page.html"
    os.chown(page, 65_534, 2_345)
    os.chmod(page, mode)
    for folder in (tree, tree / "css"):
        os.chown(folder, 65_534, -1)
    with another_user(reaching=tree):
        compress(tree, codings=["gzip"])
    precompressed = (tree / "page.html.gz").stat()
    assert precompressed.st_gid != 2_345
    assert stat.S_IMODE(precompressed.st_mode) == expected


@pytest.mark.parametrize("unit_ns", [1_000, 1_000_000, 1_000_000_000])
@pytest.mark.parametrize("is_ours", [True, False])
def test_precompressed_with_rounded_time_is_current(
    tree: Path, unit_ns: int, is_ours: bool
) -> None:
    page, precompressed = tree / "page.html", tree / "page.html.gz"
    os.utime(page, ns=(1_700_000_000_987_654_321,) * 2)
    if is_ours:
        compress(tree, codings=["gzip"])
    else:
        precompressed.write_bytes(gzip.compress(TEXT, 1))
    os.utime(precompressed, ns=(1_700_000_000_987_654_321 // unit_ns * unit_ns,) * 2)
    packed = precompressed.read_bytes()
    report = compress(tree, codings=["gzip"])
    assert "page.html.gz" in report.current
    assert not report.left_alone
    assert precompressed.read_bytes() == packed
    os.utime(precompressed, ns=(1_700_000_000_387_654_321,) * 2)  # the time is not rounded
    report = compress(tree, codings=["gzip"])
    assert ("page.html.gz" in report.written) == is_ours
    assert ("page.html.gz" in report.left_alone) != is_ours


def test_types_that_are_compressed_already_are_skipped(tree: Path) -> None:
    for name in ("drawing.svgz", "archive.tgz"):
        (tree / name).write_bytes(b"x" * 5_000)
    made = compress(tree).written
    assert not [path for path in made if path.startswith(("drawing", "archive"))]


@NEEDS_ROOT
def test_unreadable_manifest_is_not_malformed(tree: Path) -> None:
    (tree / MANIFEST).touch(0)
    with (
        another_user(reaching=tree),
        pytest.raises(ConfigurationError, match="cannot be read: Permission denied"),
    ):
        compress(tree)


def test_manifest_that_is_no_file_is_not_opened(tree: Path) -> None:
    os.mkfifo(tree / MANIFEST)  # opening a FIFO would wait
    with pytest.raises(ConfigurationError, match="manifest"):
        compress(tree)
    (tree / MANIFEST).unlink()
    (tree.parent / "elsewhere").write_text('{"version": 1, "siblings": {}}')
    (tree / MANIFEST).symlink_to("../elsewhere")
    with pytest.raises(ConfigurationError, match="manifest"):
        compress(tree)


def test_precompressed_that_is_no_file_is_left_alone(tree: Path) -> None:
    target = tree.parent / "target.gz"
    target.write_bytes(b"somebody's")
    (tree / "page.html.gz").symlink_to(target)
    os.mkfifo(tree / "page.html.br")
    (tree / "page.html.zst").mkdir()
    write_manifest(tree, *(f"page.html{s}" for s in (".gz", ".br", ".zst")), content=b"")
    report = compress(tree)
    assert report.left_alone == [f"page.html{suffix}" for suffix in (".br", ".gz", ".zst")]
    assert not report.failed
    assert (tree / "page.html.gz").is_symlink()
    assert target.read_bytes() == b"somebody's"
    (tree / "page.html.zst").rmdir()
    compress(tree, overwrite=True)
    assert gzip.decompress((tree / "page.html.gz").read_bytes()) == TEXT
    assert target.read_bytes() == b"somebody's"


def test_precompressed_is_removed_if_link_replaces_it(tree: Path) -> None:
    """A precompressed file may be newer than the target of the link, and would be sent in its
    place.
    """
    compress(tree, codings=["gzip"])
    (tree / "page.html").unlink()
    (tree / "page.html").symlink_to("css/site.css")
    assert compress(tree, codings=["gzip"]).removed == ["page.html.gz"]


@pytest.mark.parametrize("when", ["read", "written", "removed"])
def test_folder_that_becomes_a_link_is_not_followed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    for name in ("site.css", "site.css.gz"):
        (outside / name).write_bytes(TEXT)
    before = snapshot(outside)
    if when == "removed":
        compress(tree, codings=["gzip"])
        (outside / "site.css.gz").write_bytes((tree / "css" / "site.css.gz").read_bytes())
        (tree / "css" / "site.css").unlink()
        (outside / "site.css").unlink()
        before = snapshot(outside)

    def swapping(root: Path, names: Sequence[str]) -> int:
        if names and when == "read":
            swap()
        folder = real(root, names)
        if names:
            swap()
        return folder

    def swap() -> None:
        if not (tree / "css").is_symlink():
            (tree / "css").rename(tree.parent / "moved")
            (tree / "css").symlink_to(outside)

    real = directory.open_folder
    monkeypatch.setattr(module, "open_folder", swapping)
    report = compress(tree, codings=["gzip"], jobs=1)
    assert snapshot(outside) == before
    assert ("css/site.css" in report.failed) == (when == "read")
    assert (tree.parent / "moved" / "site.css.gz").exists() == (when == "written")


def test_static_files_sends_what_compress_makes(tree: Path) -> None:
    compress(tree)
    app = StaticFiles(directory=tree)
    response = call(app, "/css/site.css", Accept_Encoding="gzip, deflate, br, zstd")
    smallest = min(tree.glob("css/site.css.*"), key=lambda path: path.stat().st_size)
    assert response.body == smallest.read_bytes()


def test_command_prints_a_summary_and_exits_by_it(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["compress", str(tree), "--codings", " gzip, gzip"]) == 0
    printed = capsys.readouterr().out
    assert "2 written, 0 up to date, 0 removed" in printed
    assert cli.main(["compress", str(tree), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["compress", str(tree / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    os.utime(tree / "page.html.gz", (1, 1))
    (tree / MANIFEST).unlink()
    assert cli.main(["compress", str(tree)]) == 0
    assert "page.html.gz is a link or older than its original" in capsys.readouterr().err

    monkeypatch.setattr(module, "compress_file", raising(OSError, 5, "Input/output error"))
    (tree / "new.txt").write_bytes(TEXT)
    assert cli.main(["compress", str(tree)]) == 1
    assert "new.txt: Input/output error" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        cli.main(["shrink"])
    assert caught.value.code == 2


def test_progress_is_shown_on_a_terminal(tree: Path) -> None:
    leader, follower = open_terminal(columns=80)
    command = [sys.executable, "-m", "wsgifast", "compress", str(tree)]
    try:
        ran = subprocess.run(command, stderr=follower, stdout=subprocess.PIPE, check=True)
        os.close(follower)
        shown = ""
        with contextlib.suppress(OSError):  # EIO: the disk has no more space
            while data := os.read(leader, 65536):
                shown += data.decode()
    finally:
        os.close(leader)
    assert re.search(r"\[#+\.*\] \d+/\d+ \S", shown)
    assert b"saved)" in ran.stdout
