"""Every shape of body, raw and wrapped, under Locust: `make demo`. ASGI's are at the end.

The short profile takes a minute and a half; `--profile release` about ten.
"""

from __future__ import annotations

from collections.abc import Sequence

from .asgi_shapes import ROWS as ASGI_ROWS
from .command_line import command_line
from .compare import add_load_options, add_serving_options, run_and_report, serving_of
from .comparison import Row
from .serving import APP
from .shapes import SHAPES

__all__ = ["main", "rows"]

# name -> (seconds of a run, rounds, seconds after which a row begins no further round)
PROFILES = {"short": (0.8, 3, 4.0), "release": (5.0, 5, 120.0)}
# Small answers are asked for by several users at once: one alone would measure the round trip.
SMALL_USERS = 8
# Generators are gathered only when that is asked for: these two are shown both ways.
GATHERED = ("generator-of-1", "rows")
# Takes a second each by design; locustfiles/streams.py shows it.
LEFT_OUT = ("ticks",)


def rows(names: Sequence[str] = ()) -> list[Row]:
    """The shapes to load: those named, or all.

    :raises KeyError: if there is no such shape.
    """
    found = []
    for shape in [SHAPES[name] for name in names] or SHAPES.values():
        if shape.name in LEFT_OUT and not names:
            continue
        users = SMALL_USERS if shape.name == "small" else 1
        if shape.name in GATHERED:
            options = {"coalesce": True}
            text = f"{shape.text}, coalesced"
            found.append(Row(shape.path, text, users, shape.size, options))
        else:
            found.append(Row(shape.path, shape.text, users, shape.size))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every wrapped request succeeded."""
    parser = command_line("loadtests.demo", __doc__)
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(SHAPES)}; all without one")
    parser.add_argument("--profile", choices=PROFILES, default="short", help="how long")
    add_serving_options(parser)
    add_load_options(parser, seconds=None, rounds=None)
    given = parser.parse_args(arguments)
    seconds, rounds, row_seconds = PROFILES[given.profile]
    given.seconds = given.seconds or seconds
    given.rounds = given.rounds or rounds
    given.row_seconds = given.row_seconds or row_seconds
    unknown = [name for name in given.shapes if name not in SHAPES]
    if unknown:
        parser.error(f"no such shape: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    try:
        serving = serving_of(given, APP)
    except ValueError as error:
        parser.error(str(error))
    title = "What an app returns"
    asked = rows(given.shapes)
    if not given.shapes:
        asked += ASGI_ROWS
    return run_and_report(serving, asked, given, name="demo", title=title)


if __name__ == "__main__":
    raise SystemExit(main())
