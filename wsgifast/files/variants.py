"""Accept-Encoding: which of a file's encodings to send (RFC 9110, section 12.5.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..http.syntax import TOKEN

__all__ = ["preferred_coding"]

# Different headers that are remembered, for each set of encodings that a file may have. Browsers
# send a handful of them; longer ones than this many characters are parsed each time, so that a
# client cannot fill the memory.
_REMEMBERED_HEADERS = 512
_REMEMBERED_CHARACTERS = 128

# A coding or `*`, and its weight in thousandths at the finest. What does not look so is skipped.
_MEMBER = re.compile(rf"({TOKEN})(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{{0,3}})?|1(?:\.0{{0,3}})?))?")
# Names that mean the same (section 8.4.1).
_ALIASES = {"x-gzip": "gzip", "x-compress": "compress"}


def preferred_coding(accept_encoding: str, available: tuple[str, ...]) -> str | None:
    """Return the coding that the client likes best, or None to send the file as it is.

    :param accept_encoding: the header's value. A request without the header takes any coding
        (section 12.5.3), and is best sent none: do not ask.
    :param available: codings in lower case, the server's favourite first: it decides between those
        of the same weight.

    A client that refuses identity and every coding available gets identity all the same, which
    section 12.4.1 allows: the file is of more use than a 406.
    """
    if len(accept_encoding) > _REMEMBERED_CHARACTERS:
        return _preferred(accept_encoding, available)
    return _remembered(accept_encoding, available)


def _preferred(accept_encoding: str, available: Sequence[str]) -> str | None:
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match:
            coding = match[1].lower()
            weights[_ALIASES.get(coding, coding)] = float(match[2] or 1)
    others = weights.get("*", 0.0)
    # At the same weight, a coding that the client names goes before the file itself, which is
    # larger, and that before a coding that only `*` lets pass: who sends `*` alone is as a rule a
    # program that decodes nothing.
    choices = [*(c for c in available if c in weights), "identity"]
    choices += (c for c in available if c not in weights)
    best = max(choices, key=lambda coding: weights.get(coding, others))
    return best if best != "identity" and weights.get(best, others) else None


_remembered = lru_cache(_REMEMBERED_HEADERS)(_preferred)
