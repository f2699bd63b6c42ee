"""Find the numbers that gunicorn's pre_fork hook assigns to workers.

Users' hooks number their workers, for example to choose a port for each worker. The search compares
variables before and after a call of the hook. A hook may store a worker's number in:

- a new attribute of the worker.
- an environment variable, a global of the hook's module, or an attribute of the arbiter.
- an entry of a dict or list in such a global or attribute. An entry either maps the worker or its
  age to the number, or maps the number to the worker or its age.

A new attribute of the worker always counts as a number. A changed variable of another kind may be a
flag. So its values count as numbers only after hooks have assigned several different values to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_MISSING = object()


class HookNumbers:
    """The numbers of one worker, and the variables in which the hook has stored them.

    :ivar numbers: the worker's numbers, by name of the variable or attribute.
    :ivar variables: the values of the variables that hooks have changed, which may also be flags.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, object] = {}
        self.variables: dict[str, object] = {}
        self._changes: list[tuple[Any, Any, object]] = []

    def note(self, name: str, number: object, change: tuple[Any, Any, object]) -> None:
        """Add a number, and the container, key and value of its variable."""
        self.variables[name] = number
        self._changes.append(change)

    def restore(self) -> None:
        """Assign the variables again, because hooks for other workers may have changed them."""
        for place, key, value in self._changes:
            if not isinstance(place, list) or key < len(place):
                place[key] = value


class NumberSearch:
    """Calls pre_fork hooks, and finds the numbers that they assign."""

    def __init__(self) -> None:
        # All values that hooks have assigned to each variable.
        self._assigned_values: dict[str, set[object]] = {}

    def call(self, hook: Callable[[Any, Any], object], server: Any, worker: Any) -> HookNumbers:
        """Call a hook, and set the worker's attribute `hook_numbers`."""
        attributes = set(vars(worker))
        scopes = {
            "environ": os.environ,
            "globals": getattr(hook, "__globals__", {}),
            "server": vars(server),
        }
        containers = {
            f"{name}.{key}": value
            for name in ("globals", "server")
            for key, value in scopes[name].items()
            if type(value) in (dict, list) and not key.startswith("__")
        }
        before = {name: _entries(place) for name, place in (scopes | containers).items()}
        hook(server, worker)
        found = HookNumbers()
        for name, place in scopes.items():
            self._note_variables(found, name, place, before[name])
        for name, place in containers.items():
            for key, value in _entries(place).items():
                number = _number_in(worker, key, value)
                if before[name].get(key, _MISSING) is not value and _is_number(number):
                    self._note(found, name, number, (place, key, value))
        found.numbers = {
            n: v for n, v in found.variables.items() if len(self._assigned_values[n]) > 1
        }
        new = {name: value for name, value in vars(worker).items() if name not in attributes}
        found.numbers |= {name: value for name, value in new.items() if _is_number(value)}
        worker.hook_numbers = found
        return found

    def _note_variables(
        self, found: HookNumbers, name: str, place: Any, before: dict[Any, object]
    ) -> None:
        for key, value in list(place.items()):
            if place is os.environ or _is_number(value):
                variable = f"{name}.{key}"
                if variable in self._assigned_values or before.get(key) != value:
                    self._note(found, variable, value, (place, key, value))

    def _note(
        self, found: HookNumbers, name: str, number: object, change: tuple[Any, Any, object]
    ) -> None:
        self._assigned_values.setdefault(name, set()).add(number)
        found.note(name, number, change)


def numbers_of(worker: Any) -> dict[str, object]:
    """Return values that may be numbers of a worker: its attributes and the hook's variables."""
    found = getattr(worker, "hook_numbers", None)
    return {**({} if found is None else found.variables), **vars(worker)}


def _entries(container: Any) -> dict[Any, object]:
    return dict(enumerate(container)) if isinstance(container, list) else dict(container)


def _number_in(worker: Any, key: object, value: object) -> object:
    """Return the number that an entry of a dict or list assigns to a worker, or None."""
    if key is worker or key == worker.age:
        return value
    return key if value is worker or value == worker.age else None


def _is_number(value: object) -> bool:
    """Return whether a value may be a number, or a string that contains one."""
    return type(value) is int or (type(value) is str and any(map(str.isdecimal, value)))
