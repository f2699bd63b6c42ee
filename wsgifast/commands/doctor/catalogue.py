"""The kinds of the doctor's findings, read from findings.md.

It has a section for each, which the documentation shows too. Their ids never change.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from .model import SEVERITIES, Severity


@dataclass(frozen=True)
class Entry:
    """One kind of finding.

    :ivar title: a few words, for lists.
    :ivar what: the observation.
    :ivar why: its cost, and who pays it.
    :ivar wsgifast: the remedy by wsgifast, without a change to the app.
    :ivar fixes: how to fix it in the app, by framework: "WSGI", "Flask", "Django", "FastAPI".
    """

    id: str
    severity: Severity
    title: str
    what: str
    why: str
    wsgifast: str
    fixes: Mapping[str, str]


_FIX = "How to fix it:"
_WITH = "With wsgifast: "


def entry_of(section: str) -> Entry:
    """Return the entry of a section of findings.md.

    A section has the id, the title with the severity, a paragraph about the observation, one about
    its importance, the fixes by framework if there are any, and a paragraph "With wsgifast: ...".

    :raises ValueError: for any other paragraph.
    """
    id_, title, *parts = section.strip().split("\n\n")
    found = re.fullmatch(rf"\*\*([^*]+)\*\* \(({'|'.join(SEVERITIES)})\)", title)
    fixes = parts[2:-1]
    is_whole = len(parts) in (3, 5) and not any(p.startswith((" ", _FIX)) for p in parts[:2])
    if fixes:
        lines = fixes[-1].splitlines()
        is_whole &= fixes[0] == _FIX and all(re.match(r" {4}\w+ +\S", line) for line in lines)
    if found is None or not is_whole or not parts[-1].startswith(_WITH):
        raise ValueError(
            f"findings.md, {id_}: expected **title** (severity), two paragraphs, fixes below "
            f"{_FIX!r} or none, and a paragraph {_WITH!r}"
        )
    what, why, wsgifast = (" ".join(text.split()) for text in (*parts[:2], parts[-1]))
    by_framework = dict(line.split(maxsplit=1) for line in fixes[-1].splitlines()) if fixes else {}
    severity: Any = found[2]
    return Entry(id_, severity, found[1], what, why, wsgifast.removeprefix(_WITH), by_framework)


_TEXT = (pkgutil.get_data(__package__, "findings.md") or b"").decode()
CATALOGUE: Mapping[str, Entry] = {
    entry.id: entry for entry in map(entry_of, _TEXT.removeprefix("## ").split("\n## "))
}


def explain(finding_id: str) -> str:
    """Return the text of `wsgifast doctor --explain`. For "all", return the list of findings.

    :raises ConfigurationError: if there is no such finding.
    """
    if finding_id == "all":
        return "\n".join(f"{e.id}  {e.severity:5}  {e.title}" for e in CATALOGUE.values())
    (known,) = known_ids([finding_id])
    entry = CATALOGUE[known]
    parts = [f"{entry.id} ({entry.severity}): {entry.title}", entry.what, entry.why]
    if entry.fixes:
        width = max(map(len, entry.fixes))
        fixes = [f"  {name:{width}}  {text}" for name, text in entry.fixes.items()]
        parts.append("\n".join(["How to fix it:", *fixes]))
    parts.append(f"With wsgifast: {entry.wsgifast}")
    return "\n\n".join(parts)


def known_ids(given: Iterable[str]) -> set[str]:
    """Ids as they stand in the catalogue.

    :raises ConfigurationError: for one that does not.
    """
    ids = {each.upper() for each in given}
    unknown = sorted(ids - CATALOGUE.keys())
    if unknown:
        raise ConfigurationError(f"there is no finding {unknown[0]}; known: {', '.join(CATALOGUE)}")
    return ids
