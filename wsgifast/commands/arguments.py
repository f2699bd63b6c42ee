"""Shared parts of the commands: how each is added, and the types of their options."""

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

# Exit statuses of all commands. 1: a finding, or a part failed. 2: a wrong option, or nothing could
# be done. 3: the app cannot be loaded or does not start. Others report a signal, as in shells.
STATUS_PART_FAILED = 1
STATUS_USAGE = 2
STATUS_NOT_STARTED = 3
STATUS_INTERRUPTED = 128 + signal.SIGINT
STATUS_CUT_OFF = 128 + signal.SIGPIPE
DEFAULT_BIND = "127.0.0.1:8000"
# Of help texts. A wider terminal does not make longer lines.
_WIDTH, _MOST_WIDTH = 79, 100
# Visible ASCII without "#": clients do not send a fragment.
_PATH = re.compile(r'/[!"$-~]*')
APP_HELP = (
    "module:app, 'module:factory()', a module with an application or app, a Django settings "
    "module, or a .py file"
)


class Parser(argparse.ArgumentParser):
    """Escapes arguments in its errors: a shell may have made them of foreign file names.

    :ivar logs_json: whether errors are lines of a log in JSON, for the words of the command line.
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
        columns = min(shutil.get_terminal_size().columns, _MOST_WIDTH)
        super().__init__(prog, width=columns - 2)


def add_parser(
    commands: Any, name: str, *, help: str, examples: str, description: str | None = None
) -> Parser:
    """Add a command.

    :param help: one line for the list of commands.
    :param examples: command lines, one in each line.
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

    :param group: a parser, or a group of one.
    :param value: the name of its value. None for an option without one, "" for one of the
        choices.
    :param default: the help text shows it.
    :param repeated: the option's value is a list.
    :param more: as for argparse's add_argument.
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
    """The headers for every request, from --header and --cookie.

    :raises BodyError: for one that cannot be sent.
    """
    headers = [(name, value.strip()) for name, value in options.header]
    if options.cookie:
        headers.append(("Cookie", "; ".join(options.cookie)))
    return [check_field(name, value) for name, value in headers]


def check_path(path: str) -> None:
    """:raises ConfigurationError: if a client cannot ask for it."""
    if not _PATH.fullmatch(path):
        raise ConfigurationError(
            f"{path!r} is not a path: paths begin with a slash and are percent-encoded, as in "
            "/my%20file.pdf?v=2"
        )


def pair(separator: str) -> Callable[[str], tuple[str, str]]:
    """The type of an option with a value of two parts."""

    def parsed(text: str) -> tuple[str, str]:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME{separator}VALUE")
        return name.strip(), value

    return parsed


def count(text: str, otherwise: str = "") -> int:
    """The type of an option: 1, 2, 3 and on.

    :param otherwise: other allowed values, for the error.
    """
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        expected = f"expected a whole number of at least 1{otherwise}"
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}")
    return int(text)


def seconds(text: str) -> float:
    """The type of an option: seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return found


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """:raises ConfigurationError: if TLS cannot be served with them."""
    if certfile is None:
        if keyfile is not None:
            raise ConfigurationError(f"--keyfile {keyfile}: name its certificate by --certfile")
        return
    requested: list[bool] = []

    def password() -> str:
        requested.append(True)  # the server will ask for it
        return ""

    try:
        ssl.create_default_context().load_cert_chain(certfile, keyfile, password)
    except OSError as error:
        if not requested:
            both = certfile if keyfile is None else f"{certfile} --keyfile {keyfile}"
            raise ConfigurationError(
                f"--certfile {both}: {error.strerror}; expected a certificate and its key in PEM"
            ) from None


def check_writable(option: str, path: str) -> None:
    """:raises ConfigurationError: if an option's file cannot be written.

    Nothing is written yet.
    """
    target = os.path.realpath(path)  # a link may lead nowhere
    folder = os.path.dirname(target)
    try:
        is_place = not stat.S_ISDIR(os.stat(target).st_mode) and os.access(target, os.W_OK)
    except FileNotFoundError:
        is_place = os.path.isdir(folder) and os.access(folder, os.W_OK)
    except OSError:  # a name that is too long, a link to itself
        is_place = False
    if not path or path.endswith("/") or not is_place:
        raise ConfigurationError(f"{option} {path}: no file can be written there; name another")


def address_of(bind: str) -> Address:
    """The address that --bind names.

    :raises ConfigurationError: if it is malformed.
    """
    address = Address.read(bind)
    if address is None:
        raise ConfigurationError(f"--bind {bind}: write HOST:PORT or PORT, such as {DEFAULT_BIND}")
    return address


def unix_path(bind: str) -> str | None:
    """The path of the Unix socket that --bind names, as gunicorn reads it, or None."""
    if not bind.startswith("unix:"):
        return None
    return bind.removeprefix("unix:").removeprefix("//")


def check_unix_path(path: str) -> None:
    """Check that a server can listen on a Unix socket. One that no server listens on is replaced.

    :raises ConfigurationError: if another file is there.
    :raises WSGIFastError: if a server listens there.
    """
    check_writable("--bind", path)
    # A symbolic link may lead nowhere.
    is_there = os.path.lexists(path)
    if is_there and not (os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)):
        raise ConfigurationError(
            f"--bind unix:{path}: the file is no socket, and stays; name another"
        )
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            if error.errno is None:  # Python's own: the path is too long
                raise cannot_listen(f"unix:{path}", error) from None
            return
    raise WSGIFastError(f"cannot listen on unix:{path}: a server listens there; name another path")


def cannot_listen(bind: str, error: OSError) -> WSGIFastError:
    """The error if no socket can listen at the address that --bind names."""
    # create_server() appends the address, which is named already.
    reason = (error.strerror or str(error)).partition(" (while attempting")[0]
    return WSGIFastError(f"cannot listen on {bind}: {reason}; name another address with --bind")


def log_line(message: str, level: str = "INFO") -> str:
    """A line of a log in JSON, as a server's error log has it."""
    return json_line({"level": level, "process.pid": os.getpid(), "message": message})


def write_file(path: str | Path, text: str) -> None:
    """Write a text file.

    :raises WSGIFastError: if that is not possible.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WSGIFastError(f"{path}: {error.strerror}") from None
