"""Functions and types for the command lines of all commands."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..bodies.access_log import json_line
from ..errors import ConfigurationError, WSGIFastError
from ..http.fields import check_field
from ..sockets.options import Address
from .terminal import lines_of, show

# The exit statuses of all commands. 128 plus a number means a signal, like in shells.

# There are findings, or a part of the work has failed.
STATUS_PART_FAILED = 1
# An option is invalid, or the whole command has failed.
STATUS_USAGE = 2
# The app cannot be loaded or does not start.
STATUS_NOT_STARTED = 3
STATUS_INTERRUPTED = 128 + signal.SIGINT
STATUS_CUT_OFF = 128 + signal.SIGPIPE
DEFAULT_BIND = "127.0.0.1:8000"
# The widths of help texts: of a description, and the most in a wide terminal.
_WIDTH, _MAX_WIDTH = 79, 100
# Visible ASCII without "#", since clients do not send fragments.
_PATH = re.compile(r'/[!"$-~]*')
APP_HELP = (
    "module:app, 'module:factory()', a module with an application or app, a Django settings "
    "module, or a .py file"
)


class Parser(argparse.ArgumentParser):
    """An argument parser that escapes its error messages.

    The messages contain arguments, which may be untrusted file names from a wildcard of the shell.

    :ivar logs_json: a function that returns whether errors must be lines of a JSON log. It is
        called with the words of the command line. None for plain text.
    """

    logs_json: Callable[[Sequence[str]], bool] | None = None
    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if self.logs_json is not None and self.logs_json(self._words):
            show(log_line(f"{self.prog}: {message}", "CRITICAL"), error=True)
            self.exit(STATUS_USAGE)
        super().error(lines_of(message))


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
        super().__init__(prog, width=columns - 2)


def add_parser(
    commands: Any, name: str, *, help: str, examples: str, description: str | None = None
) -> Parser:
    """Add a command to the command line.

    :param help: one line for the list of commands.
    :param examples: command lines, one per line.
    :param description: the description in the help text. The default is `help`.
    """
    lines = "".join(f"  {line.strip()}\n" for line in examples.strip().splitlines())
    parser: Parser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description or f"{help[0].upper()}{help[1:]}.", _WIDTH),
        epilog=f"examples:\n{lines}",
        formatter_class=_Help,
    )
    parser.set_defaults(parser=parser)
    return parser


def option(
    group: Any,
    name: str,
    value: str | None = None,
    help: str = "",
    *,
    default: Any = None,
    repeated: bool = False,
    **more: Any,
) -> None:
    """Add an option.

    :param group: a parser, or a group of a parser.
    :param value: the name of the value in the help text. "" to show the choices. None for an option
        without a value.
    :param default: the default value, which the help text shows.
    :param repeated: whether the option may be repeated. Its value is then a list.
    :param more: further arguments of argparse's add_argument().
    """
    if value is None:
        more["action"] = "store_true"
    else:
        more |= {"metavar": value or None, "default": default}
    if repeated:
        more |= {"action": "append", "default": []}
        help += " (repeatable)"
    elif default is not None:
        help += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
    group.add_argument(name, help=help, **more)


def add_header_options(group: Any) -> None:
    """Add the options that :func:`given_headers` reads."""
    help = "a header to send with every request"
    option(group, "--header", "NAME: X", help, repeated=True, type=pair(":"))
    option(group, "--cookie", "NAME=X", "a cookie, such as a session's", repeated=True)


def given_headers(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the headers for every request, from --header and --cookie.

    :raises BodyError: if a header has an invalid name or value.
    """
    headers = [(name, value.strip()) for name, value in options.header]
    if options.cookie:
        headers.append(("Cookie", "; ".join(options.cookie)))
    return [check_field(name, value) for name, value in headers]


def check_path(path: str) -> None:
    """Check that a client can request a path.

    :raises ConfigurationError: if the path is malformed.
    """
    if not _PATH.fullmatch(path):
        raise ConfigurationError(
            f"{path!r} is not a path: paths begin with a slash and are percent-encoded, as in "
            "/my%20file.pdf?v=2"
        )


