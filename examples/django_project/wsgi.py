"""The project as a WSGI application."""

import os

from wsgifast.django import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_project.settings")
application = get_wsgi_application()
