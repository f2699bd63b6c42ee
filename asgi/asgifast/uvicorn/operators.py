"""Options for operators: health checks, a drain before the stop, and timeouts of requests.

If one of these options is set, :class:`OperatedApp` wraps the app. Without these options the app is
not wrapped, so they cost nothing. A request passes through these steps:

1. OperatedApp responds to health checks itself.
2. A request is refused if too much time has passed since its last byte arrived. If the client has
   closed the connection in that time, the connection is closed without a response.
3. The app is called. Until it returns, the request is in `running`.

While requests are running, a timer checks their deadlines. When a deadline has passed, the client
gets 503, or is disconnected if the response has begun. Then the app's task is cancelled. The time
in which the app waits for its client does not count. After the end of the response, there is no
deadline, so background tasks continue.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from types import AsyncGeneratorType, FrameType
from typing import Any, NamedTuple, cast

from wsgifast import deadlines
from wsgifast.bodies.access_log import queue_seconds
from wsgifast.checks import needs
from wsgifast.deadlines import REQUEST_TIMEOUT, QueueTimeouts, timeout_of
from wsgifast.errors import RequestError
from wsgifast.metrics.health import PLAIN
from wsgifast.server_options import check_probe_paths
from wsgifast.sockets.options import last_received

from ..counters import counters
from ..exporting import instrumented
from ..messages import Receive, Scope, Send, response_body, response_start
from ..request_bodies import send_refusal

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    import uvicorn
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
    from uvicorn.protocols.http.flow_control import service_unavailable

logger = logging.getLogger("uvicorn.error")

# The methods of health checks. The app gets requests with other methods.
_PROBE_METHODS = frozenset({"GET", "HEAD"})
# A client that has ended its sending direction this long ago counts as disconnected. Some clients
# end it when they have sent the request, and still read the response.
_DISCONNECTED_AFTER_S = 0.1
# The number of checks within a deadline, and the longest time between two checks.
_CHECKS_PER_DEADLINE = 10
_MAX_CHECK_INTERVAL_S = 1.0
# The interval in which uvicorn checks whether its server must end.
_TICK_S = 0.1
# For coroutines, generators and asynchronous generators: the prefix of their attributes, and the
# attribute with the object for which they wait.
_AWAITED_ATTRIBUTES = ("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")


class OperatorOptions(NamedTuple):
    """The options of the section "operators" in wsgifast/server_options.py."""

    health_path: str | None
    ready_path: str | None
    access_log_skip: tuple[str, ...]
    drain_delay_s: float
    queue_timeout_s: float
    request_timeout_s: float

    @property
    def are_set(self) -> bool:
        return deadlines.is_decorated or self != _NO_OPTIONS


_NO_OPTIONS = OperatorOptions(None, None, (), 0, math.inf, math.inf)


class Running:
    """A request whose app is running. OperatedApp sets the attributes.

    :ivar scope: the scope. Its `state` may contain a timeout. Copies of the scope share this
        `state`.
    :ivar since: the time when the app was called, plus the time in which it waited for the client.
    :ivar checked_at: the time of the last check.
    :ivar is_timed_out: whether the deadline has passed and the task is cancelled.
    """

    __slots__ = ("checked_at", "is_timed_out", "scope", "since", "task")

    scope: Scope
    task: asyncio.Task[Any]
    since: float
    checked_at: float
    is_timed_out: bool


# The request that the current task or thread handles.
_current: ContextVar[tuple[OperatedApp, Running] | None] = ContextVar(
    "asgifast.running", default=None
)


@lru_cache(maxsize=64)
def operated_app(config: uvicorn.Config, options: OperatorOptions) -> OperatedApp | None:
    """Return the wrapped app of a server with these options, or None if no option is set.

    :raises ConfigurationError: if both health checks have the same path.
    """
    return OperatedApp(config, options) if options.are_set else None


class OperatedApp:
    """Wraps the app of a server that has options for operators.

    It must get the send() of an Exchange.

    :param config: the configuration of the server, with the loaded app.
    :ivar running: the requests with deadlines, by their wires. The protocol removes them.
    """

    def __init__(self, config: uvicorn.Config, options: OperatorOptions) -> None:
        check_probe_paths(options.health_path, options.ready_path)
        self._app, self._options = instrumented(config.loaded_app), options
        prefix = config.root_path
        probes = [each for each in (options.health_path, options.ready_path) if each is not None]
        self._probes = {f"{prefix}{path}".encode(): path for path in probes}
        skipped = [f"{prefix}{path}".encode() for path in options.access_log_skip]
        self._unlogged_paths = frozenset([*self._probes, *skipped])
        proxies: Any = config.forwarded_allow_ips if config.proxy_headers else ()
        self._proxies: Any = ProxyHeadersMiddleware(cast("Any", None), proxies).trusted_hosts
        self._limits_wait = options.queue_timeout_s < math.inf
        self._timeouts = QueueTimeouts("the app")
        self._has_deadlines = deadlines.is_decorated or options.request_timeout_s < math.inf
        self.running: dict[Any, Running] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ending_tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None
        # The value of uvicorn's limit_concurrency. This class checks it, so that it does not apply
        # to health checks.
        self._limit: int | None = None

    def attach(self, server: uvicorn.Server) -> None:
        """Serve as the app of a server."""
        self._server = server
        config = server.config
        if self._probes and config.limit_concurrency is not None:
            self._limit, config.limit_concurrency = config.limit_concurrency, None
        if self._options.drain_delay_s:
            serve = server.main_loop
            server.main_loop = partial(self._serve_and_drain, serve)  # type: ignore[method-assign]

    def tcp_socket(self, transport: asyncio.Transport) -> Any:
        """Return the socket of a connection, to ask the kernel when its last bytes arrived.

        :returns: None without `queue_timeout_s`, and for a Unix socket, for which the kernel does
            not record the time.
        """
        if not self._limits_wait or not isinstance(transport.get_extra_info("peername"), tuple):
            return None
        return transport.get_extra_info("socket")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[Any]:
        """Call the app, or respond in its place.

        This runs for every request, so it makes few function calls.
        """
        wire: Any = send.__self__.wire  # type: ignore[attr-defined]
        cycle = wire.cycle
        path = scope["raw_path"]
        server = self._server
        if server is not None and server.should_exit:
            _end_connection(cycle)
        if path in self._unlogged_paths:
            cycle.access_log = False
            if path in self._probes and scope["method"] in _PROBE_METHODS:
                return self._answer_probe(self._probes[path], send)
        if self._limit is not None and self._is_full(self._limit):
            logger.warning("Exceeded concurrency limit.")
            refuse: Any = service_unavailable
            awaited: Awaitable[Any] = refuse(scope, receive, send)
            return awaited
        if self._limits_wait:
            # The wait begins when the connection's last bytes arrive in the kernel, or at the
            # X-Request-Start of a trusted proxy. The delay of the event loop is only a part of the
            # wait: requests also wait in the queue of new connections, and uvloop accepts one
            # connection at a time.
            protocol = cycle.on_response.__self__  # a method of the protocol
            received = protocol.tcp_socket and last_received(protocol.tcp_socket)
            if received:
                waited_s, has_closed = received
                if has_closed and waited_s >= _DISCONNECTED_AFTER_S:
                    return self._drop(wire)
            else:
                loop = protocol.loop
                waited_s = loop.time() - loop.since
            for name, value in scope["headers"]:
                if name == b"x-request-start":
                    waited_s = max(waited_s, self._seconds_since(value, scope["client"]))
                    break
            if waited_s > self._options.queue_timeout_s:
                return self._shed(wire, send)
        if self._has_deadlines:
            running = self.running[wire] = Running()
            running.scope = scope
            task: Any = asyncio.current_task()
            running.task = task
            running.since = running.checked_at = time.monotonic()
            running.is_timed_out = False
            if deadlines.is_decorated:
                _current.set((self, running))
            if self._timer is None:
                self._check_in(self._options.request_timeout_s / _CHECKS_PER_DEADLINE)
        return self._app(scope, receive, send)

    def has_timed_out(self, wire: Any) -> bool:
        """Return whether a request was cancelled because its deadline had passed."""
        running = self.running.get(wire)
        return running is not None and running.is_timed_out

    # Health checks

    async def _answer_probe(self, path: str, send: Send) -> None:
        is_ok, text = True, "alive"
        if path == self._options.ready_path:
            is_ok, text = self._readiness()
        status = 200 if is_ok else 503
        counters.probes[str(status)] += 1
        body = f"{text}\n".encode()
        headers = [
            (b"content-type", PLAIN.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        await send(response_start(status, headers))
        await send(response_body(body))

    def _readiness(self) -> tuple[bool, str]:
        if counters.is_ending():
            return False, "the server is about to end"
        if self._limit is not None and self._is_full(self._limit):
            return False, f"limit_concurrency={self._limit} is reached"
        return True, "ready"

    def _is_full(self, limit: int) -> bool:
        """Return whether uvicorn would refuse this request because of `limit_concurrency`."""
        state = self._server.server_state
        # uvicorn checks this before it counts the task of the request.
        return len(state.connections) >= limit or len(state.tasks) > limit

    # Drain

    async def _serve_and_drain(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve. After SIGTERM, continue for `drain_delay_s` with failing readiness checks."""
        await serve()
        server = self._server
        signals = server._captured_signals
        if signal.SIGTERM not in signals or signal.SIGINT in signals or not counters.drains():
            return
        delay_s = self._options.drain_delay_s
        logger.info("The stop begins in %g s. Until then, readiness probes fail", delay_s)
        counters.is_draining = True
        end_at = time.monotonic() + delay_s
        tick = 0
        while signal.SIGINT not in signals and (left_s := end_at - time.monotonic()) > 0:
            await server.on_tick(tick)  # updates the Date header and notifies gunicorn
            for connection in list(server.server_state.connections):
                _end_when_idle(connection)
            tick += 1
            await asyncio.sleep(min(left_s, _TICK_S))

    # Requests that have waited too long

    def _seconds_since(self, request_start: bytes, client: Any) -> float:
        """Return the seconds since a trusted proxy received a request, or 0.0.

        :param request_start: the value of X-Request-Start.
        """
        if (client and client[0]) not in self._proxies:
            return 0.0
        return queue_seconds(request_start.decode("latin-1"), time.time()) or 0.0

    async def _drop(self, wire: Any) -> None:
        """Close the connection of a client that has left."""
        counters.shed["client_left"] += 1
        wire.cut_off()

    async def _shed(self, wire: Any, send: Send) -> None:
        counters.shed["queue_timeout"] += 1
        counters.refused[503] += 1
        if not wire.cycle.disconnected:
            error = self._timeouts.error(self._options.queue_timeout_s, logger.warning)
            await send_refusal(send, error)

    # Deadlines

    def _check_in(self, seconds: float) -> None:
        """Check the running requests after this time, or after a second if that is sooner."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(seconds, _MAX_CHECK_INTERVAL_S), self.check_deadlines)

    def check_deadlines(self) -> None:
        """End the requests whose deadlines have passed. Schedule the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        default_s = self._options.request_timeout_s
        left_s = default_s / _CHECKS_PER_DEADLINE
        for wire, running in list(self.running.items()):
            if running.is_timed_out:
                continue
            if wire.cycle.response_complete:
                del self.running[wire]
                continue
            if wire.waits_for_client():
                running.since += now - running.checked_at
            running.checked_at = now
            seconds = timeout_of(running.scope["state"], default_s)
            remaining_s = running.since + seconds - now
            if remaining_s > 0:
                left_s = min(left_s, remaining_s, seconds / _CHECKS_PER_DEADLINE)
                continue
            running.is_timed_out = True
            ending = asyncio.get_running_loop().create_task(_end_timed_out(wire, running, seconds))
            self._ending_tasks.add(ending)
            ending.add_done_callback(self._ending_tasks.discard)
        if self.running:
            self._check_in(left_s)


