"""Checks of option values."""

from __future__ import annotations

from .errors import ConfigurationError

__all__ = ["check_switches", "is_count", "is_number"]


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
    """Whether a value is a number within these bounds; NaN, True and False are not."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    )
