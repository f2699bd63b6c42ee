"""A runserver with StaticFilesMiddleware for static files, like in production.

The runserver of Django's staticfiles app serves static files before all middleware, unless the
option --nostatic is set. Here --nostatic is the default. In all other respects this command is the
runserver of the next app in INSTALLED_APPS that has one.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps


def _next_runserver() -> Any:
    """Return the command class that Django would use without wsgifast.django."""
    names = [config.name for config in apps.get_app_configs()]
    next_apps = names[names.index("wsgifast.django") + 1 :] if "wsgifast.django" in names else []
    for name in next_apps:
        if find_spec(f"{name}.management") and find_spec(f"{name}.management.commands.runserver"):
            return import_module(f"{name}.management.commands.runserver").Command
    return import_module("django.core.management.commands.runserver").Command


class Command(_next_runserver()):  # type: ignore[misc]  # the base class depends on the apps
    def add_arguments(self, parser: Any) -> None:
        super().add_arguments(parser)
        if parser.get_default("use_static_handler"):
            parser.set_defaults(use_static_handler=False)
