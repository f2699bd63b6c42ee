"""The models in Django's admin."""

from django.contrib import admin

from .models import Choice, Document, Question

admin.site.register([Choice, Document, Question])
