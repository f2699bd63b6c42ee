"""System checks of the settings, for `manage.py check`. Their ids never change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..compression.codings import checked_codings
from ..errors import ConfigurationError
from ..files.compress import skipped_extensions
from .middleware import StaticFilesMiddleware, static_sites
from .settings import LEFT_OUT, OPTIONS, PREFIXES, compression, media_front_server, static_options

_THEIRS = (
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
)
_COMPRESSING = (
    "django.middleware.gzip.GZipMiddleware",
    "django_http_compression.middleware.HttpCompressionMiddleware",
)
_SECURITY = "django.middleware.security.SecurityMiddleware"


@register(Tags.files)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    return list(_messages())


@register(Tags.files, deploy=True)
def check_production(**kwargs: Any) -> list[CheckMessage]:
    try:
        _checked_options()
        has_manifest = hasattr(staticfiles_storage, "manifest_name")
    except ConfigurationError:  # check_settings() reports it
        return []
    except ImproperlyConfigured:  # without STATIC_ROOT there is none
        return []
    if not has_manifest:
        return [
            Warning(
                "The static files' storage has no manifest, so that no file name has a hash in it "
                "and browsers ask again for each file.",
                hint='STORAGES["staticfiles"]: '
                "wsgifast.django.storage.CompressedManifestStaticFilesStorage",
                id="wsgifast.W005",
            )
        ]
    return []


def _messages() -> Iterator[CheckMessage]:
    try:
        options = _checked_options()
    except ConfigurationError as error:
        yield Error(str(error), hint=_read_settings(), id="wsgifast.E001")
        return
    yield from _of_middleware(list(settings.MIDDLEWARE))
    if compression() is not None:
        for name in _COMPRESSING:
            if name in settings.MIDDLEWARE:
                yield Warning(
                    f"{name} is in MIDDLEWARE together with WSGIFAST_COMPRESS, which leaves alone "
                    "what it has compressed.",
                    hint="Remove it, or WSGIFAST_COMPRESS.",
                    id="wsgifast.W009",
                )
    if options["finders"] and options["index"] is not None:
        yield Warning(
            f"index={options['index']!r} has no effect on files that Django's finders find, but on "
            "collected ones. Finders are used by default with DEBUG.",
            hint="Set the option finders (USE_FINDERS) to False and run collectstatic, or leave "
            "index out.",
            id="wsgifast.W008",
        )
    if not options["finders"] and not (
        settings.STATIC_ROOT and os.path.isdir(settings.STATIC_ROOT)
    ):
        named = f"STATIC_ROOT={str(settings.STATIC_ROOT)!r} is no directory"
        yield Warning(
            f"{named if settings.STATIC_ROOT else 'STATIC_ROOT is not set'}: there are no static "
            "files.",
            hint="Run collectstatic." if settings.STATIC_ROOT else "Set it to a directory.",
            id="wsgifast.W003",
        )
    for name in dir(settings):
        for start in PREFIXES:
            rest = name.removeprefix(start)
            if rest != name and rest not in OPTIONS and rest not in LEFT_OUT:
                yield Warning(
                    f"{name} has no effect: wsgifast has no such option.", id="wsgifast.W004"
                )
    names = [config.name for config in apps.get_app_configs()]
    contrib = "django.contrib.staticfiles"
    if contrib in names[: names.index("wsgifast.django")]:
        yield Warning(
            f"wsgifast.django comes after {contrib} in INSTALLED_APPS, whose runserver then serves "
            "static files in another way than production does.",
            hint="Put it first.",
            id="wsgifast.W006",
        )


def _checked_options() -> dict[str, Any]:
    """:raises ConfigurationError: if one of the settings that are read has an invalid value."""
    static_sites()
    options = static_options()
    # Not by static_options(): the server may lack packages that the host of collectstatic has.
    checked_codings(options["codings"])
    skipped_extensions(options["skip_extensions"])
    media_front_server()
    return options


def _of_middleware(middleware: list[str]) -> Iterator[CheckMessage]:
    ours = next((place for place, name in enumerate(middleware) if _is_ours(name)), None)
    if ours is None:
        yield Warning(
            "StaticFilesMiddleware is not in MIDDLEWARE: wsgifast serves no static files.",
            hint="Put wsgifast.django.StaticFilesMiddleware right after SecurityMiddleware"
            + "".join(f", in place of {name}" for name in _THEIRS if name in middleware)
            + ". Where another server serves them, silence this check.",
            id="wsgifast.W007",
        )
        return
    for name in _THEIRS:
        if name in middleware:
            yield Warning(
                f"{name} is in MIDDLEWARE together with StaticFilesMiddleware.",
                hint="Remove it. StaticFilesMiddleware reads its settings.",
                id="wsgifast.W001",
            )
    if _SECURITY in middleware[ours:]:
        yield Warning(
            "StaticFilesMiddleware comes before SecurityMiddleware, so that static files lack its "
            "headers and its redirect.",
            hint="Put it right after SecurityMiddleware.",
            id="wsgifast.W002",
        )
    elif set(middleware[:ours]) - {_SECURITY, *_THEIRS}:
        yield Warning(
            "Other middleware than SecurityMiddleware comes before StaticFilesMiddleware, and runs "
            "for each static file.",
            hint="Put it right after SecurityMiddleware.",
            id="wsgifast.W002",
        )


def _is_ours(name: str) -> bool:
    """Whether a middleware is StaticFilesMiddleware, or a project's subclass."""
    if name.startswith("django.") or name in _THEIRS:
        return False
    try:
        middleware = import_string(name)
    except Exception:  # noqa: BLE001 - Django reports it when it loads the middleware
        return False
    return isinstance(middleware, type) and issubclass(middleware, StaticFilesMiddleware)


def _read_settings() -> str:
    """Return the hint with the settings that options are read from."""
    names = [f"{start}{rest}" for start in PREFIXES for rest in OPTIONS]
    found = [
        name
        for name in ("WSGIFAST_STATIC", *names, "WSGIFAST_MEDIA", "WSGIFAST_COMPRESS")
        if hasattr(settings, name)
    ]
    return f"Options are read from {', '.join(found)}." if found else "It is one of Django's own."
