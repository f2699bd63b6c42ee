"""Fixtures for the tests of the SMTP client."""

from __future__ import annotations

import pytest

from tests.mail.scripted import FEATURES


@pytest.fixture(params=FEATURES)
def features(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return FEATURES[request.param]
