"""tests.asgi.app with metrics, behind prometheus_client's own app."""

from __future__ import annotations

from typing import Any

import prometheus_client
from asgifast import ASGIFast
from asgifast.messages import Receive, Scope, Send

from .app import app as plain

_metrics: Any = prometheus_client.make_asgi_app()
_served = ASGIFast(plain, metrics="prometheus", pathsend=True)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    is_scrape = scope["type"] == "http" and scope["path"] == "/metrics"
    await (_metrics if is_scrape else _served)(scope, receive, send)
