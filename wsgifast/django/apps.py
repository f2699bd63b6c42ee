"""The Django app for INSTALLED_APPS. It registers the system checks and the command runserver."""

from __future__ import annotations

from django.apps import AppConfig

from ..hosts import DJANGO


class WSGIFastConfig(AppConfig):
    name = "wsgifast.django"
    label = "wsgifast"

    def ready(self) -> None:
        DJANGO.check(
            "wsgifast.django", "wsgifast.django",
            way_out="install a newer wsgifast, or use Django's own files",
        )  # fmt: skip
        from . import checks  # noqa: F401 - the import registers the checks
