"""The releases that StaticFiles(dictionaries=True) finds for the digest of a client."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.static.deltas import NEW, NEW_NAME, OLD, OLD_NAME, ask
from tests.support.calls import recorded
from tests.support.decoders import decoded_delta
from tests.support.files import settle
from wsgifast import StaticFiles
from wsgifast.files import deltas
from wsgifast.files.directory import Directory, Opened


@pytest.fixture(autouse=True)
def _waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "_WAIT_S", 60)


def test_dictionary_gone_or_hidden_gives_the_file(releases: Path, tmp_path: Path) -> None:
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
    old.unlink()  # the client has the file nevertheless
    assert ask(app).body == delta


def test_release_that_arrives_later_is_found(releases: Path) -> None:
    app = StaticFiles(directory=releases, dictionaries=True)
    third = OLD + b"// the end\n"
    assert ask(app, old=third).body == NEW
    (releases / "app.0123abcd.js").write_bytes(third)
    settle(releases / "app.0123abcd.js")
    assert decoded_delta(ask(app, old=third).body, third) == NEW


@pytest.mark.parametrize("order", [("new", "old"), ("old", "new")])
def test_release_in_another_directory_is_a_dictionary(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    for name in ("new/assets", "old"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "new/assets" / NEW_NAME).write_bytes(NEW)
    (tmp_path / "old" / OLD_NAME).write_bytes(OLD)  # the same content under another path
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
def test_release_is_found_beside_a_bare_directory(
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
    (releases / "app.00000a1b.js").symlink_to(__file__)  # outside the directory
    settle(releases / "app.00000a1b.js")
    read = recorded(monkeypatch, deltas, "content_of", lambda root, names, *_: names[-1])
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
    assert len(read) == 3 + 16  # the newest releases


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "two releases"])
def test_unknown_dictionary_costs_little_after_a_look(
    site: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The number of files does not matter: a client may send any digest, for any file."""
    names = [f"f{number}.{place}a1b2c3d.js" for number in range(1500) for place in range(count)]
    for name in names:
        (site / name).write_bytes(OLD[:1000] + name.encode())
    settle(*site.iterdir(), site)
    app = StaticFiles(directory=site, dictionaries=True)
    requested = names[::count]
    for name in requested[:1] if count == 1 else requested:
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
    for number, name in enumerate(requested):
        ask(app, old=f"unknown {number}".encode(), path=f"/{name}")
    assert not spent


def test_folder_of_many_releases_is_read_in_part(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{number}.{place}a1b2c3d.js" for number in range(100) for place in range(2)]
    for name in names:
        (site / name).write_bytes(OLD[:1000] + name.encode())
    settle(*site.iterdir(), site)
    monkeypatch.setattr(deltas, "_CACHE_BYTES", 100 * deltas._NAME_BYTES)
    deltas.DELTAS.reset()
    app = StaticFiles(directory=site, dictionaries=True)
    with monkeypatch.context() as patched:
        looks = Mock(side_effect=os.listdir)
        patched.setattr(os, "listdir", looks)
        responses = []
        for old, new in zip(names[::2], names[1::2], strict=True):
            responses.append(ask(app, old=(site / old).read_bytes(), path=f"/{new}").body)
    assert looks.call_count == 1
    full = [(site / new).read_bytes() for new in names[1::2]]
    as_deltas = [body != whole for body, whole in zip(responses, full, strict=True)]
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
