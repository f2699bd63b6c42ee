"""The command line `wsgifast COMMAND`."""

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

    At exit, Python waits for all threads that are not daemons. The doctor runs an app in this
    process, and a thread of the app may never end. So this function does not wait for such threads.
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
    """Open closed standard streams (`>&-`) with /dev/null.

    sys.stdout of a closed stream is None, so that sys.stdout.flush() fails. The next file or socket
    would also get the descriptor of the stream.
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

    :param argv: the arguments without the program's name. The default is those of this process.
    :returns: the exit status. See :mod:`.arguments`.
    """
    parser = command_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        parser.print_help(sys.stderr)
        return STATUS_USAGE
    # argparse would remove "--". The words after "--" are for the server.
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:at])
    if hasattr(options, "paths"):  # argparse does not recognize paths after an option
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
        # `wsgifast run` sets logs_json, if the server's logs are in JSON.
        logs_json = getattr(options, "logs_json", False)
        text = f"wsgifast: {error}"
        show(log_line(text, "CRITICAL") if logs_json else text, error=True)
        return STATUS_NOT_STARTED if isinstance(error, AppNotLoaded) else STATUS_USAGE
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Discard the unwritten output: at exit, Python would try to write it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader of the pipe, such as `head`, has ended
            return STATUS_CUT_OFF
        show(f"wsgifast: {error.strerror}", error=True)
        return STATUS_USAGE


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    known = [text for action in parser._actions for text in action.option_strings]
    hint = did_you_mean(unknown[0].partition("=")[0], known)
    if not hint and parser.get_default("takes_rest"):
        hint = ". Write options of the server at the end, after --"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all commands and their options."""
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
