"""ARCHITECTURE.md describes the current tree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
_FOLDERS = (ROOT / "wsgifast", ROOT)
# Functions of Python and of apps.
_OF_OTHERS = {"open", "close", "send", "receive"}
# Modules that each package of this kind has.
_NOT_LISTED = {"command.py", "model.py", "apps.py"}


def test_each_module_that_it_names_is_there() -> None:
    """A name without its folder is in a folder of its row, of its heading or of its section."""
    missing = []
    for _, line, folders in _lines():
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", line):
            path = next((f / name for f in folders if (f / name).exists()), None)
            if path is None:
                missing.append((name, line))
            elif "/" in name:
                folders.append(path if path.is_dir() else path.parent)
    assert not missing


def test_its_lists_of_modules_are_complete() -> None:
    named: dict[Path, set[str]] = {}
    for heading, line, folders in _lines():
        if re.fullmatch(r"[\w/]+/", heading):
            named.setdefault(folders[-1], set()).update(re.findall(r"`(?:\w+/)?(\w+\.py)`", line))
    assert len(named) > 15
    missing = {
        str(folder.relative_to(ROOT)): absent
        for folder, names in named.items()
        if (absent := {path.name for path in folder.glob("[!_]*.py")} - names - _NOT_LISTED)
    }
    assert not missing


def test_each_name_of_a_row_is_in_its_modules() -> None:
    """A function, a class, a constant or a private name, in a column after the first."""
    missing = []
    for _, line, folders in _lines():
        if not line.startswith("|"):
            continue
        cells = line.partition(" | ")[2]
        paths = re.findall(r"`([\w/]+\.py)`", cells)
        found = (folder / path for path in paths for folder in folders)
        text = "".join(path.read_text() for path in found if path.exists())
        names = re.findall(r"`(?:\w+\.)?(\w+\(\)|_\w+|[A-Z]\w+)`", cells) if text else ()
        for name in names:
            bare = name.removesuffix("()")
            before = r"\bdef " if bare != name else r"\bdef |\bclass |^|\bself\."
            if not re.search(rf"(?m)(?:{before}){bare}\b", text):
                missing.append((name, line))
    assert not [each for each in missing if each[0].removesuffix("()") not in _OF_OTHERS]


def _lines() -> Iterator[tuple[str, str, list[Path]]]:
    """Yield each line with its heading, and the folders of names in the line."""
    heading, folders = "", list(_FOLDERS)
    for line in TEXT.splitlines():
        if line.startswith("#"):
            heading, folders = line.lstrip("# "), list(_FOLDERS)
            folders += [f / heading for f in _FOLDERS if heading and (f / heading).is_dir()]
        elif line.startswith("Paths in this section"):
            folders += [ROOT / name for name in re.findall(r"`([\w/]+/)`", line)]
        yield heading, line, list(folders)


def test_its_map_is_that_of_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = (each["layers"] for each in contracts if each["id"] == "rooms")
    assert _shown("__main__") == [set(layer.split(" | ")) for layer in rooms]


def test_the_map_of_the_core_is_that_of_its_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["id"] == "server")
    assert _shown("server ") == [set(re.split(r" [|:] ", layer)) for layer in layers]


def _shown(first: str) -> list[set[str]]:
    """Return the names in each line of the map that begins with a name."""
    lines = (first + TEXT.partition(f"```\n{first}")[2].partition("```")[0]).splitlines()
    return [set(re.split(r"\s{4,}", line)[0].split()) for line in lines]


def test_names_of_tests_have_at_most_50_characters() -> None:
    names = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 2000
    assert not [name for name in names if len(name) > 50]
