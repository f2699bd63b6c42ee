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
from wsgifast.django import StaticFilesMiddleware

OURS = "wsgifast.django.StaticFilesMiddleware"
WHITENOISE = "whitenoise.middleware.WhiteNoiseMiddleware"
SECURITY = "django.middleware.security.SecurityMiddleware"
GZIP = "django.middleware.gzip.GZipMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"


PREFIXES = ("WHITENOISE_", "SERVESTATIC_")


class ProjectsOwn(StaticFilesMiddleware):
    """A subclass in a project."""


def ids(**changed: Any) -> list[str]:
    from wsgifast.django.checks import check_production, check_settings

    with override_settings(**changed):
        return [message.id for message in (*check_settings(), *check_production())]


def test_good_project_has_no_messages() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"MIDDLEWARE": [SECURITY, OURS, WHITENOISE]}, ["wsgifast.W001"]),
        ({"MIDDLEWARE": [SECURITY, WHITENOISE, OURS]}, ["wsgifast.W001"]),
        ({"MIDDLEWARE": [OURS, SECURITY]}, ["wsgifast.W002"]),
        ({"MIDDLEWARE": [SECURITY, SESSIONS, OURS]}, ["wsgifast.W002"]),
        ({"MIDDLEWARE": [SECURITY, "wsgifast.django.middleware.StaticFilesMiddleware"]}, []),
        ({"MIDDLEWARE": [WHITENOISE]}, ["wsgifast.W007"]),
        ({"MIDDLEWARE": [SECURITY, SESSIONS]}, ["wsgifast.W007"]),
        ({"MIDDLEWARE": []}, ["wsgifast.W007"]),
        ({"MIDDLEWARE": [SECURITY, "no.such.Middleware"]}, ["wsgifast.W007"]),
        ({"MIDDLEWARE": [SECURITY, "tests.django.test_checks.ProjectsOwn"]}, []),
        ({"DEBUG": True, "WHITENOISE_INDEX_FILE": True}, ["wsgifast.W008"]),
        ({"WSGIFAST_STATIC": {"finders": True, "index": "index.html"}}, ["wsgifast.W008"]),
        ({"WSGIFAST_STATIC": {"finders": True, "index": None}}, []),
        ({"WSGIFAST_STATIC": {"finders": False, "index": "index.html"}}, []),
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
        ({"WSGIFAST_COMPRESS": True}, []),
        ({"WSGIFAST_COMPRESS": {"codings": ["gzip"], "min_bytes": 500}}, []),
        ({"WSGIFAST_COMPRESS": "gzip"}, ["wsgifast.E001"]),
        ({"WSGIFAST_COMPRESS": {"nonsense": 1}}, ["wsgifast.E001"]),
        ({"WSGIFAST_COMPRESS": {"levels": {"gzip": 12}}}, ["wsgifast.E001"]),
        ({"MIDDLEWARE": [SECURITY, OURS, GZIP]}, []),
        ({"MIDDLEWARE": [SECURITY, OURS, GZIP], "WSGIFAST_COMPRESS": True}, ["wsgifast.W009"]),
    ],
)
def test_setting_has_its_message(changed: dict[str, Any], expected: list[str]) -> None:
    assert ids(**changed) == expected


