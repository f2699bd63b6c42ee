"""Finds the numbers that a pre_fork hook gives to workers, by the hook's changes.

These are numbers of a worker:

- its attributes that are new.
- variables of the environment, globals of the hook's module and attributes of the arbiter.
- entries of dicts and lists among these, with the worker or its age as the key or the value.

All but attributes are numbers only if the hook has given several values: it may be a flag.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_MISSING = object()


class GivenNumbers:
    """The numbers of one worker, and the places of those that are not its attributes.

    :ivar numbers: by the names of their places.
    :ivar variables: as `numbers`, with those that may be flags.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, object] = {}
        self.variables: dict[str, object] = {}
        self._changes: list[tuple[Any, Any, object]] = []

    def note(self, name: str, number: object, change: tuple[Any, Any, object]) -> None:
        """Note a number, and a place with its key and value."""
        self.variables[name] = number
        self._changes.append(change)

    def restore(self) -> None:
        """Put the numbers into their places again. A hook may have removed them meanwhile."""
        for place, key, value in self._changes:
            if not isinstance(place, list) or key < len(place):
                place[key] = value


class NumberSearch:
    """Calls pre_fork hooks, and finds the numbers that they give."""

    def __init__(self) -> None:
        # All values that the hooks have given to a variable.
        self._seen: dict[str, set[object]] = {}

    def call(self, hook: Callable[[Any, Any], object], server: Any, worker: Any) -> GivenNumbers:
        """Call a hook, and set the worker's attribute `given`."""
        attributes = set(vars(worker))
        own = {
            "environ": os.environ,
            "globals": getattr(hook, "__globals__", {}),
            "server": vars(server),
        }
        inner = {
            f"{name}.{key}": value
            for name in ("globals", "server")
            for key, value in own[name].items()
            if type(value) in (dict, list) and not key.startswith("__")
        }
        before = {name: _entries(place) for name, place in (own | inner).items()}
        hook(server, worker)
        given = GivenNumbers()
        for name, place in own.items():
            self._note_variables(given, name, place, before[name])
        for name, place in inner.items():
            for key, value in _entries(place).items():
                number = _number_in(worker, key, value)
                if before[name].get(key, _MISSING) is not value and _is_number(number):
                    self._note(given, name, number, (place, key, value))
        given.numbers = {n: v for n, v in given.variables.items() if len(self._seen[n]) > 1}
        new = {name: value for name, value in vars(worker).items() if name not in attributes}
        given.numbers |= {name: value for name, value in new.items() if _is_number(value)}
        worker.given = given
        return given

    def _note_variables(
        self, given: GivenNumbers, name: str, place: Any, before: dict[Any, object]
    ) -> None:
        for key, value in list(place.items()):
            if place is os.environ or _is_number(value):
                variable = f"{name}.{key}"
                if variable in self._seen or before.get(key) != value:
                    self._note(given, variable, value, (place, key, value))

    def _note(
        self, given: GivenNumbers, name: str, number: object, change: tuple[Any, Any, object]
    ) -> None:
        self._seen.setdefault(name, set()).add(number)
        given.note(name, number, change)


def numbers_of(worker: Any) -> dict[str, object]:
    """Return candidates for a worker's numbers: its attributes, and those of the hook."""
    given = getattr(worker, "given", None)
    return {**({} if given is None else given.variables), **vars(worker)}


def _entries(place: Any) -> dict[Any, object]:
    return dict(enumerate(place)) if isinstance(place, list) else dict(place)


def _number_in(worker: Any, key: object, value: object) -> object:
    """Return the number that an entry gives to a worker, or None."""
    if key is worker or key == worker.age:
        return value
    return key if value is worker or value == worker.age else None


def _is_number(value: object) -> bool:
    """Return whether a value may be a number or a name with one."""
    return type(value) is int or (type(value) is str and any(map(str.isdecimal, value)))
