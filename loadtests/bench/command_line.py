"""What the command lines here have in common: `--help`, and a refusal of what they do not know."""

from __future__ import annotations

import argparse

from .runner import Profile

__all__ = ["add_profile_options", "command_line", "count", "positive"]


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE`, to which its own options are added.

    :param doc: the module's docstring, which its help begins with.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=_WithDefaults
    )


class _WithDefaults(argparse.RawDescriptionHelpFormatter):
    """Names the default of every option that has one worth naming."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        worth = action.default not in (None, False, "", argparse.SUPPRESS, [])
        return f"{action.help} (%(default)s)" if worth else action.help


def add_profile_options(parser: argparse.ArgumentParser, default: Profile | None = None) -> None:
    """The options that bound a run.

    :param default: what they are without; None: another option says it.
    """
    group = parser.add_argument_group("load")
    group.add_argument(
        "--seconds", type=positive, default=default and default.seconds, help="of one run"
    )
    group.add_argument(
        "--rounds", type=count, default=default and default.rounds, help="runs of each side"
    )
    group.add_argument(
        "--row-seconds",
        type=positive,
        default=default and default.row_seconds,
        help="begin no further round of a row after this time",
    )


def positive(text: str) -> float:
    """An option's value: a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def count(text: str) -> int:
    """An option's value: 1, 2, 3, ..."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
