"""What the tests of coalescing share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.sockets.support import FakeSocket


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeSocket]]:
    """Makes fake sockets, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *takes: stack.enter_context(FakeSocket(takes or (1 << 40,)))
