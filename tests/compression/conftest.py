"""Fixtures for the compression tests of both interfaces."""

from __future__ import annotations

import pytest

from .interfaces import INTERFACES, Ask


@pytest.fixture(params=INTERFACES)
def ask(request: pytest.FixtureRequest) -> Ask:
    return INTERFACES[request.param]
