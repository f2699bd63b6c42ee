"""Which files of a directory can be read, and which cannot."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.calls import raising, recorded
from tests.support.process import NEEDS_ROOT, another_user, open_descriptors
from wsgifast import ConfigurationError
from wsgifast.files.directory import Directory, identity_of, names_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return root/ with files. A secret file is beside root/."""
    root = tmp_path / "root"
    (root / "css").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "css" / "site.css").write_text("css")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("secret")
    return root


def read(directory: Directory, path: str) -> bytes | None:
    """Return the content under a relative path, or None."""
    names = names_of(path)
    opened = None if names is None else directory.open(names)
    if opened is None:
        return None
    try:
        assert not opened.is_directory, f"{path} is a directory"
        return os.pread(opened.fd, 1000, 0)
    finally:
        os.close(opened.fd)


@given(st.text(st.sampled_from("ab./\\\0~ é\udc80"), max_size=12))
def test_any_path_names_nothing_above_the_root(path: str) -> None:
    names = names_of(path, hidden_files=True)
    for name in names or ():
        assert name not in ("", ".", "..")
        assert not set(name) & set("/\\\0")


def test_files_and_directories_are_opened(tree: Path) -> None:
    directory = Directory(tree)
    assert read(directory, "a.txt") == b"a"
    assert read(directory, "css/site.css") == b"css"
    opened = directory.open(["css"])
    assert opened is not None
    assert opened.is_directory
    os.close(opened.fd)
    opened = directory.open([])
    assert opened is not None
    assert opened.is_directory
    os.close(opened.fd)


@pytest.mark.parametrize("path", ["none", "a.txt/x", "css/none/x", "n" * 300, "css/" + "n" * 300])
@pytest.mark.parametrize("follow", [True, False])
def test_missing_name_is_none(tree: Path, path: str, follow: bool) -> None:
    assert read(Directory(tree, follow_symlinks=follow), path) is None


LINKS = {
    "absolute": lambda root: (root / "link", root.parent / "secret"),
    "relative": lambda root: (root / "link", Path("../secret")),
    "from below": lambda root: (root / "css" / "link", Path("../../secret")),
    "down and up": lambda root: (root / "link", Path("css/../../secret")),
}


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS)
def test_link_out_of_the_root_needs_follow_symlinks(
    tree: Path, make: Callable[[Path], tuple[Path, Path]]
) -> None:
    link, target = make(tree)
    link.symlink_to(target)
    path = str(link.relative_to(tree))
    assert read(Directory(tree), path) is None
    assert read(Directory(tree, follow_symlinks=True), path) == b"secret"


def test_linked_directory_needs_follow_symlinks(tree: Path) -> None:
    (tree / "d").symlink_to("../outside")
    assert read(Directory(tree), "d/a.txt") is None
    assert read(Directory(tree, follow_symlinks=True), "d/a.txt") == b"secret"


def test_neighbour_whose_name_begins_alike_is_outside(tree: Path) -> None:
    neighbour = tree.parent / "root-2"
    neighbour.mkdir()
    (neighbour / "x").write_text("secret")
    (tree / "x").symlink_to(neighbour / "x")
    assert read(Directory(tree), "x") is None


def test_link_inside_the_root_is_followed(tree: Path) -> None:
    (tree / "b.txt").symlink_to("a.txt")
    (tree / "css" / "up").symlink_to("../a.txt")
    (tree / "styles").symlink_to("css")
    (tree / "abs").symlink_to(tree / "css")
    (tree / "twice").symlink_to("styles")
    (tree / "dots").symlink_to("./css/./site.css")
    directory = Directory(tree)
    assert read(directory, "b.txt") == b"a"
    assert read(directory, "css/up") == b"a"
    for folder in ("styles", "abs", "twice"):
        assert read(directory, f"{folder}/site.css") == b"css"
        assert read(directory, f"{folder}/up") == b"a"
    assert read(directory, "dots") == b"css"


def test_links_of_a_mounted_volume_are_followed(tree: Path) -> None:
    """As orchestrators mount configuration: file -> ..data/file, ..data -> ..2026/."""
    (tree / "..2026").mkdir()
    (tree / "..2026" / "app.conf").write_text("conf")
    (tree / "..data").symlink_to("..2026")
    (tree / "app.conf").symlink_to("..data/app.conf")
    assert read(Directory(tree), "app.conf") == b"conf"


def test_root_may_be_a_link(tree: Path) -> None:
    current = tree.parent / "current"
    current.symlink_to("root")
    directory = Directory(current)
    assert read(directory, "a.txt") == b"a"
    (tree / "abs").symlink_to(tree / "css")  # the real path is used, not the link's
    assert read(directory, "abs/site.css") == b"css"
    other = tree.parent / "other"
    other.mkdir()
    (other / "a.txt").write_text("new")
    current.unlink()
    current.symlink_to("other")
    assert read(directory, "a.txt") == b"new"


@pytest.mark.parametrize("follow", [True, False])
def test_circle_of_links_ends(tree: Path, follow: bool) -> None:
    (tree / "one").symlink_to("two")
    (tree / "two").symlink_to("one")
    (tree / "self").symlink_to("self/x")
    directory = Directory(tree, follow_symlinks=follow)
    assert read(directory, "one") is None
    assert read(directory, "one/x") is None
    assert read(directory, "self") is None


