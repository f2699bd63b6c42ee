"""Provide apps with StaticFiles and with WhiteNoise.

By default, WhiteNoise finds all files at its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whitenoise import WhiteNoise

from wsgifast import StaticFiles

from .payloads import PAYLOADS


def whitenoise(root: str = str(PAYLOADS), **options: Any) -> Any:
    return WhiteNoise(_no_app, root=root, prefix="/", **options)


def static_files(root: str = str(PAYLOADS), **options: Any) -> StaticFiles:
    return StaticFiles(directory=root, **options)


def _no_app(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Length", "0")])
    return []
