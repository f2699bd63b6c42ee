"""uvicorn's own HTTP protocols, sending with sendfile.

    uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app
    uvicorn --http asgifast.uvicorn:AutoZttpProtocol module:app      (HTTP/2 too: uvicorn 0.54)
    uvicorn.run(app, http=H11Protocol)

uvicorn's parsing, limits, logging, keep-alive and flow control do not change. Two parts differ:

- The transport is an OutputQueue.
- The app's send() is that of a Response. It coalesces small body messages, implements
  http.response.pathsend and http.response.zerocopysend, and passes all other messages to uvicorn's
  own send().

For a pathsend of more than 64 KiB send() returns once the file is open. The app goes on (to its
background tasks, or to return a database connection to the pool) while the client reads. The file
may then be removed or replaced. Writing into it would change the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsgifast.checks import exports_on_demand

if TYPE_CHECKING:
    from .h11 import H11Protocol
    from .httptools import HttpToolsProtocol
    from .protocol import UnsupportedUvicorn
    from .zttp import AutoZttpProtocol, ZttpH2Protocol, ZttpProtocol
else:
    # Each needs its own parser.
    _exported = exports_on_demand(
        __name__,
        {
            "AutoZttpProtocol": ".zttp",
            "H11Protocol": ".h11",
            "HttpToolsProtocol": ".httptools",
            "UnsupportedUvicorn": ".protocol",
            "ZttpH2Protocol": ".zttp",
            "ZttpProtocol": ".zttp",
        },
    )

    def __getattr__(name: str) -> object:
        exported = _exported(name)
        # uvicorn looks --http up in the worker that will serve, before it loads the app.
        if name in __all__:
            from ..exporting import choose_directory

            choose_directory()
        return exported


__all__ = [
    "AutoZttpProtocol",
    "H11Protocol",
    "HttpToolsProtocol",
    "UnsupportedUvicorn",
    "ZttpH2Protocol",
    "ZttpProtocol",
]
