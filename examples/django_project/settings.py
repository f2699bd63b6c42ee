"""The settings of the project. Comments mark the lines for wsgifast."""

import os
from pathlib import Path

import django

DATA = Path(os.environ.get("DJANGO_PROJECT_DATA", Path(__file__).parent / "data"))
DATA.mkdir(exist_ok=True)
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
SECRET_KEY = "an example keeps no secrets"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "examples.django_project.urls"
INSTALLED_APPS = [
    "wsgifast.django",  # wsgifast: checks, and runserver
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "examples.django_project.polls",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "wsgifast.django.StaticFilesMiddleware",  # wsgifast
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "db.sqlite3",
        "CONN_MAX_AGE": None,  # each thread keeps its connection open
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
LOGIN_URL = "/admin/login/"
STATIC_URL = "static/"
STATIC_ROOT = DATA / "static"
MEDIA_URL = "media/"
MEDIA_ROOT = DATA / "media"
if os.environ.get("DJANGO_BEHIND_NGINX") == "1":
    # wsgifast: nginx has "location /protected/ { internal; alias /srv/project/media/; }"
    WSGIFAST_MEDIA = {"accel_redirect": {MEDIA_ROOT: "/protected/"}}
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "wsgifast.django.storage.CompressedManifestStaticFilesStorage"  # wsgifast
    },
}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "wsgifast.mail.django.EmailBackend"}}  # wsgifast
else:
    EMAIL_BACKEND = "wsgifast.mail.django.EmailBackend"  # wsgifast
