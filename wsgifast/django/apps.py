"""The app for INSTALLED_APPS: system checks, and runserver without Django's static files."""

from __future__ import annotations

from django.apps import AppConfig


class WSGIFastConfig(AppConfig):
    name = "wsgifast.django"
    label = "wsgifast"
    verbose_name = "wsgifast"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - they register themselves
