"""The project of examples/django_project, with a small tree of static files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.urls import clear_script_prefix

from tests.support import django_project


@pytest.fixture(scope="session", autouse=True)
def data() -> Path:
    """The folder with the project's data."""
    return django_project.set_up()


@pytest.fixture(autouse=True)
def script_prefix() -> Iterator[None]:
    """Forget that of the last request: Django puts it in front of a relative STATIC_URL.

    Before the first one too: tests elsewhere have requests of Django in the same process.
    """
    clear_script_prefix()
    yield
    clear_script_prefix()
