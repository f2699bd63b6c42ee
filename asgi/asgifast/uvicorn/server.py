"""The options, the app and the metrics of one uvicorn server, resolved when it starts.

uvicorn calls no code of a protocol before the first connection. So :meth:`uvicorn.Server.startup`
is wrapped. However a server was started, it runs in the process that serves, once the app is
loaded, and with the environment that the server then has.
"""

from __future__ import annotations

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

# uvicorn's own status for a failure that would repeat at every start: its supervisor ends with it.
_STARTUP_FAILURE = 3


class Served(NamedTuple):
    """The values that all connections of a server share.

    :ivar app: with its requests counted, if metrics are enabled.
    :ivar operated: the same app if it has options for operators, else None.
    :ivar offer: the extensions that the app is offered.
    :ivar by_address: counts the connections of each address. None without a limit.
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
    """The options of asgifast's protocols, for a subclass to set.

    These are `pathsend`, as ASGIFast's option, and the options that are shared with FastWorker
    (wsgifast/server_options.py). An environment variable takes precedence over a shared option,
    such as WSGIFAST_BODY_LIMIT_BYTES.

    - `body_timeout_s` counts while the app waits for the body and has not begun its response.
    - `connections_per_address` counts a connection from the end of its TLS handshake on, until it
      is a WebSocket's. The addresses in uvicorn's forwarded_allow_ips are proxies.
    - `queue_timeout_s` and `request_timeout_s` do not count for WebSockets.
    """

    __slots__ = ()

    pathsend: ClassVar[bool | None] = None
    # Set below, from the rows of the options.
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
        """:raises ConfigurationError: for an option with a value that it cannot have."""
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
        """Return the values for a server with this configuration, resolved at the first call.

        :raises ConfigurationError: for an environment variable with a value that it cannot have.
        :raises MissingExtra: if metrics are enabled, without prometheus_client.
        """
        return _served(config, cls)  # type: ignore[arg-type]


for _name, _option in SHARED.items():
    setattr(ServerOptions, _name, _option.default_of_asgi)


@lru_cache(maxsize=64)
def _served(config: Any, options: Any) -> Served:
    """For uvicorn's configuration, as not every app is hashable."""
    variables = options_of_environment()
    limits: dict[str, Any] = {name: variables.get(name, getattr(options, name)) for name in SHARED}
    begin_under_uvicorn()
    app = config.loaded_app
    most = limits.pop("connections_per_address")
    limits["access_log_skip"] = tuple(limits["access_log_skip"])
    own = {name: limits.pop(name) for name in OperatorOptions._fields}
    operated = operated_app(config, OperatorOptions(**own))
    return Served(
        operated or instrumented(app),
        operated,
        Offer(app, options.pathsend),
        counted_by_address(most, config.forwarded_allow_ips),
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
