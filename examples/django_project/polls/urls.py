"""The URLs of the polls."""

from django.urls import path

from . import views

app_name = "polls"
urlpatterns = [
    path("", views.Index.as_view(), name="index"),
    path("<int:pk>/", views.detail, name="detail"),
    path("votes.csv", views.votes, name="votes"),
    path("ticks", views.ticks, name="ticks"),
    path("documents/", views.upload, name="upload"),
    path("documents/<int:pk>", views.download, name="download"),
]
