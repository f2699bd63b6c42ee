"""Ends requests that wait too long for a thread, and requests whose apps take too long.

Theory of operation
-------------------
An overloaded server serves the oldest request first. So each request waits until its client is
about to give up, and most responses arrive too late. With `queue_timeout_s`, the server refuses
overdue requests at once (:class:`Shedding`). Its threads then serve clients that still wait.

An app has a deadline for its response (:class:`Deadlines`). The main thread checks the running
requests about once a second, and when the next deadline is due. No other thread checks deadlines.
At the deadline, the client gets a response with 503. If the app's response has begun, the client is
disconnected instead. In both cases, the response's output queue stores an error. So the app's later
output is discarded, and its next write() raises. The app's thread cannot be stopped. When the app
returns, its thread closes the connection.

    running --the app returns--> ended
            --the deadline--> timed out --the app returns--> ended

Two steps can end a running request: the app's return (:meth:`.Channel.finish_when_sent`) and the
deadline (:meth:`.Application.time_out`). Both need the lock of the response's output. So only one
of them ends the request.

If all requests of a worker are past their deadlines, the worker cannot serve other clients. So it
ends, and gunicorn replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..deadlines import REQUEST_TIMEOUT, QueueTimeout, QueueTimeouts, setters, timeout_of
from ..sockets.options import last_received
from .channel import Channel, exchange_of_this_thread
from .monitor import Member, stack_of
from .shared import Shared


class Shedding:
    """Decides which requests have waited too long."""

    def __init__(self, shared: Shared) -> None:
        self._timeout_s = shared.options.queue_timeout_s
        self._shared = shared
        self._timeouts = QueueTimeouts("a thread")

    def is_overdue(self, channel: Channel) -> bool:
        """Return whether a request has waited longer than queue_timeout_s.

        The time starts when the kernel has received the request's last byte. With an
        X-Request-Start header of a trusted proxy, the time starts there.
        """
        exchange = channel.exchange
        if exchange is None:  # the client has reset its stream
            return False
        # Most requests have waited neither here nor in a proxy.
        has_waited = exchange.queued or "HTTP_X_REQUEST_START" in exchange.fields
        waited_s = exchange.waited_s() if has_waited else 0.0
        accepted = channel.connection()
        is_tcp = isinstance(accepted.peer, tuple)
        if is_tcp and (received := last_received(accepted.sock)) is not None:
            # The times are not added, because the proxy's time includes the time in the kernel.
            waited_s = max(waited_s, received[0])
        return waited_s > self._timeout_s

    def error(self) -> QueueTimeout:
        """Count a refused request, and return the error to respond with."""
        self._shared.counters.shed["queue_timeout"] += 1
        return self._timeouts.error(self._timeout_s, self._shared.log.warning)


class RequestTimedOut(TimeoutError):
    """Raised in an app that has exceeded the request's deadline."""


@dataclass(eq=False, repr=False)
class Deadlines:
    """Finds requests that are past their deadlines. Only the main thread uses it.

    :param members: the threads that run apps.
    :param time_out: ends the response to a request. It returns a text for the log that says how the
        response ended, or None if the app has returned in the meantime.
    :param kill: see :meth:`.Server.kill`.
    """

    shared: Shared
    members: Sequence[Member]
    time_out: Callable[[Any, Any, Exception], str | None]
    kill: Callable[..., object]

    def check(self, now: float) -> float:
        """End the responses of requests that are past their deadlines.

        :param now: the monotonic time.
        :returns: the maximum time in seconds until the next check.
        """
        next_check_s = default_s = self.shared.options.request_timeout_s
        overdue = 0
        for member in self.members:
            channel, since = member.job, member.since
            exchange = None if channel is None else channel.exchange
            if exchange is None or channel.connection().hijacked:
                continue
            # The exchange may be the connection's next request, which began after `since`.
            since = max(since, exchange.started)
            seconds = timeout_of(exchange.environ, default_s)
            if now < since + seconds:
                next_check_s = min(next_check_s, since + seconds - now)
                continue
            overdue += 1
            if not exchange.is_timed_out:
                self._end(member, channel, exchange, seconds)
        if overdue == len(self.members):
            self.kill("All %d threads are past the deadlines of their requests", overdue)
        return next_check_s

    def _end(self, member: Member, channel: Any, exchange: Any, seconds: float) -> None:
        stack = stack_of(member)
        error = RequestTimedOut(f"the request took longer than {seconds:g} s")
        outcome = self.time_out(channel, exchange, error)
        if outcome is not None:
            self.shared.counters.request_timeouts += 1
            self.shared.log.error(
                "%s %s has taken longer than request_timeout_s=%g: %s\n%s",
                exchange.req.method,
                exchange.req.uri,
                seconds,
                outcome,
                stack,
            )


def _set_timeout(seconds: float | None) -> None:
    """Set the deadline of the request that this thread serves. Do nothing in other threads."""
    exchange = exchange_of_this_thread()
    if exchange is not None and exchange.environ is not None:
        exchange.environ[REQUEST_TIMEOUT] = seconds


setters.append(_set_timeout)
