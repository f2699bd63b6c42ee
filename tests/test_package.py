"""The names that the packages export, and what importing them brings along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wsgifast


def test_exported_names() -> None:
    assert sorted(wsgifast.__all__) == [
        "BodyError",
        "ConfigurationError",
        "MissingExtra",
        "StaticFiles",
        "WSGIFast",
        "WSGIFastError",
        "__version__",
        "register_file_wrapper",
    ]
    assert all(hasattr(wsgifast, name) for name in wsgifast.__all__)


@pytest.mark.parametrize("package", ["wsgifast", "asgifast"])
def test_importing_needs_no_extra(package: str) -> None:
    extras = {"gunicorn", "uvicorn", "starlette", "locust", "aiosmtpd", "gevent", "django"}
    code = f"import sys, {package}; print(*(sys.modules.keys() & {extras}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_missing_extra_names_the_way_out() -> None:
    error = wsgifast.MissingExtra("FastWorker", "gunicorn", "gunicorn")
    assert "pip install 'wsgifast[gunicorn]'" in str(error)
    assert isinstance(error, ImportError)
