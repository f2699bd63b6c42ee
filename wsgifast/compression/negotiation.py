"""Accept-Encoding: the choice among a file's encodings (RFC 9110, section 12.5.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..http.head import TOKEN

# Parsed headers that are remembered. Browsers send a handful of them; longer ones are parsed each
# time, so that a client cannot fill the memory.
_REMEMBERED_HEADERS = 512
_REMEMBERED_CHARACTERS = 128

# A coding or `*`, and its weight with up to three decimals. Malformed members are skipped.
_MEMBER = re.compile(rf"({TOKEN})(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{{0,3}})?|1(?:\.0{{0,3}})?))?")
# Names that mean the same (section 8.4.1).
_ALIASES = {"x-gzip": "gzip", "x-compress": "compress"}


def preferred_coding(accept_encoding: str, available: tuple[str, ...]) -> str | None:
    """Return the coding that the client prefers, or None to send the file as it is.

    A client that refuses identity and every available coding gets identity all the same, as section
    12.4.1 allows: the file is more useful than a 406.

    :param accept_encoding: the header's value. Without the header any coding is acceptable (section
        12.5.3), but identity is the safe choice: do not call this.
    :param available: codings in lower case, those that the server prefers first: they decide
        between equal weights.
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
    # At equal weights, a coding that the client names comes before identity, which is larger, and
    # identity before a coding that only `*` matches: clients that send `*` alone often decode none.
    choices = [*(c for c in available if c in weights), "identity"]
    choices += (c for c in available if c not in weights)
    best = max(choices, key=lambda coding: weights.get(coding, others))
    return best if best != "identity" and weights.get(best, others) else None


_remembered = lru_cache(_REMEMBERED_HEADERS)(_preferred)
