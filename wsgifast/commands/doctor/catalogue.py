"""The doctor's findings: what each is, what it costs, how to fix it. Their ids never change.

findings.md has their text, a section for each; the documentation shows it too.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import ConfigurationError
from .model import SEVERITIES, Severity


@dataclass(frozen=True)
class Entry:
    """One kind of finding.

    :ivar title: a few words, for lists.
    :ivar what: what was seen.
    :ivar why: what it costs, and whom.
    :ivar wsgifast: what wsgifast does about it without a change to the app.
    :ivar fixes: how to fix it in the app, by framework: "WSGI", "Flask", "Django", "FastAPI".
    """

    id: str
    severity: Severity
    title: str
    what: str
    why: str
    wsgifast: str
    fixes: Mapping[str, str]


def _entry(section: str) -> Entry:
    """An entry of a section of findings.md: id, title and severity, paragraphs, fixes."""
    id_, head, what, why, *fixes, wsgifast = section.strip().split("\n\n")
    title, _, severity = head.strip("*)").partition("** (")
    assert severity in SEVERITIES
    return Entry(
        id_,
        severity,
        title,
        " ".join(what.split()),
        " ".join(why.split()),
        " ".join(wsgifast.split()).removeprefix("What wsgifast does: "),
        dict(line.split(maxsplit=1) for line in fixes[-1].splitlines()) if fixes else {},
    )


_TEXT = (pkgutil.get_data(__package__, "findings.md") or b"").decode()
CATALOGUE: Mapping[str, Entry] = {
    entry.id: entry for entry in map(_entry, _TEXT.removeprefix("## ").split("\n## "))
}


def explain(finding_id: str) -> str:
    """The text of `wsgifast doctor --explain`: of one finding, or for "all" their list.

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
    parts.append(f"What wsgifast does: {entry.wsgifast}")
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
