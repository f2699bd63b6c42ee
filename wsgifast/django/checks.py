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

from ..errors import ConfigurationError
from ..files.codings import checked_codings
from .settings import LEFT_OUT, OPTIONS, PREFIXES, media_front_server, static_options
from .sites import static_sites

_OURS = {
    "wsgifast.django.StaticFilesMiddleware",
    "wsgifast.django.middleware.StaticFilesMiddleware",
}
_THEIRS = (
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
)
_SECURITY = "django.middleware.security.SecurityMiddleware"


@register(Tags.files)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    return list(_messages())


@register(Tags.files, deploy=True)
def check_production(**kwargs: Any) -> list[CheckMessage]:
    try:
        has_manifest = hasattr(staticfiles_storage, "manifest_name")
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
        static_sites()
        options = static_options()
        checked_codings(options["codings"])
        media_front_server()
    except ConfigurationError as error:
        yield Error(str(error), id="wsgifast.E001")
        return
    middleware = list(settings.MIDDLEWARE)
    ours = next((place for place, name in enumerate(middleware) if name in _OURS), None)
    if ours is None:
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
