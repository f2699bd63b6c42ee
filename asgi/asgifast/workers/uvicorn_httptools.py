"""gunicorn's worker that runs uvicorn with sendfile, and httptools."""

from __future__ import annotations

from typing import Any

from .. import uvicorn as protocols
from .uvicorn import UvicornSocketsWorker


class FastUvicornWorker(UvicornSocketsWorker):
    """uvicorn's worker with asgifast.uvicorn.HttpToolsProtocol."""

    CONFIG_KWARGS: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
        "loop": "auto",
        "http": protocols.HttpToolsProtocol,
    }
