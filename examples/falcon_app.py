"""A Falcon app. Its last line adds wsgifast.

gunicorn -k gthread --threads 4 examples.falcon_app:app
"""

from __future__ import annotations

from pathlib import Path

import falcon

from wsgifast import WSGIFast


class Index:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.text = "Grüße"


class Download:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Send a file as a stream. Falcon has a wrapper for servers without wsgi.file_wrapper."""
        response.content_type = "text/x-python"
        response.stream = Path(__file__).open("rb")


class Report:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = "text/csv"
        response.stream = (f"{row},{row * row}\n".encode() for row in range(20_000))


falcon_app = falcon.App()
falcon_app.add_route("/", Index())
falcon_app.add_route("/download", Download())
falcon_app.add_route("/report.csv", Report())

app = WSGIFast(falcon_app, coalesce=True)
