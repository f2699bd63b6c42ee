"""Fixtures for the tests of coalescing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.sockets.support import FakeSocket


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeSocket]]:
    """Make fake sockets that are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *takes: stack.enter_context(FakeSocket(takes or (1 << 40,)))