# Values that no option accepts. Several options have one of these types, such as 5 for max_age.
WRONG: dict[str, list[Any]] = {
    "add_headers": ["no", 5, []],
    "compress": ["gzip", 5, None],
    "dictionaries": ["yes", 1, None],
    "allow_all_origins": ["yes", 1, None],
    "cache_bytes": ["1M", -1, 1.5, None, True],
    "charset": [5, "utf 8", b"utf-8", True],
    "codings": ["gzip", 5, [5], [["gzip"]], {"gzip": 1}, [""], b"gzip", True],
    "etag": ["md5", 5, True],
    "finders": ["no", 1, None],
    "follow_symlinks": ["no", 0, None],
    "hidden_files": ["no", 0, None],
    "immutable": [5, "(", ["a"], b"a"],
    "index": [5, "a/b", [], b"index.html"],
    "keep_only_hashed": ["no", 1, None],
    "listing": ["no", 1, None],
    "manifest_strict": ["no", 0, []],
    "max_age": ["60", -1, 1.5, True],
    "mimetypes": [["x"], "x", {".x": 5}, {5: "text/x"}],
    "prefix": [5, ["/static/"], b"/static/"],
    "root": [5, {"a": "b"}, "/no/such/folder", b"/tmp", True],
    "skip_extensions": ["jpg,png", ["jpg", 1], 5, [""], {"jpg": 1}, b"jpg", [None], True],
}
DJANGOS: dict[str, list[Any]] = {
    "STATIC_ROOT": [5, ["/srv"], b"/srv", True],
    "STATIC_URL": [5, ["static/"]],
    "MEDIA_ROOT": [5, ["/srv"], b"/srv"],
    "FORCE_SCRIPT_NAME": [5, ["/app"]],
    "WSGIFAST_STATIC": ["no", 5, [], None, {5: 1}, {5: 1, "x": 2}],
    "WSGIFAST_MEDIA": [
        *("no", 5, [], {5: 1}, {"nonsense": 1}, {"x_sendfile": "/srv"}, {"accel_redirect": "/x/"}),
        *({"x_sendfile": [5]}, {"accel_redirect": {"/tmp": 5}}, {"accel_redirect": {5: "/x/"}}),
    ],
}


def test_wrong_values_cover_every_option() -> None:
    from wsgifast.django.settings import OPTIONS, SITE_OPTIONS

    assert set(WRONG) == {*SITE_OPTIONS, *OPTIONS.values(), "codings"}


@pytest.mark.parametrize("static_root", ["as it is", "/no/such/folder"])
@pytest.mark.parametrize("option", WRONG)
def test_option_of_a_wrong_type_is_an_error(option: str, static_root: str) -> None:
    from wsgifast.django.settings import OPTIONS

    names = [name for name, named in OPTIONS.items() if named == option]
    changed = {} if static_root == "as it is" else {"STATIC_ROOT": static_root}
    for value in WRONG[option]:
        for setting in (
            {"WSGIFAST_STATIC": {option: value}},
            *({f"{start}{name}": value} for name in names for start in PREFIXES),
        ):
            if option == "index" and value is True:
                continue
            assert ids(**setting, **changed) == ["wsgifast.E001"], setting


@pytest.mark.parametrize("name", DJANGOS)
def test_setting_of_a_wrong_type_is_an_error(name: str) -> None:
    for value in DJANGOS[name]:
        assert ids(**{name: value}) == ["wsgifast.E001"], value


def test_error_names_option_value_and_its_source() -> None:
    from wsgifast.django.checks import check_settings

    with override_settings(WHITENOISE_SKIP_COMPRESS_EXTENSIONS="jpg,png"):
        [message] = check_settings()
    assert "skip_extensions='jpg,png': must be a list" in message.msg
    assert "WHITENOISE_" in message.hint


def test_storage_without_manifest_is_a_warning() -> None:
    plain = {"BACKEND": "wsgifast.django.storage.CompressedStaticFilesStorage"}
    assert ids(STORAGES={**settings.STORAGES, "staticfiles": plain}) == ["wsgifast.W005"]


def test_order_of_the_apps_is_checked() -> None:
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


def test_runserver_leaves_static_files_to_middleware(data: Path) -> None:
    from django.core.management import load_command_class

    command = load_command_class("wsgifast.django", "runserver")
    assert "staticfiles" in type(command).__mro__[1].__module__
    parser = command.create_parser("manage.py", "runserver")
    assert parser.parse_args([]).use_static_handler is False
    assert parser.parse_args(["--nostatic"]).use_static_handler is False


def test_checks_run_with_manage_check(tmp_path: Path, data: Path) -> None:
    assert "no issues" in manage(data, "check")
    assert "wsgifast.W003" in manage(tmp_path, "check")