def _protocol_of(cycle: Any) -> Any:
    """Return the protocol of a cycle of uvicorn."""
    return cycle.on_response.__self__


def _end_when_idle(protocol: Any) -> bool:
    """End an HTTP/2 connection when no request is in progress. Return False for HTTP/1."""
    end: Callable[[], None] | None = getattr(protocol, "end_when_idle", None)
    if end is None:
        return False
    end()
    return True


def _end_connection(cycle: Any) -> None:
    """End the connection of a request after its response.

    The response announces this to the client.
    """
    if not _end_when_idle(_protocol_of(cycle)):
        cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]


async def _end_timed_out(wire: Any, running: Running, seconds: float) -> None:
    """End a request whose deadline has passed."""
    cycle, scope = wire.cycle, running.scope
    stack = _stack_of(running.task)
    counters.request_timeouts += 1
    if cycle.disconnected:
        result = "the client has left"
    elif cycle.response_started or cycle.flow.write_paused:
        result = "the response is cut off"
    else:
        result = "the client gets 503"
        await send_refusal(cycle.send, RequestError(503, "The request has taken too long"))
    if not cycle.response_complete:
        wire.cut_off()
    cycle.disconnected = True  # later messages of the app are ignored
    cycle.message_event.set()
    running.task.cancel()
    logger.error(
        "%s %s has taken longer than request_timeout_s=%g: %s\n%s",
        scope["method"], scope["path"], seconds, result, stack,
    )  # fmt: skip


def _stack_of(task: asyncio.Task[Any]) -> str:
    """Return the stack of a waiting task in the format of a traceback."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        for prefix, following in _AWAITED_ATTRIBUTES:
            frame = getattr(awaited, f"{prefix}_frame", None)
            if frame is not None:
                frames.append((frame, frame.f_lineno))
                awaited = getattr(awaited, following)
                break
        else:
            # In an `async for`, the awaited object refers to the asynchronous generator.
            referents = gc.get_referents(awaited)
            awaited = next(
                (each for each in referents if isinstance(each, AsyncGeneratorType)), None
            )
    stack = "".join(traceback.StackSummary.extract(iter(frames)).format())
    return f"Task {task.get_name()} (most recent call last):\n{stack}"


def _set_timeout(seconds: float | None) -> None:
    """Set the timeout of the caller's request, if the caller handles a request."""
    current = _current.get()
    if current is not None:
        app, running = current
        running.scope["state"][REQUEST_TIMEOUT] = seconds
        running.task.get_loop().call_soon_threadsafe(app.check_deadlines)


deadlines.setters.append(_set_timeout)
