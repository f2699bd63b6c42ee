"""Headers: a list of fields with names that compare without case, for both halves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from .framing import list_members

Header = tuple[str, str]

# Names that are remembered in lower case. Apps and clients use a few, and none of them is long.
_MAX_NAMES = 500
_MAX_NAME_CHARACTERS = 64


class _LowerNames(dict[str, str]):
    """Maps names to their lower case, so that each one is lower-cased once in a process."""

    def __missing__(self, name: str) -> str:
        lower = name.lower()
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME_CHARACTERS:
            self[name] = lower
        return lower


# Maps a name to its lower case.
LOWER = _LowerNames()


_NAME, _VALUE = itemgetter(0), itemgetter(1)


class Headers(list[Header]):
    """A list of (name, value) pairs of str, in the order in which they are sent.

    It is a list because servers, frameworks and comparisons take one. Nothing is checked here: see
    :mod:`.fields` for that. Every method takes names in lower case, except those that add a header.
    The methods that return Headers leave the original unchanged.
    """

    __slots__ = ()

    @classmethod
    def from_raw(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of an ASGI message or of HTTP/2, which are in latin-1."""
        return cls([(str(name, "latin-1"), str(value, "latin-1")) for name, value in raw])

    def raw(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as ASGI and HTTP/2 have them: in latin-1, names in lower case."""
        return [(LOWER[name].encode("latin-1"), value.encode("latin-1")) for name, value in self]

    def names(self) -> set[str]:
        """Return the names, in lower case."""
        return {LOWER[name] for name, _ in self}

    def by_name(self) -> dict[str, str]:
        """Return the last value of each name, which is in lower case."""
        return dict(zip(map(LOWER.__getitem__, map(_NAME, self)), map(_VALUE, self), strict=True))

    def get(self, name: str) -> str | None:
        """Return the first value of a header. None without one."""
        for key, value in self:
            if LOWER[key] == name:
                return value
        return None

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self if LOWER[key] == name]

    def set(self, name: str, value: str) -> None:
        """Replace all headers of a name by one, at the place of the first, or add it at the end.

        :param name: as it is sent.
        """
        lower = LOWER[name]
        found = [LOWER[key] for key, _ in self]
        others = self.without((lower,))
        others.insert(found.index(lower) if lower in found else len(others), (name, value))
        self[:] = others

    def without(self, names: Collection[str]) -> Headers:
        """Return the headers that have none of some names."""
        return Headers([header for header in self if LOWER[header[0]] not in names])

    def with_vary(self, on: Sequence[str] = ("Accept-Encoding",)) -> Headers:
        """Return headers that say that the response depends on some of the request's.

        They are added to the last Vary (RFC 9110, section 12.5.5).

        :param on: the names of the request's headers.
        """
        varied = Headers(self)
        for name, _ in self:
            if LOWER[name] == "vary":
                varied._merge_vary(on)
                return varied
        varied.append(("Vary", ", ".join(on)))
        return varied

    def _merge_vary(self, on: Sequence[str]) -> None:
        """Add names to the last Vary that there is."""
        at = 0
        for index, (name, value) in enumerate(self):
            if LOWER[name] == "vary":
                members = list_members(value)
                if "*" in members:
                    return
                on = [each for each in on if LOWER[each] not in members]
                at = index
        name, value = self[at]
        if on and value.strip(" \t,"):
            self[at] = name, ", ".join([value, *on])
        elif on:
            self.append(("Vary", ", ".join(on)))
