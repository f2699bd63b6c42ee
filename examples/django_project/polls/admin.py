"""What the admin shows."""

from django.contrib import admin

from .models import Choice, Document, Question

admin.site.register([Choice, Document, Question])
