"""The URLs of the project."""

from django.contrib import admin
from django.contrib.auth.decorators import login_required
from django.urls import include, path

from wsgifast.django import serve_media

urlpatterns = [
    path("", include("examples.django_project.polls.urls")),
    path("admin/", admin.site.urls),
    path("media/<path:path>", login_required(serve_media)),
]
