"""`manage.py check` and `runserver`, with the settings of a project that moves from WhiteNoise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from tests.support import forkserver
from tests.support.servers import ROOT

OURS = "wsgifast.django.StaticFilesMiddleware"
WHITENOISE = "whitenoise.middleware.WhiteNoiseMiddleware"
SECURITY = "django.middleware.security.SecurityMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"


def ids(**changed: Any) -> list[str]:
    from wsgifast.django.checks import check_production, check_settings

    with override_settings(**changed):
        return [message.id for message in (*check_settings(), *check_production())]


def test_nothing_is_said_of_the_project() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"MIDDLEWARE": [SECURITY, OURS, WHITENOISE]}, ["wsgifast.W001"]),
        ({"MIDDLEWARE": [SECURITY, WHITENOISE, OURS]}, ["wsgifast.W001"]),
        ({"MIDDLEWARE": [OURS, SECURITY]}, ["wsgifast.W002"]),
        ({"MIDDLEWARE": [SECURITY, SESSIONS, OURS]}, ["wsgifast.W002"]),
        ({"MIDDLEWARE": [SECURITY, "wsgifast.django.middleware.StaticFilesMiddleware"]}, []),
        ({"MIDDLEWARE": [WHITENOISE]}, []),
        ({"STATIC_ROOT": None}, ["wsgifast.W003"]),
        ({"STATIC_ROOT": "/no/such/folder"}, ["wsgifast.W003"]),
        ({"STATIC_ROOT": None, "DEBUG": True}, []),
        ({"STATIC_ROOT": None, "DEBUG": 1}, []),
        ({"WHITENOISE_MAX_AGE": 5, "WHITENOISE_AUTOREFRESH": True}, []),
        ({"SERVESTATIC_MINIFY": True}, ["wsgifast.W004"]),
        ({"WHITENOISE_NONSENSE": 1, "SERVESTATIC_USE_MANIFEST": True}, ["wsgifast.W004"]),
        ({"WSGIFAST_STATIC": {"nonsense": 1}}, ["wsgifast.E001"]),
        ({"WHITENOISE_MAX_AGE": "5"}, ["wsgifast.E001"]),
        ({"WSGIFAST_STATIC": None}, ["wsgifast.E001"]),
        ({"WSGIFAST_STATIC": {"prefix": 3}}, ["wsgifast.E001"]),
        ({"WSGIFAST_STATIC": {"codings": ["lzma"]}}, ["wsgifast.E001"]),
        ({"WSGIFAST_STATIC": {"keep_only_hashed": "no"}}, ["wsgifast.E001"]),
    ],
)
def test_what_is_said(changed: dict[str, Any], expected: list[str]) -> None:
    assert ids(**changed) == expected


def test_a_storage_without_a_manifest_is_for_development() -> None:
    plain = {"BACKEND": "wsgifast.django.storage.CompressedStaticFilesStorage"}
    assert ids(STORAGES={**settings.STORAGES, "staticfiles": plain}) == ["wsgifast.W005"]


def test_the_order_of_the_apps() -> None:
    apps = [name for name in settings.INSTALLED_APPS if name != "wsgifast.django"]
    assert ids(INSTALLED_APPS=[*apps, "wsgifast.django"]) == ["wsgifast.W006"]


def manage(data: Path, *arguments: str) -> str:
    done = forkserver.run(
        [sys.executable, "examples/django_project/manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_PROJECT_DATA": str(data)},
    )
    assert done.returncode == 0, done
    return done.stdout + done.stderr


def test_runserver_leaves_static_files_to_the_middleware(data: Path) -> None:
    from django.core.management import load_command_class

    command = load_command_class("wsgifast.django", "runserver")
    assert "staticfiles" in type(command).__mro__[1].__module__
    parser = command.create_parser("manage.py", "runserver")
    assert parser.parse_args([]).use_static_handler is False
    assert parser.parse_args(["--nostatic"]).use_static_handler is False


def test_checks_run_with_the_others(tmp_path: Path, data: Path) -> None:
    assert "no issues" in manage(data, "check")
    assert "wsgifast.W003" in manage(tmp_path, "check")
