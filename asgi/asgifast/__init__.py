"""The ASGI half of wsgifast.

- :class:`ASGIFast` wraps any ASGI app, on any server.
- :class:`StaticFiles` serves directories; :class:`FileResponse` takes the place of Starlette's.
- :mod:`asgifast.uvicorn` has uvicorn's protocols with sendfile, :mod:`asgifast.workers` gunicorn
  workers that run them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .middleware import ASGIFast
from .static import StaticFiles

if TYPE_CHECKING:
    from .responses import FileResponse

__all__ = ["ASGIFast", "FileResponse", "StaticFiles"]


def __getattr__(name: str) -> Any:
    # FileResponse is Starlette's: it is loaded when it is asked for.
    if name == "FileResponse":
        from .responses import FileResponse

        return FileResponse
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
