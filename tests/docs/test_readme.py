"""README's lines for each framework, on an app of that framework."""

from __future__ import annotations

import asyncio
import importlib
import re
from typing import Any

import flask
import httpx
from fastapi import FastAPI
from werkzeug.test import Client

from tests.support.servers import ROOT

PAGE = "a line of a page\n" * 500
README = (ROOT / "README.md").read_text()
ADOPTED = README.partition("## Adopt it")[2].partition("\n## ")[0]


def _lines_for(framework: str) -> str:
    found = re.search(rf"\*\*{framework}\*\*.*?```python\n(.*?)```", ADOPTED, re.DOTALL)
    assert found is not None
    return found[1]


def test_readme_lines_for_flask_compress_a_page() -> None:
    app = flask.Flask("shop")
    app.add_url_rule("/", view_func=lambda: PAGE)
    exec(_lines_for("Flask"), {"app": app})
    response = Client(app).get("/", headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(response.data) < len(PAGE)


def test_readme_lines_for_fastapi_compress_an_answer() -> None:
    app = FastAPI()
    app.add_api_route("/", lambda: {"page": PAGE})
    names: dict[str, Any] = {"app": app}
    exec(_lines_for("FastAPI"), names)
    response = asyncio.run(_get(names["app"]))
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.json() == {"page": PAGE}


async def _get(app: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.get("/", headers={"Accept-Encoding": "gzip"})


def test_readme_lines_for_django_name_existing_classes() -> None:
    names: dict[str, Any] = {
        "MIDDLEWARE": ["django.middleware.security.SecurityMiddleware", "shop.Middleware"],
        "INSTALLED_APPS": [],
    }
    exec(_lines_for("Django"), names)
    first, ours, last = names["MIDDLEWARE"]
    assert (first, last) == ("django.middleware.security.SecurityMiddleware", "shop.Middleware")
    module, _, name = ours.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert names["INSTALLED_APPS"] == ["wsgifast.django"]
    assert names["WSGIFAST_COMPRESS"] is True
    assert callable(names["get_wsgi_application"])
