"""The project as an ASGI application."""

import os

from wsgifast.django import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_project.settings")
application = get_asgi_application()
