"""End the responses to requests that are past their deadlines, because their apps take too long.

Theory of operation
-------------------
The main thread checks the running requests about once a second, and when the next deadline is due.
No other thread checks deadlines. At the deadline, the client gets a response with 503. If the app's
response has begun, the client is disconnected instead. In both cases, the response's output queue
stores an error. So the app's later output is discarded, and the app's next write() raises the
error. The app's thread cannot be stopped. When the app returns, its thread closes the connection.

    running --the app returns--> ended
            --the deadline--> timed out --the app returns--> ended

Two steps can end a running request: the app's return (:meth:`.Channel.finish_when_sent`) and the
deadline (:meth:`.Application.time_out`). Both need the lock of the response's output. So only one
of them ends the request.

If all requests of a worker are past their deadlines, the worker cannot serve other clients. So it
ends, and gunicorn replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..deadlines import REQUEST_TIMEOUT, setters, timeout_of
from .monitor import Member, stack_of, this_thread
from .shared import Shared


class RequestTimedOut(TimeoutError):
    """Raised in an app that has exceeded the request's deadline."""


class Deadlines:
    """Finds requests that are past their deadlines. Only the main thread uses it.

    :param members: the threads that run apps.
    :param time_out: ends the response to a request. It returns a text for the log that says how the
        response ended, or None if the app has returned in the meantime.
    :param kill: ends the server.
    """

    def __init__(
        self,
        shared: Shared,
        members: Iterable[Member],
        time_out: Callable[[Any, Any, Exception], str | None],
        kill: Callable[[], object],
    ) -> None:
        self._shared = shared
        self._default_s = shared.options.request_timeout_s
        self._members = list(members)
        self._time_out, self._kill = time_out, kill
        self._has_killed = False

    def check(self, now: float) -> float:
        """End the responses of requests that are past their deadlines.

        :param now: the monotonic time.
        :returns: the maximum time in seconds until the next check.
        """
        next_check_s = self._default_s
        overdue = 0
        for member in self._members:
            channel, since = member.job, member.since
            exchange = None if channel is None else channel.exchange
            if exchange is None or channel.connection().hijacked:
                continue
            # The exchange may be the connection's next request, which began after `since`.
            since = max(since, exchange.started)
            seconds = timeout_of(exchange.environ, self._default_s)
            if now < since + seconds:
                next_check_s = min(next_check_s, since + seconds - now)
                continue
            overdue += 1
            if not exchange.is_timed_out:
                self._end(member, channel, exchange, seconds)
        if overdue == len(self._members) and not self._has_killed:
            self._has_killed = True
            self._shared.log.critical(
                "All %d threads are past the deadlines of their requests: the worker ends", overdue
            )
            self._kill()
        return next_check_s

    def _end(self, member: Member, channel: Any, exchange: Any, seconds: float) -> None:
        stack = stack_of(member)
        error = RequestTimedOut(f"the request took longer than {seconds:g} s")
        outcome = self._time_out(channel, exchange, error)
        if outcome is not None:
            self._shared.counters.request_timeouts += 1
            self._shared.log.error(
                "%s %s has taken longer than request_timeout_s=%g: %s\n%s",
                exchange.req.method,
                exchange.req.uri,
                seconds,
                outcome,
                stack,
            )


def _set_timeout(seconds: float | None) -> None:
    """Set the deadline of the request that this thread serves. Do nothing in other threads."""
    member: Member | None = getattr(this_thread, "member", None)
    exchange = None if member is None or member.job is None else member.job.exchange
    if exchange is not None and exchange.environ is not None:
        exchange.environ[REQUEST_TIMEOUT] = seconds


setters.append(_set_timeout)
