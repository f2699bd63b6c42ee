from typing import ClassVar

from django.db import migrations, models
from django.db.models.deletion import CASCADE


def _id() -> tuple[str, models.BigAutoField]:
    field = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    return "id", field


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="Document",
            fields=[_id(), ("file", models.FileField(upload_to="documents"))],
        ),
        migrations.CreateModel(
            name="Question", fields=[_id(), ("text", models.CharField(max_length=200))]
        ),
        migrations.CreateModel(
            name="Choice",
            fields=[
                _id(),
                ("text", models.CharField(max_length=200)),
                ("votes", models.IntegerField(default=0)),
                ("question", models.ForeignKey(on_delete=CASCADE, to="polls.question")),
            ],
        ),
    ]
