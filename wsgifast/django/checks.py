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
_SETTINGS = "Options are read from settings WSGIFAST_..., WHITENOISE_... and SERVESTATIC_..."


@register(Tags.files)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    return list(_messages())


@register(Tags.files, deploy=True)
def check_production(**kwargs: Any) -> list[CheckMessage]:
    try:
        _checked_options()
        if hasattr(staticfiles_storage, "manifest_name"):
            return []
    # check_settings() reports the error. Without STATIC_ROOT there is no storage.
    except (ConfigurationError, ImproperlyConfigured):
        return []
    return [
        _warning(
            "W005",
            "The static files' storage has no manifest, so that no file name has a hash in it and "
            "browsers ask again for each file.",
            'STORAGES["staticfiles"]: wsgifast.django.storage.CompressedManifestStaticFilesStorage',
        )
    ]


def _messages() -> Iterator[CheckMessage]:
    try:
        options = _checked_options()
    except ConfigurationError as error:
        yield Error(str(error), hint=_SETTINGS, id="wsgifast.E001")
        return
    yield from _of_middleware(list(settings.MIDDLEWARE))
    if compression() is not None:
        for name in _COMPRESSING:
            if name in settings.MIDDLEWARE:
                yield _warning(
                    "W009",
                    f"{name} is in MIDDLEWARE together with WSGIFAST_COMPRESS, which leaves alone "
                    "what it has compressed.",
                    "Remove it, or WSGIFAST_COMPRESS.",
                )
    if options["finders"] and options["index"] is not None:
        yield _warning(
            "W008",
            f"index={options['index']!r} has no effect on files that Django's finders find, but on "
            "collected ones. Finders are used by default with DEBUG.",
            "Set the option finders (USE_FINDERS) to False and run collectstatic, or leave "
            "index out.",
        )
    root = settings.STATIC_ROOT and os.fspath(settings.STATIC_ROOT)
    if not options["finders"] and not (root and os.path.isdir(root)):
        text = f"STATIC_ROOT={root!r} is no directory: there are no static files."
        yield _warning("W003", text, "Set it, and run collectstatic.")
    for name in dir(settings):
        for start in PREFIXES:
            rest = name.removeprefix(start)
            if rest != name and rest not in OPTIONS and rest not in LEFT_OUT:
                yield _warning("W004", f"{name} has no effect: wsgifast has no such option.")
    names = [config.name for config in apps.get_app_configs()]
    contrib = "django.contrib.staticfiles"
    if contrib in names[: names.index("wsgifast.django")]:
        yield _warning(
            "W006",
            f"wsgifast.django comes after {contrib} in INSTALLED_APPS, whose runserver then serves "
            "static files in another way than production does.",
            "Put it first.",
        )


def _warning(number: str, text: str, hint: str | None = None) -> Warning:
    return Warning(text, hint=hint, id=f"wsgifast.{number}")


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
        replaced = "".join(f", in place of {name}" for name in _THEIRS if name in middleware)
        yield _warning(
            "W007",
            "StaticFilesMiddleware is not in MIDDLEWARE: wsgifast serves no static files.",
            f"Put wsgifast.django.StaticFilesMiddleware right after SecurityMiddleware{replaced}. "
            "Where another server serves them, silence this check.",
        )
        return
    for name in _THEIRS:
        if name in middleware:
            yield _warning(
                "W001",
                f"{name} is in MIDDLEWARE together with StaticFilesMiddleware.",
                "Remove it. StaticFilesMiddleware reads its settings.",
            )
    if _SECURITY in middleware[ours:] or set(middleware[:ours]) - {_SECURITY, *_THEIRS}:
        yield _warning(
            "W002",
            "StaticFilesMiddleware is not right after SecurityMiddleware: static files lack its "
            "headers and redirect, or run through other middleware, too.",
            "Put it right after SecurityMiddleware.",
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
