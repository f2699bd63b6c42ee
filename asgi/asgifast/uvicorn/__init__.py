"""uvicorn's HTTP protocols with sendfile.

    uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app
    uvicorn --http asgifast.uvicorn:AutoZttpProtocol module:app      (HTTP/2 too: uvicorn 0.54)
    uvicorn.run(app, http=H11Protocol)

uvicorn's parsing, limits, logging, keep-alive and flow control do not change. Two objects are
replaced:

- The transport is replaced by an OutputQueue.
- The send() of the app is replaced by that of an Exchange. It coalesces small body messages,
  implements http.response.pathsend and http.response.zerocopysend, and passes all other messages to
  uvicorn's send().

If a body ends with a file of more than 64 KiB, send() returns when the file is open. While the
client reads, the app continues, for example with background tasks, or to return a database
connection to the pool. The file may then be removed or replaced. If its content is overwritten, the
response changes.
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
    # Each protocol is imported on demand, because each needs another parser.
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
        # uvicorn imports the class of --http in the worker process, before it loads the app.
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
