"""The ASGI package of wsgifast.

- :class:`ASGIFast` wraps any ASGI app, on any server.
- :class:`StaticFiles` serves directories. :class:`FileResponse` replaces Starlette's class.
- :mod:`asgifast.uvicorn` contains protocols for uvicorn that use sendfile.
- :mod:`asgifast.workers` contains a gunicorn worker that runs uvicorn with these protocols.
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
