"""A Flask app whose blueprints have static folders: they are answered before Flask is asked.

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
    """Put StaticFiles in front of each static folder, and WSGIFast around the rest.

    To be called when all blueprints are registered. SEND_FILE_MAX_AGE_DEFAULT says how long
    browsers keep the files, as it does without; what is not in a folder is Flask's 404.
    """
    wsgi: Callable[..., Any] = WSGIFast(app.wsgi_app)
    owners: list[tuple[str, Any]] = [
        (f"{name}.static", blueprint) for name, blueprint in app.blueprints.items()
    ]
    owners.append(("static", app))  # asked first, as Flask does
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
