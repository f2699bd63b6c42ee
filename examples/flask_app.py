"""A Flask app. Its last lines add wsgifast.

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
    """Send a file. wsgifast sends it by sendfile, and supports ranges."""
    return send_file(Path(__file__), mimetype="text/x-python")


@flask_app.get("/table")
def table() -> Response:
    """Stream a template in thousands of small chunks."""
    return Response(stream_template_string(TABLE, rows=ROWS))


@flask_app.get("/report.csv")
def report() -> Response:
    """Send a generator with a chunk for each row."""

    def rows() -> Iterator[str]:
        for row in ROWS:
            yield f"{row},{row * row}\n"

    return Response(rows(), mimetype="text/csv")


# Only the WSGI app is wrapped. So Flask's command line and extensions still work.
flask_app.wsgi_app = WSGIFast(flask_app.wsgi_app, coalesce=True)  # type: ignore[method-assign]
app = flask_app
