"""Functions in place of others: they record their calls, or raise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def recorded(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    note: Callable[..., Any] = lambda *args, **options: args,
) -> list[Any]:
    """Return a list that gets an item for each call of a function or method from now on.

    :param note: makes the item of the arguments. The default is the positional ones.
    """
    calls: list[Any] = []
    original = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        calls.append(note(*args, **options))
        return original(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


def raising(error: BaseException | type[BaseException], *said: object) -> Callable[..., Any]:
    """Return a function that raises an error with any arguments.

    :param said: the arguments of a class of errors.
    """

    def fail(*args: object, **options: object) -> Any:
        raise error(*said) if isinstance(error, type) else error

    return fail
