"""The command line: `wsgifast COMMAND`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from . import __version__, compress_command, files_command
from .benchmark import command as benchmark
from .doctor import command as doctor
from .errors import WSGIFastError
from .running import command as running
from .top import command as top

__all__ = ["command_parser", "main"]

_STATUS_USAGE = 2
# As a shell names the end by a signal.
_STATUS_INTERRUPTED = 128 + signal.SIGINT
_STATUS_CUT_OFF = 128 + signal.SIGPIPE

_BEGIN = """\
begin with your app, as module:app:
  wsgifast doctor shop.wsgi:application     what is slow, and what to do about it
  wsgifast bench shop.wsgi:application /    what wsgifast would gain
  wsgifast run shop.wsgi:application        serve it

wsgifast COMMAND --help tells more of each.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: without the program's name; by default the process's own.
    :returns: the exit status: 0; 1 where some files could not be done; 2 for a wrong option.
    """
    parser = command_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        parser.print_help(sys.stderr)
        return _STATUS_USAGE
    # argparse takes "--" for itself; what follows it is another program's.
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    options.rest = arguments[at + 1 :]
    if options.rest and not getattr(options, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(options.rest)}")
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except WSGIFastError as error:
        print(f"wsgifast: {error}", file=sys.stderr)
        return _STATUS_USAGE
    except KeyboardInterrupt:
        return _STATUS_INTERRUPTED
    except BrokenPipeError:
        # Who read our output, `head` for one, has enough. Python would flush it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _STATUS_CUT_OFF


def command_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="wsgifast",
        description="Find what is slow in a web app, measure it, serve it; and its files.",
        epilog=_BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wsgifast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for command in (doctor, benchmark, running, top, files_command, compress_command):
        command.add_command(commands)
    return parser
