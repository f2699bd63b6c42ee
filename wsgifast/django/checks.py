"""System checks of the settings, for `manage.py check`. The id of a check never changes."""

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
from .settings import IGNORED, OPTIONS, PREFIXES, compression, media_front_server, static_options

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
            "The storage of the static files has no manifest. So file names contain no hash, and "
            "browsers revalidate each file.",
            'Set STORAGES["staticfiles"] to '
            "wsgifast.django.storage.CompressedManifestStaticFilesStorage.",
        )
    ]


def _messages() -> Iterator[CheckMessage]:
    try:
        options = _checked_options()
    except ConfigurationError as error:
        yield Error(str(error), hint=_SETTINGS, id="wsgifast.E001")
        return
    yield from _middleware_messages(list(settings.MIDDLEWARE))
    if compression() is not None:
        for name in _COMPRESSING:
            if name in settings.MIDDLEWARE:
                yield _warning(
                    "W009",
                    f"{name} is in MIDDLEWARE, and WSGIFAST_COMPRESS is set. {name} compresses "
                    "most responses, and then WSGIFAST_COMPRESS has no effect on them.",
                    "Remove the middleware or WSGIFAST_COMPRESS.",
                )
    if options["finders"] and options["index"] is not None:
        yield _warning(
            "W008",
            f"index={options['index']!r} has an effect only on collected files, and not on files "
            "that Django's finders find. With DEBUG, finders are used by default.",
            "Set the option finders (USE_FINDERS) to False and run collectstatic, or remove the "
            "option index.",
        )
    root = settings.STATIC_ROOT and os.fspath(settings.STATIC_ROOT)
    if not options["finders"] and not (root and os.path.isdir(root)):
        text = f"STATIC_ROOT={root!r} is not a directory, so no static files are served."
        yield _warning("W003", text, "Set STATIC_ROOT, and run collectstatic.")
    for name in dir(settings):
        for prefix in PREFIXES:
            suffix = name.removeprefix(prefix)
            if suffix != name and suffix not in OPTIONS and suffix not in IGNORED:
                yield _warning("W004", f"{name} has no effect: wsgifast has no such option.")
    names = [config.name for config in apps.get_app_configs()]
    contrib = "django.contrib.staticfiles"
    if contrib in names[: names.index("wsgifast.django")]:
        yield _warning(
            "W006",
            f"wsgifast.django comes after {contrib} in INSTALLED_APPS. The runserver of {contrib} "
            "then serves static files, and StaticFilesMiddleware serves them in production.",
            f"Put wsgifast.django before {contrib}.",
        )


def _warning(number: str, text: str, hint: str | None = None) -> Warning:
    return Warning(text, hint=hint, id=f"wsgifast.{number}")


def _checked_options() -> dict[str, Any]:
    """Check all settings, and return the options of static files.

    :raises ConfigurationError: if a setting has an invalid value.
    """
    static_sites()
    options = static_options()
    # static_options() does not check these: packages for compression may be installed only on the
    # host that runs collectstatic.
    checked_codings(options["codings"])
    skipped_extensions(options["skip_extensions"])
    media_front_server()
    return options


def _middleware_messages(middleware: list[str]) -> Iterator[CheckMessage]:
    ours = next((index for index, name in enumerate(middleware) if _is_ours(name)), None)
    if ours is None:
        replaced = "".join(f", in place of {name}" for name in _THEIRS if name in middleware)
        yield _warning(
            "W007",
            "StaticFilesMiddleware is not in MIDDLEWARE: wsgifast serves no static files.",
            f"Put wsgifast.django.StaticFilesMiddleware right after SecurityMiddleware{replaced}. "
            "If another server serves the static files, silence this check.",
        )
        return
    for name in _THEIRS:
        if name in middleware:
            yield _warning(
                "W001",
                f"{name} is in MIDDLEWARE together with StaticFilesMiddleware.",
                f"Remove {name}. StaticFilesMiddleware reads its settings.",
            )
    if _SECURITY in middleware[ours:] or set(middleware[:ours]) - {_SECURITY, *_THEIRS}:
        yield _warning(
            "W002",
            "StaticFilesMiddleware is not right after SecurityMiddleware. So requests for static "
            "files skip SecurityMiddleware, or pass through other middleware.",
            "Put StaticFilesMiddleware right after SecurityMiddleware.",
        )


def _is_ours(name: str) -> bool:
    """Return whether a middleware is StaticFilesMiddleware, or a subclass of the project."""
    if name.startswith("django.") or name in _THEIRS:
        return False
    try:
        middleware = import_string(name)
    except Exception:  # noqa: BLE001 - Django reports it when it loads the middleware
        return False
    return isinstance(middleware, type) and issubclass(middleware, StaticFilesMiddleware)
