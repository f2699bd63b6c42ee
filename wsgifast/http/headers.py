"""A list of headers. Names are compared regardless of case."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from .framing import list_members

Header = tuple[str, str]

# Limits of the cache of names. Most apps and clients use few names, which are short.
_MAX_NAMES = 500
_MAX_NAME_CHARACTERS = 64


class _LowerNames(dict[str, str]):
    """A cache that maps a name to its lower case."""

    def __missing__(self, name: str) -> str:
        lower = name.lower()
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME_CHARACTERS:
            self[name] = lower
        return lower


LOWER = _LowerNames()


_NAME, _VALUE = itemgetter(0), itemgetter(1)


class Headers(list[Header]):
    """A list of (name, value) pairs of str, in the order in which they are sent.

    It is a list because servers, frameworks and comparisons expect a list. Names and values are not
    checked here, but in :mod:`.fields`. The methods expect names in lower case, except :meth:`set`.
    The methods that return Headers do not change the original.
    """

    __slots__ = ()

    @classmethod
    def from_raw(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return Headers from the bytes of ASGI or HTTP/2, decoded from Latin-1."""
        return cls([(str(name, "latin-1"), str(value, "latin-1")) for name, value in raw])

    def raw(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as bytes for ASGI and HTTP/2: Latin-1, names in lower case."""
        return [(LOWER[name].encode("latin-1"), value.encode("latin-1")) for name, value in self]

    def names(self) -> set[str]:
        """Return the names, in lower case."""
        return {LOWER[name] for name, _ in self}

    def by_name(self) -> dict[str, str]:
        """Return a dict from each name, in lower case, to its last value."""
        return dict(zip(map(LOWER.__getitem__, map(_NAME, self)), map(_VALUE, self), strict=True))

    def get(self, name: str) -> str | None:
        """Return the first value of a header. None if there is none."""
        for key, value in self:
            if LOWER[key] == name:
                return value
        return None

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self if LOWER[key] == name]

    def set(self, name: str, value: str) -> None:
        """Replace all headers of a name by one header. Without such a header, append the new one.

        :param name: in the case in which it is sent.
        """
        lower = LOWER[name]
        found = [LOWER[key] for key, _ in self]
        others = self.without((lower,))
        others.insert(found.index(lower) if lower in found else len(others), (name, value))
        self[:] = others

    def without(self, names: Collection[str]) -> Headers:
        """Return the headers whose name is not in `names`."""
        return Headers([header for header in self if LOWER[header[0]] not in names])

    def with_vary(self, on: Sequence[str] = ("Accept-Encoding",)) -> Headers:
        """Return headers with a Vary that also names `on` (RFC 9110, section 12.5.5).

        If there are several Vary headers, the last one is extended.

        :param on: names of request headers on which the response depends.
        """
        varied = Headers(self)
        for name, _ in self:
            if LOWER[name] == "vary":
                varied._merge_vary(on)
                return varied
        varied.append(("Vary", ", ".join(on)))
        return varied

    def _merge_vary(self, on: Sequence[str]) -> None:
        """Add names to the last Vary header."""
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
