"""What tests of compression share over both interfaces."""

from __future__ import annotations

import pytest

from .interfaces import INTERFACES, Ask


@pytest.fixture(params=INTERFACES)
def ask(request: pytest.FixtureRequest) -> Ask:
    return INTERFACES[request.param]
