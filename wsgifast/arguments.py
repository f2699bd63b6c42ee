"""What the commands have in common: how each is added, and the values of their options."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import WSGIFastError

__all__ = [
    "APP_HELP",
    "STATUS_NOT_STARTED",
    "add_header_options",
    "add_parser",
    "count",
    "given_headers",
    "pair",
    "seconds",
    "write_file",
]

# The exit status of a command that finds no app, or one that does not start.
STATUS_NOT_STARTED = 3
_WIDTH = 79  # columns
APP_HELP = "module:app, 'module:factory()', a Django settings module, or a .py file"


def add_parser(
    commands: Any, name: str, *, help: str, examples: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command.

    :param help: one line, among the other commands' lines.
    :param examples: command lines, one in each line.
    """
    lines = "".join(f"  {line.strip()}\n" for line in examples.strip().splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description or f"{help[0].upper()}{help[1:]}.", _WIDTH),
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_header_options(group: Any) -> None:
    """Add the options that :func:`given_headers` reads."""
    group.add_argument(
        "--header",
        metavar="NAME: X",
        action="append",
        default=[],
        type=pair(":"),
        help="of every request; may be repeated",
    )
    group.add_argument(
        "--cookie", metavar="NAME=X", action="append", default=[], help="such as a session's"
    )


def given_headers(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The fields for every request."""
    headers = [(name, value.strip()) for name, value in options.header]
    if options.cookie:
        headers.append(("Cookie", "; ".join(options.cookie)))
    return headers


def pair(separator: str) -> Callable[[str], tuple[str, str]]:
    """The type of an option's value that has two parts."""

    def parsed(text: str) -> tuple[str, str]:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME{separator}VALUE")
        return name.strip(), value

    return parsed


def count(text: str) -> int:
    """An option's value: 1, 2, 3, ..."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    """An option's value: seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds above 0")
    return found


def write_file(path: str | Path, text: str) -> None:
    """:raises WSGIFastError: if that is not possible; in one sentence."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WSGIFastError(f"{path}: {error.strerror}") from None
