"""The deadline of one request, which a view sets itself, on FastWorker.

The server of the process adds a function that sets the deadline of the caller's request.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .checks import is_number
from .errors import ConfigurationError

#: The key of an environ for the deadline: seconds from the call of the app on, or None for no
#: deadline.
REQUEST_TIMEOUT: Final = "wsgifast.request_timeout_s"

_View = TypeVar("_View", bound=Callable[..., Any])

# Called with the seconds, or None.
setters: list[Callable[[float | None], object]] = []


def is_timeout(seconds: object) -> bool:
    """Return whether a value is a number of seconds above 0. math.inf is one."""
    return is_number(seconds, least=0, most=math.inf) and seconds != 0


def timeout_of(values: dict[str, Any] | None, default_s: float) -> float:
    """Return the deadline of a request, in seconds from the call of the app on.

    :param values: its environ, once there is one.
    :param default_s: used also in place of a value that is no number.
    """
    if values is None or REQUEST_TIMEOUT not in values:
        return default_s
    seconds = values[REQUEST_TIMEOUT]
    if seconds is None:
        return math.inf
    return float(seconds) if is_timeout(seconds) else default_s


def request_timeout(seconds: float | None) -> Callable[[_View], _View]:
    """Give a view, or an app, a deadline of its own in place of `request_timeout_s`.

    It has no effect on other servers than FastWorker.

    :param seconds: from the call of the app on. None for no deadline.
    :raises ConfigurationError: for a value that is no number above 0.
    """
    if seconds is not None and not is_timeout(seconds):
        raise ConfigurationError(
            f"request_timeout({seconds!r}): expected seconds above 0, or None for no deadline"
        )

    def decorate(view: _View) -> _View:
        def begin() -> None:
            for set_timeout in setters:
                set_timeout(seconds)

        # Frameworks look at whether a view is a coroutine function.
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
