"""The project of examples/django_project, with a small tree of static files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import django_project


@pytest.fixture(scope="session", autouse=True)
def data() -> Path:
    """Where the project's data is."""
    return django_project.set_up()
