"""ARCHITECTURE.md describes the current tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def test_each_module_that_it_names_is_there() -> None:
    """A name without its folder is in the folder that its row names before it."""
    missing = []
    for row in re.findall(r"^\|.*\|$", TEXT, re.MULTILINE):
        folders = [ROOT / "wsgifast", ROOT]
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", row):
            path = next((f / name for f in folders if (f / name).exists()), None)
            if path is None:
                missing.append((name, row))
            elif "/" in name:
                folders.append(path if path.is_dir() else path.parent)
    assert not missing


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
