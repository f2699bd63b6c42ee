"""Commands in README, CONTRIBUTING and other pages that are not guides: they run, or exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS
from tests.docs.environment import STANDARD, Environment
from tests.docs.shell import Shell
from tests.docs.test_blocks import ASGI, SHOP
from tests.support.servers import ROOT
from wsgifast.commands.cli import command_parser

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    if "{include}" not in path.read_text()[:20]
)
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"(?:pip install|gunicorn|uvicorn|wsgifast) ")
_NAMED = re.compile(r"(?:^|[\s/])(make|python -m|wsgifast) ([a-z][\w.-]*)((?: [^\n`#|]*)?)")
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
# Commands of other projects.
_OTHER_MODULES = {"venv", "pip", "gunicorn", "uvicorn", "http.server"}


def lines_in(text: str) -> list[str]:
    """Return the lines of the blocks of a page that may be commands."""
    blocks = [block for kind, block in _FENCED.findall(text) if kind in ("", "text", "console")]
    return [line for block in blocks for line in block.splitlines()]


def commands_in(text: str) -> list[str]:
    """Return the lines of a page's blocks, and its code in backticks."""
    lines = lines_in(text)
    commands = [line.partition("  #")[0].removeprefix("$ ") for line in lines]
    return commands + re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))


def test_commands_of_readme_run(tmp_path: Path) -> None:
    environment = Environment(tmp_path / ".venv")
    text = (ROOT / "README.md").read_text()
    lines = lines_in(text)
    assert f"pip install '{STANDARD}'" in lines
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite/wsgi.py").write_text(SHOP.replace("app(", "application("))
    with Shell(tmp_path, environment, asks_doctor=False) as shell:
        for line in filter(_RUN.match, lines):
            (tmp_path / "shop.py").write_text(ASGI if "uvicorn" in line else SHOP)
            shell.run(f"$ {line}")


@pytest.mark.parametrize("page", PAGES)
def test_each_named_command_exists(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    parsers = next(a.choices for a in command_parser()._actions if isinstance(a.choices, dict))
    wrong = []
    for command in commands_in((ROOT / page).read_text()):
        for program, name, rest in _NAMED.findall(command):
            own = rest.partition(" -- ")[0]
            if program == "make":
                is_known = name in targets
            elif program == "python -m":
                is_known = name in _OTHER_MODULES or importlib.util.find_spec(name) is not None
            else:
                known = parsers[name]._option_string_actions if name in parsers else {}
                is_known = name in parsers and set(_OPTION.findall(own)) <= known.keys()
            if not is_known:
                wrong.append(command)
    assert wrong == []
