"""The ASGI half of wsgifast.

- :class:`ASGIFast` wraps any ASGI app, on any server.
- :class:`StaticFiles` serves directories; :class:`FileResponse` takes the place of Starlette's.
- :mod:`asgifast.uvicorn` has uvicorn's protocols with sendfile, :mod:`asgifast.workers` a gunicorn
  worker that runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsgifast.checks import exports_on_demand

if TYPE_CHECKING:
    from .middleware import ASGIFast
    from .responses import FileResponse
    from .static import StaticFiles
else:
    __getattr__ = exports_on_demand(
        __name__,
        {"ASGIFast": ".middleware", "FileResponse": ".responses", "StaticFiles": ".static"},
    )

__all__ = ["ASGIFast", "FileResponse", "StaticFiles"]