def pair(separator: str) -> Callable[[str], tuple[str, str]]:
    """Return the type of an option whose value consists of a name, a separator and a value."""

    def parsed(text: str) -> tuple[str, str]:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME{separator}VALUE")
        return name.strip(), value

    return parsed


def count(text: str, otherwise: str = "") -> int:
    """Parse a whole number of at least 1. The type of an option.

    :param otherwise: a text for the error, with other valid values.
    """
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        expected = f"expected a whole number of at least 1{otherwise}"
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a number of seconds above 0. The type of an option."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return found


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Check a certificate and its key.

    :raises ConfigurationError: if a server cannot use them for TLS.
    """
    if certfile is None:
        if keyfile is not None:
            raise ConfigurationError(f"--keyfile {keyfile}: name the certificate with --certfile")
        return
    requested: list[bool] = []

    def password() -> str:
        requested.append(True)  # the key has a password, for which the server will ask the user
        return ""

    try:
        ssl.create_default_context().load_cert_chain(certfile, keyfile, password)
    except OSError as error:
        if not requested:
            both = certfile if keyfile is None else f"{certfile} --keyfile {keyfile}"
            raise ConfigurationError(
                f"--certfile {both}: {error.strerror}. Expected a certificate and its key in PEM"
            ) from None


def check_writable(option: str, path: str) -> None:
    """Check that the file of an option can be written. The file is not created.

    :raises ConfigurationError: if the file cannot be written.
    """
    target = os.path.realpath(path)  # the target of a link may not exist
    folder = os.path.dirname(target)
    try:
        is_writable = not stat.S_ISDIR(os.stat(target).st_mode) and os.access(target, os.W_OK)
    except FileNotFoundError:
        is_writable = os.path.isdir(folder) and os.access(folder, os.W_OK)
    except OSError:  # the name is too long, or a link to itself
        is_writable = False
    if not path or path.endswith("/") or not is_writable:
        raise ConfigurationError(f"{option} {path}: cannot write this file. Name another file")


def address_of(bind: str) -> Address:
    """Return the address of the option --bind.

    :raises ConfigurationError: if the address is malformed.
    """
    address = Address.read(bind)
    if address is None:
        raise ConfigurationError(f"--bind {bind}: write HOST:PORT or PORT, such as {DEFAULT_BIND}")
    return address


def unix_path(bind: str) -> str | None:
    """Return the path of the Unix socket of the option --bind. None for another address.

    The syntax is that of gunicorn.
    """
    if not bind.startswith("unix:"):
        return None
    return bind.removeprefix("unix:").removeprefix("//")


def check_unix_path(path: str) -> None:
    """Check that a server can listen on a Unix socket.

    The socket may exist if no server listens on it.

    :raises ConfigurationError: if the path is that of another kind of file.
    :raises WSGIFastError: if a server listens on the socket.
    """
    check_writable("--bind", path)
    # lexists(): the target of a symbolic link may not exist.
    is_there = os.path.lexists(path)
    if is_there and not (os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)):
        raise ConfigurationError(
            f"--bind unix:{path}: this file is not a socket, and is not replaced. Name another path"
        )
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            if error.errno is None:  # Python raises this error if the path is too long
                raise cannot_listen(f"unix:{path}", error) from None
            return
    raise WSGIFastError(
        f"cannot listen on unix:{path}: another server listens on it. Name another path"
    )


def cannot_listen(bind: str, error: OSError) -> WSGIFastError:
    """Return the error for an address of --bind on which no socket can listen."""
    # create_server() adds the address to the reason, and this message has it too.
    reason = (error.strerror or str(error)).partition(" (while attempting")[0]
    return WSGIFastError(f"cannot listen on {bind}: {reason}. Name another address with --bind")


def log_line(message: str, level: str = "INFO") -> str:
    """Return a line of a JSON log, with the keys of the servers' error logs."""
    return json_line({"level": level, "process.pid": os.getpid(), "message": message})


def write_file(path: str | Path, text: str) -> None:
    """Write a text file.

    :raises WSGIFastError: if the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WSGIFastError(f"{path}: {error.strerror}") from None