def test_fifo_socket_and_device_are_refused_unopened(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tree / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tree)  # the path of a Unix socket must be short
    listener.bind("socket")
    (tree / "null").symlink_to("/dev/null")
    opened = recorded(monkeypatch, os, "open", lambda path, *_, **__: path)
    with listener:
        for follow in (True, False):
            for name in ("fifo", "socket", "null"):
                assert read(Directory(tree, follow_symlinks=follow), name) is None
                assert name not in opened
                assert str(tree / name) not in opened


def test_fifo_replacing_a_file_does_not_block(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def swapping(path: str, *args: int, **options: int) -> int:
        if path == "a.txt":
            (tree / "a.txt").unlink()
            os.mkfifo(tree / "a.txt")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", swapping)
    assert read(Directory(tree), "a.txt") is None


@pytest.mark.parametrize("name", ["css", "site.css"])
def test_link_replacing_a_name_is_not_followed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After the check of a name and before its opening, the name becomes a link out of the root."""
    (tree.parent / "outside" / "site.css").write_text("secret")
    real = os.open
    swapped: list[str] = []

    def swapping(path: str, *args: int, **options: int) -> int:
        if path == name and not swapped:
            swapped.append(path)
            place = tree / "css" if name == "css" else tree / "css" / "site.css"
            place.rename(tree.parent / "moved")
            target = "../outside" if name == "css" else "../../outside/site.css"
            place.symlink_to(target)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", swapping)
    assert read(Directory(tree), "css/site.css") is None
    assert swapped == [name]


def test_swapped_links_in_a_race_never_lead_out(tree: Path) -> None:
    directory = Directory(tree)
    (tree / "d").mkdir()
    (tree / "d" / "a.txt").write_text("inside")
    (tree / "link").symlink_to("../outside")
    stop = threading.Event()
    rounds = 0

    def swap() -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            for a, b in (("d", "tmp"), ("link", "d"), ("d", "link"), ("tmp", "d")):
                os.rename(tree / a, tree / b)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = {read(directory, "d/a.txt") for _ in range(3000)}
        while rounds <= 10:  # on a busy machine the other thread may begin late
            seen.add(read(directory, "d/a.txt"))
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"inside", None}
    assert read(directory, "d/a.txt") == b"inside"


def test_name_that_no_file_system_takes_is_none(tree: Path) -> None:
    assert Directory(tree).open(["\ud800"]) is None  # no byte stands for this surrogate


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.ESTALE, errno.EIO])
def test_link_out_of_the_root_reveals_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The response does not even reveal that access is denied.

    The kernel's call is replaced, as above.
    """
    (tree / "out").symlink_to("../outside")
    (tree / "up").symlink_to("../outside/a.txt")
    real = os.stat

    def failing(path: str, *args: Any, **options: Any) -> os.stat_result:
        if os.fspath(path) in (str(tree / "out" / "a.txt"), str(tree / "up")):
            raise OSError(error, os.strerror(error))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", failing)
    for path in ("out/a.txt", "up"):
        assert read(Directory(tree), path) is None
        with pytest.raises(OSError, match=re.escape(os.strerror(error))):
            read(Directory(tree, follow_symlinks=True), path)


@NEEDS_ROOT
def test_root_is_searched_with_rights_to_open_files(tree: Path) -> None:
    tree.chmod(0o704)  # only other users can list this folder
    with (
        another_user(reaching=tree.parent),
        pytest.raises(ConfigurationError, match="Permission denied"),
    ):
        Directory(tree)


@NEEDS_ROOT
def test_link_into_an_unsearchable_directory_is_none(tree: Path) -> None:
    (tree / "out").symlink_to("../outside/a.txt")
    (tree / "shut").mkdir()
    (tree / "shut" / "a.txt").write_text("shut")
    (tree / "in").symlink_to("shut/a.txt")
    (tree.parent / "outside").chmod(0)
    (tree / "shut").chmod(0)
    directory = Directory(tree)
    with another_user(reaching=tree):
        assert read(directory, "out") is None
        for path in ("in", "shut/a.txt"):
            with pytest.raises(PermissionError):
                read(directory, path)


def test_failing_disk_raises(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(tree)
    monkeypatch.setattr(os, "open", raising(OSError, errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O error"):
        directory.open(["a.txt"])


def test_reopen_returns_the_same_file_or_none(tree: Path) -> None:
    directory = Directory(tree)
    opened = directory.open(["a.txt"])
    assert opened is not None
    os.close(opened.fd)
    path, identity = str(tree / "a.txt"), identity_of(opened.stat_result)
    fd = directory.reopen(path, identity)
    assert fd is not None
    assert stat.S_ISREG(os.fstat(fd).st_mode)
    os.close(fd)
    (tree / "new").write_text("b")
    os.replace(tree / "new", tree / "a.txt")
    assert directory.reopen(path, identity) is None
    (tree / "a.txt").unlink()
    assert directory.reopen(path, identity) is None


def test_any_opened_path_leaves_no_descriptor_open(tree: Path) -> None:
    (tree / "link").symlink_to("../secret")
    (tree / "in").symlink_to("css/site.css")
    os.mkfifo(tree / "fifo")
    directory = Directory(tree)
    before = open_descriptors()
    for path in ("a.txt", "css/site.css", "link", "in", "fifo", "none", "css/none/x", "a.txt/x"):
        read(directory, path)
    directory.reopen(str(tree / "a.txt"), (0, 0, 0, 0))
    assert open_descriptors() <= before


@pytest.mark.parametrize("what", ["none", "a.txt", "\0"])
def test_directory_that_is_none_is_named(tree: Path, what: str) -> None:
    with pytest.raises(ConfigurationError, match="directory=") as caught:
        Directory(tree / what)
    assert repr(str(tree / what)) in str(caught.value) or "\\x00" in str(caught.value)
