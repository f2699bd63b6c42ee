"""Questions with their choices, and uploaded documents."""

from django.db import models


class Question(models.Model):
    text = models.CharField(max_length=200)

    def __str__(self) -> str:
        return str(self.text)


class Choice(models.Model):
    question = models.ForeignKey(Question, on_delete=models.CASCADE)
    text = models.CharField(max_length=200)
    votes = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.text)


class Document(models.Model):
    file = models.FileField(upload_to="documents")
