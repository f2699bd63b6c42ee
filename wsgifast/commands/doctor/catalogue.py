"""Read the catalogue of the doctor's findings from the file findings.md.

The file has a section for each kind of finding. The documentation shows the same sections. The id
of a finding never changes.
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
    :ivar why: the effect of the observed response on the server or the client.
    :ivar wsgifast: what wsgifast does about the finding without a change of the app.
    :ivar fixes: maps names of frameworks to changes of the app that fix the finding. The names are
        "WSGI", "Flask", "Django" and "FastAPI".
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


def parse_entry(section: str) -> Entry:
    """Parse a section of findings.md.

    A section consists of these paragraphs:

    1. the id
    2. the title, and the severity in parentheses
    3. the observation
    4. the effect
    5. optionally "How to fix it:" and a list of fixes by framework
    6. "With wsgifast: ..."

    :raises ValueError: if the section has other paragraphs.
    """
    id_, title, *parts = section.strip().split("\n\n")
    found = re.fullmatch(rf"\*\*([^*]+)\*\* \(({'|'.join(SEVERITIES)})\)", title)
    fixes = parts[2:-1]
    is_complete = len(parts) in (3, 5) and not any(p.startswith((" ", _FIX)) for p in parts[:2])
    if fixes:
        lines = fixes[-1].splitlines()
        is_complete &= fixes[0] == _FIX and all(re.match(r" {4}\w+ +\S", line) for line in lines)
    if found is None or not is_complete or not parts[-1].startswith(_WITH):
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
    entry.id: entry for entry in map(parse_entry, _TEXT.removeprefix("## ").split("\n## "))
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


def known_ids(names: Iterable[str]) -> set[str]:
    """Return ids of findings in upper case.

    :raises ConfigurationError: if the catalogue does not contain an id.
    """
    ids = {each.upper() for each in names}
    unknown = sorted(ids - CATALOGUE.keys())
    if unknown:
        known = ", ".join(CATALOGUE)
        raise ConfigurationError(f"{unknown[0]} is not the id of a finding. The ids are: {known}")
    return ids
