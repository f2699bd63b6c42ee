"""The command line: `wsgifast COMMAND`."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..errors import WSGIFastError
from . import compress, files, top
from .arguments import (
    STATUS_CUT_OFF,
    STATUS_INTERRUPTED,
    STATUS_NOT_STARTED,
    STATUS_USAGE,
    Parser,
    log_line,
)
from .bench import command as bench
from .doctor import command as doctor
from .loading import AppNotLoaded, did_you_mean
from .run import command as run
from .terminal import show

_BEGIN = """\
start with your app, as module:app:
  wsgifast doctor shop.wsgi:application     find slow endpoints, and how to fix them
  wsgifast bench shop.wsgi:application /    measure the gain
  wsgifast run shop.wsgi:application        serve it

wsgifast COMMAND --help explains each command.
"""


def program() -> NoReturn:
    """Run one command, and end this process.

    Python waits for threads. Threads of an app that the doctor has loaded, such as its job runner,
    may never end. `wsgifast bench` does not wait for them either.
    """
    _open_missing_streams()
    status = main()
    others = set(threading.enumerate()) - {threading.main_thread()}
    if not all(thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _open_missing_streams() -> None:
    """Open the standard streams that are closed (`>&-`), for which Python has None.

    Otherwise print() does nothing, but flush() fails, and the next file or socket gets the number.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, open(fd, "r" if fd == 0 else "w"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: without the program's name. By default the process's own.
    :returns: the exit status, see `arguments`.
    """
    parser = command_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        parser.print_help(sys.stderr)
        return STATUS_USAGE
    # argparse would consume "--". The words after it are for the server.
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:at])
    if hasattr(options, "paths"):  # argparse finds none behind an option
        options.paths += [each for each in unknown if each.startswith("/")]
        unknown = [each for each in unknown if not each.startswith("/")]
    options.rest = arguments[at + 1 :]
    if not getattr(options, "takes_rest", False):
        unknown += options.rest
    if unknown:
        _refuse(options.parser, unknown)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except WSGIFastError as error:
        # Of a server with logs in JSON.
        logs_json = getattr(options, "logs_json", False)
        text = f"wsgifast: {error}"
        show(log_line(text, "CRITICAL") if logs_json else text, error=True)
        return STATUS_NOT_STARTED if isinstance(error, AppNotLoaded) else STATUS_USAGE
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Output that cannot be written is dropped. Python would try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader of our output, such as `head`, has ended
            return STATUS_CUT_OFF
        show(f"wsgifast: {error.strerror}", error=True)
        return STATUS_USAGE


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    known = [text for action in parser._actions for text in action.option_strings]
    hint = did_you_mean(unknown[0].partition("=")[0], known)
    if not hint and parser.get_default("takes_rest"):
        hint = "; options of the server follow --, behind all others"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def command_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(
        prog="wsgifast",
        description="Find slow endpoints of a web app, measure them, and serve the app.",
        epilog=_BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wsgifast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for command in (doctor, bench, run, top, files, compress):
        command.add_command(commands)
    return parser
