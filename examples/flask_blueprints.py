"""A Flask app whose blueprints have static folders. StaticFiles serves their files, not Flask.

gunicorn -k gthread --threads 4 examples.flask_blueprints:app
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Flask, url_for

from wsgifast import StaticFiles, WSGIFast

polls = Blueprint(
    "polls",
    __name__,
    url_prefix="/polls",
    static_folder="django_project/polls/static/polls",
    static_url_path="/static",
)


@polls.get("/")
def index() -> str:
    return f'<link rel="stylesheet" href="{url_for("polls.static", filename="style.css")}">'


def wrap(app: Flask) -> None:
    """Serve each static folder by StaticFiles, and wrap the app in WSGIFast.

    Call this function after all blueprints were registered. As with Flask, browsers cache the files
    for SEND_FILE_MAX_AGE_DEFAULT seconds. For a missing file, Flask responds with its 404 page.
    """
    wsgi: Callable[..., Any] = WSGIFast(app.wsgi_app)
    owners: list[tuple[str, Any]] = [
        (f"{name}.static", blueprint) for name, blueprint in app.blueprints.items()
    ]
    owners.append(("static", app))  # the last one is the outermost: Flask also tries it first
    with app.app_context():
        for endpoint, owner in owners:
            if owner.static_folder is None or not os.path.isdir(owner.static_folder):
                continue
            for rule in app.url_map.iter_rules(endpoint):
                wsgi = StaticFiles(
                    wsgi,
                    directory=owner.static_folder,
                    prefix=rule.rule.removesuffix("<path:filename>"),
                    index=None,
                    max_age=owner.get_send_file_max_age(None) or 0,
                )
    app.wsgi_app = wsgi  # type: ignore[method-assign]


app = Flask(__name__)
app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600
app.register_blueprint(polls)
wrap(app)
