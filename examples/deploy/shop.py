"""The app of this folder: a page, a list, an export, a download and an upload."""

import os
import tempfile
from collections.abc import Iterator

from flask import Flask, Response, request, send_file

from wsgifast import WSGIFast

app = Flask(__name__)
# If rows of /orders.csv follow each other quickly, wsgifast sends them together.
app.wsgi_app = WSGIFast(app.wsgi_app, coalesce=True)  # type: ignore[method-assign]

DOWNLOAD_BYTES = 5 * 2**20
download = tempfile.NamedTemporaryFile(prefix="shop-", suffix=".bin")
download.write(os.urandom(DOWNLOAD_BYTES))
download.flush()


@app.get("/")
def index() -> str:
    return "<h1>The shop</h1>"


@app.get("/orders")
def orders() -> Response:
    return Response([f"<p>{number}</p>" for number in range(5_000)])


@app.get("/orders.csv")
def orders_csv() -> Response:
    def lines() -> Iterator[str]:
        for number in range(5_000):
            yield f"{number},{number * 9.95:.2f}\n"

    return Response(lines(), mimetype="text/csv")


@app.get("/manual.bin")
def manual() -> Response:
    return send_file(download.name)


@app.post("/upload")
def upload() -> str:
    return f"{len(request.get_data())}\n"
