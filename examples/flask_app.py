"""A Flask app, unchanged but for its last line.

gunicorn -k gthread --threads 4 examples.flask_app:app
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flask import Flask, Response, render_template_string, send_file, stream_template_string

from wsgifast import WSGIFast

flask_app = Flask(__name__)
ROWS = range(20_000)
TABLE = "<table>{% for row in rows %}<tr><td>{{ row }}</td></tr>\n{% endfor %}</table>"


@flask_app.get("/")
def index() -> str:
    return render_template_string("<h1>{{ title }}</h1>", title="Grüße")


@flask_app.get("/download")
def download() -> Response:
    """A file: goes out by sendfile, ranges and all."""
    return send_file(Path(__file__), mimetype="text/x-python")


@flask_app.get("/table")
def table() -> Response:
    """A streamed template: thousands of small chunks."""
    return Response(stream_template_string(TABLE, rows=ROWS))


@flask_app.get("/report.csv")
def report() -> Response:
    """A generator with a chunk for each row."""

    def rows() -> Iterator[str]:
        for row in ROWS:
            yield f"{row},{row * row}\n"

    return Response(rows(), mimetype="text/csv")


# Flask's own command line and extensions go on working: only the WSGI side is wrapped.
flask_app.wsgi_app = WSGIFast(flask_app.wsgi_app, coalesce=True)  # type: ignore[method-assign]
app = flask_app
