"""Resolve the options, the app and the metrics of a uvicorn server when it starts.

uvicorn does not call a protocol before the first connection. So this module wraps
:meth:`uvicorn.Server.startup`, which runs in the worker process after the app has been loaded.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache, wraps
from typing import Any, ClassVar, NamedTuple

from wsgifast.checks import needs
from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.files.temporary import return_large_blocks
from wsgifast.server_options import SHARED, options_of_environment
from wsgifast.sockets.client_limits import ConnectionsByAddress

from ..counters import counters
from ..exporting import begin_under_uvicorn, instrumented
from ..messages import ASGIApp
from ..pathsend import Offer
from ..protocols.receiving import counted_by_address
from .operators import OperatedApp, OperatorOptions, operated_app

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn
with contextlib.suppress(ImportError):
    # return_large_blocks() uses ctypes. An import on the event loop would read files there.
    import ctypes  # noqa: F401

# uvicorn's exit status for a failed startup. uvicorn's supervisor does not restart a worker with
# this status.
_STARTUP_FAILURE = 3


class Served(NamedTuple):
    """The values that all connections of a server share.

    :ivar app: the app. If metrics are enabled, its requests are counted.
    :ivar operated: the wrapper of the app, if options for operators are set. Otherwise None.
    :ivar offer: the extensions that the app is offered.
    :ivar by_address: counts the connections of each address. None if there is no limit.
    """

    app: ASGIApp
    operated: OperatedApp | None
    offer: Offer
    by_address: ConnectionsByAddress | None
    body_limit_bytes: int | None
    head_limit_bytes: int
    head_timeout_s: float
    body_timeout_s: float


class ServerOptions:
    """The options of asgifast's protocols. A subclass of a protocol may set them.

    These are `pathsend`, like ASGIFast's option, and the options that are shared with FastWorker
    (wsgifast/server_options.py). An environment variable, such as WSGIFAST_BODY_LIMIT_BYTES, takes
    precedence over a shared option.

    - `body_timeout_s` applies while the app waits for the body and has not begun its response.
    - `connections_per_address` counts a connection from the end of its TLS handshake until it
      becomes a WebSocket. It does not apply to the proxies in uvicorn's forwarded_allow_ips.
    - `queue_timeout_s` and `request_timeout_s` do not apply to WebSockets.
    """

    __slots__ = ()

    pathsend: ClassVar[bool | None] = None
    # Set below, with the defaults of the shared options.
    body_limit_bytes: ClassVar[int | None]
    head_limit_bytes: ClassVar[int]
    head_timeout_s: ClassVar[float]
    body_timeout_s: ClassVar[float]
    connections_per_address: ClassVar[float]
    health_path: ClassVar[str | None]
    ready_path: ClassVar[str | None]
    access_log_skip: ClassVar[Sequence[str]]
    drain_delay_s: ClassVar[float]
    queue_timeout_s: ClassVar[float]
    request_timeout_s: ClassVar[float]

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the options of a subclass.

        :raises ConfigurationError: if the value of an option is invalid."""
        super().__init_subclass__(**options)
        for name, option in SHARED.items():
            default = option.default_of_asgi
            value = vars(cls).get(name, default)
            if value != default and not option.kind.is_allowed(value):
                raise ConfigurationError(
                    f"{cls.__name__}.{name}={value!r}: expected {option.kind.expected}"
                )

    @classmethod
    def served_by(cls, config: uvicorn.Config) -> Served:
        """Return the values for a server with this configuration. The first call resolves them.

        :raises ConfigurationError: if the value of an environment variable is invalid.
        :raises MissingExtra: if metrics are enabled and prometheus_client is not installed.
        """
        return _served(config, cls)  # type: ignore[arg-type]


for _name, _option in SHARED.items():
    setattr(ServerOptions, _name, _option.default_of_asgi)


@lru_cache(maxsize=64)
def _served(config: Any, options: Any) -> Served:
    """Return the values for a configuration.

    The cache needs hashable arguments, and some apps are not.
    """
    variables = options_of_environment()
    limits: dict[str, Any] = {name: variables.get(name, getattr(options, name)) for name in SHARED}
    begin_under_uvicorn()
    app = config.loaded_app
    max_connections = limits.pop("connections_per_address")
    limits["access_log_skip"] = tuple(limits["access_log_skip"])
    operator_values = {name: limits.pop(name) for name in OperatorOptions._fields}
    operated = operated_app(config, OperatorOptions(**operator_values))
    return Served(
        operated or instrumented(app),
        operated,
        Offer(app, options.pathsend),
        counted_by_address(max_connections, config.forwarded_allow_ips),
        **limits,
    )


def _resolve_at_startup() -> None:
    startup = uvicorn.Server.startup

    @wraps(startup)
    async def resolving(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        protocol = server.config.http_protocol_class
        if isinstance(protocol, type) and issubclass(protocol, ServerOptions):
            try:
                served = protocol.served_by(server.config)
            except (ConfigurationError, MissingExtra) as error:
                logging.getLogger("uvicorn.error").error("%s", error)
                sys.exit(_STARTUP_FAILURE)
            counters.is_ending = lambda: server.should_exit
            return_large_blocks()
            if served.operated is not None:
                served.operated.attach(server)
        await startup(server, sockets)

    uvicorn.Server.startup = resolving  # type: ignore[assignment, method-assign]


_resolve_at_startup()
