"""The blocks of a page of the documentation, in the reader's order.

A block's language decides how it is tested:

- `python` and `console` run.
- The program of a configuration reads it.
- `text` is the output of a command.
- A `diff` with the first line ``--- shop.py`` changes that file. Any other `diff` is only shown.

Lines that a page does not show are in comments: ``<!-- files`` writes files, ``<!-- python`` is
Python. A shop.py always exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The guides.
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in [DOCS / "tutorial.md", *DOCS.glob("how-to/*.md"), *DOCS.glob("moving/*.md")]
]
README = (DOCS.parent / "README.md").read_text()
_ADOPTED = README.partition("## Add it to your app")[2].partition("\n## ")[0]
_FENCE = re.compile(
    r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$"
    r"|^<!-- (?P<comment>files|python)\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
# A file's name: the first line of a Python block ("# shop.py", or "# shop.py, at the end"). Among
# hidden files it is a separate line.
_NAME = re.compile(r"(?:# )?(?P<name>[\w/.-]+\.(?:py|txt|log|html))(?P<end>, at the end)?")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    :ivar language: as the page names it, or "files" or "python" for a comment.
    :ivar line: the number of its first line.
    :ivar hidden: whether it is in a comment.
    """

    page: str
    line: int
    language: str
    text: str
    hidden: bool

    @property
    def name(self) -> str | None:
        """Return the name of the file that a Python block is."""
        found = self._first_line()
        return found["name"] if found else None

    @property
    def changes(self) -> str | None:
        """Return the name of the file that a diff changes."""
        first = self.text.partition("\n")[0]
        is_applied = self.language == "diff" and first.startswith("--- ")
        return first.removeprefix("--- ") if is_applied else None

    @property
    def at_the_end(self) -> bool:
        """Return whether the block belongs to an existing file."""
        found = self._first_line()
        return found is not None and found["end"] is not None

    def _first_line(self) -> re.Match[str] | None:
        return _NAME.fullmatch(self.text.partition("\n")[0]) if self.text[:2] == "# " else None

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return all blocks of a page, in their order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["comment"] or found["language"].strip(),
            found["hidden"] or found["text"] or "",
            found["comment"] is not None,
        )
        for found in _FENCE.finditer(text)
    ]


def files_in(block: Block) -> Iterator[tuple[str, str]]:
    """Return the names and the contents of hidden files."""
    name, lines = "", list[str]()
    for line in block.text.splitlines(keepends=True):
        if found := _NAME.fullmatch(line.rstrip("\n")):
            if name:
                yield name, "".join(lines)
            name, lines = found["name"], []
        else:
            lines.append(line)
    yield name, "".join(lines)


def patched(block: Block, text: str) -> str:
    """Return a file's text after a diff. ``@@`` separates the hunks."""
    for hunk in block.text.partition("\n")[2].split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = (
            "".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        assert text.count(old) == 1, f"{block}: these lines are there once:\n{old}"
        text = text.replace(old, new)
    return text


def adopted_lines(framework: str) -> str:
    """Return README's Python lines for a framework."""
    found = re.search(rf"\*\*{framework}\*\*.*?```python\n(.*?)```", _ADOPTED, re.DOTALL)
    assert found is not None
    return found[1]


def djangos_replaced(wsgi: str) -> str:
    """Return a wsgi.py of Django with the import that README names."""
    text = r"import `get_wsgi_application` from `([\w.]+)` in place of `([\w.]+)`"
    ours, djangos = re.findall(text, _ADOPTED)[0]
    assert djangos in wsgi
    return wsgi.replace(djangos, ours)
