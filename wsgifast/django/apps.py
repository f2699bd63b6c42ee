"""The app for INSTALLED_APPS: system checks, and static files by our middleware in runserver."""

from __future__ import annotations

from django.apps import AppConfig


class WSGIFastConfig(AppConfig):
    name = "wsgifast.django"
    label = "wsgifast"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - they register themselves
