"""Option values: what they may be, and those in gunicorn's configuration."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ConfigurationError

# The module that gunicorn makes of a configuration file.
_CONFIGURATION_FILE = "__config__"
_MODULE_PREFIX = "python:"
# The longest time that a socket's timeout, and poll(), may be: 2**31 - 1 ms, some 24 days.
LONGEST_S = (2**31 - 1) / 1000


def check_switches(**switches: object) -> None:
    """:raises ConfigurationError: naming the first option that is not True or False."""
    for name, value in switches.items():
        # Not just any truthy value: "no" and "false" from an environment variable are truthy too.
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} is True or False, not {value!r}")


def is_count(value: object, *, least: int = 0) -> bool:
    """Whether a value is an integer of at least `least`; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, *, least: float, most: float) -> bool:
    """Whether a value is a number within these bounds; NaN, True and False are not.

    Nor is an integer that is too large for a float: adding it to a time would fail.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        most = min(most, sys.float_info.max)
    return least <= value <= most


def list_of_text(value: object) -> list[str] | None:
    """Return the strings of an iterable; None for anything else, such as a str, or one with ""."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return None
    items = list(value)
    return items if all(isinstance(item, str) and item for item in items) else None


def checked_timeout(value: Any, name: str = "timeout") -> float | None:
    """Return a time limit in seconds; None for no limit, as for math.inf and all above LONGEST_S.

    :raises ConfigurationError: for NaN, a negative number, or what is no number.
    """
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except OverflowError:  # an integer that is too large for a float
        seconds = math.inf if value > 0 else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        raise ConfigurationError(
            f"{name}={shown(value)}: seconds from 0 on; math.inf or None for no limit"
        )
    return None if seconds > LONGEST_S else seconds


def shown(value: object) -> str:
    """A value as errors say it: of an integer with too many digits, which repr() refuses, less."""
    try:
        return repr(value)
    except ValueError:
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a value"


def configuration_names(config: str | None) -> Mapping[str, Any]:
    """The names in gunicorn's configuration, which has run; gunicorn ignores unknown ones.

    :param config: gunicorn's setting `config`: a file, or python:MODULE.
    """
    name = _CONFIGURATION_FILE
    if config is not None and config.startswith(_MODULE_PREFIX):
        name = config.removeprefix(_MODULE_PREFIX)
    module = sys.modules.get(name)
    return {} if module is None else vars(module)
