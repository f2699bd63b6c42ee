"""Deadlines for the wait and for the app of a request, in FastWorker and asgifast's protocols.

A view may set the deadline of its request. The server of the process registers a function that sets
it, in `setters`.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from .checks import is_number
from .errors import ConfigurationError, RequestError

# : The key of the deadline in an environ, or in the `state` of a scope: seconds after the call of
#: the app on, or None for no deadline.
REQUEST_TIMEOUT: Final = "wsgifast.request_timeout_s"

_View = TypeVar("_View", bound=Callable[..., Any])

# The functions of servers that set the deadline of the current request, from seconds or None.
setters: list[Callable[[float | None], object]] = []
# Whether request_timeout() was called for any view.
is_decorated = False

# The least time between two warnings about refused requests.
_WARN_AGAIN_S = 60.0


class QueueTimeout(RequestError):
    """Raised if a request has waited too long for the app (RFC 9110 sections 15.6.4 and 10.2.3)."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(503, "The server is busy: try again later")
        self.headers = (("Retry-After", str(max(1, math.ceil(timeout_s)))),)


class QueueTimeouts:
    """Makes the errors for requests that have waited too long, and logs warnings.

    :param awaited: what the requests wait for, as text for the warning.
    """

    def __init__(self, awaited: str) -> None:
        self._awaited = awaited
        self._warned_at = -math.inf
        self._refused = 0

    def error(self, timeout_s: float, warn: Callable[..., object]) -> QueueTimeout:
        """Count a refused request, and return the error for the response.

        :param warn: the method of a logger.
        """
        self._refused += 1
        now = time.monotonic()
        if now - self._warned_at >= _WARN_AGAIN_S:
            self._warned_at = now
            count, self._refused = self._refused, 0
            warn(
                "Requests have waited longer than queue_timeout_s=%g for %s: %d refused",
                timeout_s,
                self._awaited,
                count,
            )
        return QueueTimeout(timeout_s)


def is_timeout(seconds: object) -> bool:
    """Return whether a value is a number of seconds above 0, or math.inf."""
    return is_number(seconds, least=0, most=math.inf) and seconds != 0


def timeout_of(values: Mapping[str, Any] | None, default_s: float) -> float:
    """Return the deadline of a request, in seconds after the call of the app.

    :param values: the environ, or the `state` of the scope. None if there is none yet.
    :param default_s: the result if the request has no value, or an invalid one.
    """
    if values is None or REQUEST_TIMEOUT not in values:
        return default_s
    seconds = values[REQUEST_TIMEOUT]
    if seconds is None:
        return math.inf
    return float(seconds) if is_timeout(seconds) else default_s


def request_timeout(seconds: float | None) -> Callable[[_View], _View]:
    """Set the deadline of a view or an app, in place of `request_timeout_s`.

    The decorator has an effect under FastWorker and asgifast's protocols. asgifast's protocols
    check deadlines only if `request_timeout_s` is set, or if a view is decorated before the server
    starts.

    :param seconds: the time after the call of the app. None for no deadline.
    :raises ConfigurationError: if the value is not a number above 0.
    """
    if seconds is not None and not is_timeout(seconds):
        raise ConfigurationError(
            f"request_timeout({seconds!r}): expected seconds above 0, or None for no deadline"
        )

    def decorate(view: _View) -> _View:
        global is_decorated
        is_decorated = True

        def begin() -> None:
            for set_timeout in setters:
                set_timeout(seconds)

        # The wrapper of a coroutine function must be one too, because frameworks check this.
        if inspect.iscoroutinefunction(view):

            @functools.wraps(view)
            async def call_later(*args: Any, **kwargs: Any) -> Any:
                begin()
                return await view(*args, **kwargs)

            return call_later  # type: ignore[return-value]

        @functools.wraps(view)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin()
            return view(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
