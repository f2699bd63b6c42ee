"""examples/django_project in this process: settings are global, so all tests share this one."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


@functools.cache
def set_up() -> Path:
    """Set up Django once, with a database and static files. Return the folder of the project.

    The admin's static files are left out, because it takes seconds to hash and compress them.
    """
    data = Path(tempfile.mkdtemp(prefix="wsgifast-django-"))
    atexit.register(shutil.rmtree, data, ignore_errors=True)
    os.environ["DJANGO_PROJECT_DATA"] = str(data)
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django_project.settings"
    import django
    from django.conf import settings
    from django.core.management import call_command

    django.setup()
    # A thread that ends would leave its connection to the garbage collector.
    settings.DATABASES["default"]["CONN_MAX_AGE"] = 0
    call_command("migrate", verbosity=0)
    call_command("collectstatic", verbosity=0, interactive=False, ignore_patterns=["admin"])
    return data
