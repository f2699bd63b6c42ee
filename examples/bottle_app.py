"""A Bottle app. Its last line adds wsgifast.

gunicorn -k gthread --threads 4 examples.bottle_app:app
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bottle

from wsgifast import WSGIFast

bottle_app = bottle.Bottle()


@bottle_app.get("/")  # type: ignore[untyped-decorator]
def index() -> str:
    return "Grüße"


@bottle_app.get("/download")  # type: ignore[untyped-decorator]
def download() -> Any:
    return bottle.static_file(Path(__file__).name, root=Path(__file__).parent)


@bottle_app.get("/report.csv")  # type: ignore[untyped-decorator]
def report() -> Iterator[str]:
    bottle.response.content_type = "text/csv"
    for row in range(20_000):
        yield f"{row},{row * row}\n"


app = WSGIFast(bottle_app, coalesce=True)
