"""The app for INSTALLED_APPS: system checks; runserver leaves static files to our middleware."""

from __future__ import annotations

from django.apps import AppConfig


class WSGIFastConfig(AppConfig):
    name = "wsgifast.django"
    label = "wsgifast"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - they register themselves
