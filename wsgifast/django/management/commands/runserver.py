"""runserver that leaves static files to StaticFilesMiddleware, as in production.

Django's staticfiles app answers for them in front of all middleware, except with --nostatic, which
is the default here. All else is the runserver of the next app that has one.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps


def _next_runserver() -> Any:
    """The command that would run if this app were not there."""
    names = [config.name for config in apps.get_app_configs()]
    behind = names[names.index("wsgifast.django") + 1 :] if "wsgifast.django" in names else []
    for name in behind:
        if find_spec(f"{name}.management") and find_spec(f"{name}.management.commands.runserver"):
            return import_module(f"{name}.management.commands.runserver").Command
    return import_module("django.core.management.commands.runserver").Command


class Command(_next_runserver()):  # type: ignore[misc]  # known once the apps are
    def add_arguments(self, parser: Any) -> None:
        super().add_arguments(parser)
        if parser.get_default("use_static_handler"):
            parser.set_defaults(use_static_handler=False)
