"""Views for pages, an export, uploads and downloads."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from django.contrib.auth.decorators import login_required
from django.db.models import F
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    StreamingHttpResponse,
)
from django.shortcuts import get_object_or_404, redirect, render
from django.views.generic import ListView

from .models import Choice, Document, Question


class Index(ListView):
    model = Question
    template_name = "polls/index.html"
    ordering = "pk"


def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a question with its choices. A POST votes for a choice."""
    question = get_object_or_404(Question, pk=pk)
    if request.method == "POST":
        choice = get_object_or_404(question.choice_set, pk=request.POST.get("choice"))
        question.choice_set.filter(pk=choice.pk).update(votes=F("votes") + 1)
        return redirect("polls:detail", pk)
    return render(request, "polls/detail.html", {"question": question})


def votes(request: HttpRequest) -> StreamingHttpResponse:
    """Stream all votes as CSV, row by row from the database."""

    def rows() -> Iterator[str]:
        yield "question,choice,votes\n"
        choices = Choice.objects.order_by("pk").values_list("question__text", "text", "votes")
        for row in choices.iterator():
            yield ",".join(map(str, row)) + "\n"

    return StreamingHttpResponse(rows(), content_type="text/csv")


async def ticks(request: HttpRequest) -> StreamingHttpResponse:
    """Send server-sent events. This view needs ASGI."""

    async def events() -> AsyncIterator[str]:
        for number in range(3):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.01)

    return StreamingHttpResponse(events(), content_type="text/event-stream")


@login_required
def upload(request: HttpRequest) -> HttpResponse:
    """Store a file, and redirect to its URL."""
    if "file" not in request.FILES:
        return HttpResponseBadRequest("The form has no file in its field 'file'")
    document = Document.objects.create(file=request.FILES["file"])
    return redirect("polls:download", document.pk)


@login_required
def download(request: HttpRequest, pk: int) -> FileResponse:
    """Send a document. wsgifast sends it by sendfile, and supports ranges."""
    return FileResponse(get_object_or_404(Document, pk=pk).file, as_attachment=True)
