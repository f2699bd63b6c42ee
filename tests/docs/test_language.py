"""The prose of pages, help texts and code: short sentences, and the terms of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import DOCS, command_line

ROOT = DOCS.parent
FINDINGS = ROOT / "wsgifast" / "commands" / "doctor" / "findings.md"
_FIRST_PAGES = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
# One page, or all pages of a folder, each with the same limits.
PLACES = (
    *sorted(path for path in DOCS.iterdir() if any(path.glob("*.md"))),
    *sorted(DOCS.glob("*.md")),
    *(ROOT / f"{name}.md" for name in _FIRST_PAGES),
    FINDINGS,
)
CODE = ("wsgifast", "asgi", "tests", "loadtests")
GUIDES = (DOCS / "how-to", DOCS / "moving", DOCS / "tutorial.md")
# The limits of all pages in docs/.
_MAX_WHATS = 25
# The limits of the comments and docstrings of the packages, and of the tests.
_MAX_WHATS_IN_CODE = 60

# Everyday words in place of a term of the field: headers, response, cached, compressed, logged, ...
_UNWANTED = re.compile(
    r"\b(?:(?:un)?coded|kept|held|siblings?|mend(?:s|ed)|rescued|asked|told|facts"
    # The verb "answer" and HEAD are allowed.
    r"|heads?|(?:an?|the|each|every|this|that|no|its|whole|small|first|error) answers?)\b"
)
# A word in a name: `_kept`, `CodedSize`.
_UNWANTED_IN_NAMES = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:(?:un)?coded|kept|held|siblings?|mended|rescued|asked|told)"
    r"(?![a-z])"
)
_HIDDEN = re.compile(
    r"\A---\n.*?\n---\n|^```.*?^```$|^<!--.*?-->$|^    .*?$|<[^>]+>",
    re.MULTILINE | re.DOTALL,
)
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(\[*]*[A-Z0-9`])")
_WORD = re.compile(r"[A-Za-z0-9][\w'/.+-]*")
_YOU = re.compile(r"\byou(?:r|rs|rself)?\b", re.IGNORECASE)


def _pages(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.glob("*.md"))


def _visible(text: str) -> str:
    """Return the text without blocks of code. Inline code and links become one word each."""
    text = _HIDDEN.sub("", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]+`", "code", text)


def _sentences(text: str) -> Iterator[str]:
    """Return the sentences of paragraphs and list items, without rows of tables and headings."""
    paragraphs = [""]
    for line in _visible(text).splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "|", ">")):
            paragraphs.append("")
        elif _ITEM.match(bare):
            paragraphs.append(_ITEM.sub("", bare, count=1))
        else:
            paragraphs[-1] += f" {bare}"
    for paragraph in paragraphs:
        yield from (each for each in _END.split(paragraph.strip()) if len(_WORD.findall(each)) >= 3)


def _all_sentences(place: Path) -> list[str]:
    return [each for page in _pages(place) for each in _sentences(page.read_text())]


@pytest.mark.parametrize("place", PLACES, ids=lambda path: path.name)
def test_sentences_are_short(place: Path) -> None:
    sentences = _all_sentences(place)
    words = sorted((len(_WORD.findall(each)), each) for each in sentences)
    long = [each for each in words if each[0] > 30]
    assert words[int(len(words) * 0.9)][0] <= 25, words[-5:]
    assert len(long) <= 0.03 * len(words), long
    semicolons = [each for each in sentences if ";" in each]
    assert len(semicolons) <= 0.02 * len(sentences), semicolons


def test_pages_seldom_use_a_clause_as_a_noun() -> None:
    """Count the word "what", as in "what a head lacks" for "missing headers"."""
    found = [
        each
        for path in DOCS.rglob("*.md")
        for each in _sentences(path.read_text())
        for _ in re.findall(r"\bwhat\b", each, re.IGNORECASE)
    ]
    assert len(found) <= _MAX_WHATS, found


@pytest.mark.parametrize("place", GUIDES, ids=lambda path: path.name)
def test_guides_address_the_reader(place: Path) -> None:
    sentences = _all_sentences(place)
    assert len(_YOU.findall(" ".join(sentences))) >= 0.2 * len(sentences)


@pytest.mark.parametrize("place", PLACES, ids=lambda path: path.name)
def test_pages_use_the_terms_of_the_field(place: Path) -> None:
    found = [
        f"{page.name}: {line}"
        for page in _pages(place)
        for line in _visible(page.read_text()).splitlines()
        if _UNWANTED.search(line)
    ]
    assert not found, "\n".join(found)


def test_help_texts_use_the_terms_of_the_field() -> None:
    assert not _UNWANTED.findall(_visible(command_line()))


def _comments(source: str) -> Iterator[str]:
    """Return the comments of a module. Comments on consecutive lines are joined."""
    comment, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                yield comment
                comment = ""
            comment += " " + token.string.lstrip("# ")
            last = line
    yield comment


def _docstrings(source: str) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", CODE)
def test_code_has_few_semicolons_in_its_prose(folder: str) -> None:
    sentences, with_semicolons = 0, []
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text()
        for text in (*_docstrings(source), *_comments(source)):
            prose = re.sub(r"``?[^`]*``?", "code", text)
            for each in _END.split(prose):
                if len(_WORD.findall(each)) >= 3:
                    sentences += 1
                    if ";" in each:
                        with_semicolons.append(f"{path.name}: {each}")
    assert len(with_semicolons) <= 0.03 * sentences, "\n".join(with_semicolons)


@pytest.mark.parametrize("folders", [("wsgifast", "asgi"), ("tests",)])
def test_code_seldom_uses_a_clause_as_a_noun(folders: tuple[str, ...]) -> None:
    found = [
        text
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for source in (path.read_text(),)
        for text in (*_docstrings(source), *_comments(source))
        for _ in re.findall(r"\bwhat\b", text, re.IGNORECASE)
    ]
    assert len(found) <= _MAX_WHATS_IN_CODE, found


@pytest.mark.parametrize("folder", CODE)
def test_names_use_the_terms_of_the_field(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and _UNWANTED_IN_NAMES.search(token.string)
    ]
    assert not found, "\n".join(found)


_UNWANTED_IN_COMMENTS = re.compile(
    r"\b(?:(?:un)?coded|kept|held|siblings?|mend(?:s|ed)|rescued|asked|told|heads?"
    # "That answers" and "first answers" may be verbs.
    r"|an answer|(?:the|each|every|its|whole|small|first|error) answer)\b"
)


@pytest.mark.parametrize("folder", CODE)
def test_comments_use_the_terms_of_the_field(folder: str) -> None:
    found = []
    for path in {*(ROOT / folder).rglob("*.py")} - {Path(__file__)}:  # it names them
        source = path.read_text()
        for text in (*_docstrings(source), *_comments(source)):
            prose = re.sub(r"``?[^`]*``?", "code", text)
            words = _UNWANTED_IN_COMMENTS.findall(prose)
            found += [f"{path.relative_to(ROOT)}: {words}: {text[:200]}"] if words else []
    assert not found, "\n".join(sorted(found))
