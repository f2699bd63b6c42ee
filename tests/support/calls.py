"""Records of the calls of a function, which does its work as before."""

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
