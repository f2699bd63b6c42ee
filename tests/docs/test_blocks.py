"""Every block of code in the tutorial, the how-to guides and the pages on moving."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, PAGES, Block, blocks, files_in, patched
from tests.docs.configurations import CHECKS
from tests.docs.environment import STANDARD, Environment
from tests.docs.shell import Shell
from tests.support import forkserver
from tests.support.servers import ROOT

pytestmark = pytest.mark.long

CODE = {page: blocks(page) for page in PAGES}
CONFIGURATIONS = [block for page in PAGES for block in CODE[page] if block.language in CHECKS]
ABOUT_THE_DOCTOR = ("tutorial.md", "how-to/doctor.md")
KNOWN = {"python", "console", "files", *CHECKS}
# Output, and blocks for Sphinx.
SHOWN = ("text", "diff", "{")
# Pages with commands for any app. The page of the command line is generated, and only shows usages.
REFERENCES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.glob("reference/*.md")
    if path.name != "command-line.md"
)
COMMAND = re.compile(r"(\$ )?(pip install|gunicorn|uvicorn|wsgifast) ")
ASGI = """\
async def app(scope, receive, send):
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello\\n"})


def create_app():
    return app
"""
# The app that a page's commands serve if the page has no app.
SHOP = """\
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "6")])
    return [b"hello\\n"]


def create_app():
    return app
"""


def test_block_has_a_known_language() -> None:
    every = [block for page in PAGES for block in CODE[page]]
    unknown = [b for b in every if b.language not in KNOWN and not b.language.startswith(SHOWN)]
    assert not unknown, [str(block) for block in unknown]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if {"python", "console"} & {b.language for b in CODE[p]}]
)
def test_page_runs_as_written(page: str, tmp_path: Path) -> None:
    """Run its commands in their order, in the middle of its files, and then its Python.

    For the commands, Python without a name belongs to the file above it.
    """
    last = ""
    environment = Environment(tmp_path / ".venv")
    install = re.compile(r"^\$ pip install .*wsgifast", re.MULTILINE)
    if not any(install.search(block.text) for block in CODE[page]):
        environment.install(f"pip install '{STANDARD}'")
    with Shell(tmp_path, environment, asks_doctor=page in ABOUT_THE_DOCTOR) as shell:
        shell.write("shop.py", SHOP)
        for block in CODE[page]:
            if block.language == "files":
                for name, text in files_in(block):
                    shell.write(name, text)
            elif block.language == "python" and not block.hidden and (block.name or last):
                append = block.name is None or block.at_the_end
                shell.write(block.name or last, block.text, append=append)
                last = block.name or last
            elif block.changes:
                shell.write(block.changes, patched(block, (tmp_path / block.changes).read_text()))
            elif block.language == "console":
                shell.run(block.text)
            elif block.language == "text":
                _compare(block, shell.output)
    _run_python(page, tmp_path)


@pytest.mark.parametrize("page", ["index.md", "install.md", *REFERENCES])
def test_commands_of_other_pages_run(page: str, tmp_path: Path) -> None:
    """Run the commands of a block. `module` and `shop` are apps of the served kind."""
    environment = Environment(tmp_path / ".venv")
    environment.install(f"pip install '{STANDARD}'")
    lines = [
        line.removeprefix("$ ")
        for block in blocks(page)
        if block.language in ("text", "console")
        for line in block.text.splitlines()
        if COMMAND.match(line)
    ]
    with Shell(tmp_path, environment, asks_doctor=False) as shell:
        for line in lines:
            for name in ("module.py", "shop.py"):
                (tmp_path / name).write_text(ASGI if "vicorn" in line else SHOP)
            shell.run(f"$ {line}")


def _compare(block: Block, output: str) -> None:
    """The figures differ. The findings of the doctor do not."""
    for finding in re.findall(r"^WF\d{3} ", block.text, re.MULTILINE):
        assert finding in output, f"{block}: {finding}\n{output}"


def _run_python(page: str, folder: Path) -> None:
    with (folder / "output").open("w+") as output:
        process = forkserver.start(
            [sys.executable, "-m", "tests.docs.run_python", page, str(folder)],
            cwd=ROOT,
            env=os.environ,
            output=output,
        )
        status = process.wait(60)
        output.seek(0)
        assert status == 0, output.read()


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=str)
def test_configuration_is_accepted_by_its_program(block: Block, tmp_path: Path) -> None:
    CHECKS[block.language](block.text, tmp_path)
