"""A test with a `kind` runs on every kind of development server."""

from __future__ import annotations

import pytest

from .serving import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen
