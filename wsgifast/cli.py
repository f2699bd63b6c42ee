"""The command line: `wsgifast COMMAND`; `files` and `compress` are here."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence

from . import __version__
from .arguments import add_parser
from .benchmark import command as benchmark
from .doctor import command as doctor
from .errors import WSGIFastError
from .files.compress import CODING_PACKAGES, CompressReport, available_codings, compress
from .files.lookup import SIBLING_SUFFIXES
from .running import command as running
from .sockets.address import Address
from .static import StaticFiles
from .terminal import progress_line
from .top import command as top

__all__ = ["command_parser", "main"]

_DEFAULT_BIND = "127.0.0.1:8000"
# Requests at once: what a page asks for together (browsers open six connections), and two more.
_THREADS = 8
_STATUS_FAILED = 1
_STATUS_USAGE = 2
# As a shell names the end by a signal.
_STATUS_INTERRUPTED = 128 + signal.SIGINT
_STATUS_CUT_OFF = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: without the program's name; by default the process's own.
    :returns: the exit status: 0; 1 where some files could not be done; 2 for a wrong option.
    """
    parser = command_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
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
        prog="wsgifast", description="Look at a web app, measure it, serve it; and its files."
    )
    parser.add_argument("--version", action="version", version=f"wsgifast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    files = add_parser(
        commands,
        "files",
        help="serve a directory over HTTP, now",
        examples="""
        wsgifast files site
        wsgifast files build --bind 0.0.0.0:8080 --fallback index.html --no-listing
        """,
    )
    files.add_argument("directory", metavar="DIR", help="what is served")
    files.add_argument(
        "--bind",
        metavar="[HOST:]PORT",
        default=_DEFAULT_BIND,
        help=f"default: {_DEFAULT_BIND}, which this machine alone reaches; port 0 takes a free one",
    )
    files.add_argument("--no-listing", action="store_true", help="directories without index: 404")
    files.add_argument("--hidden-files", action="store_true", help="names with a dot first, too")
    files.add_argument("--follow-symlinks", action="store_true", help="out of DIR, too")
    files.add_argument(
        "--fallback",
        metavar="FILE",
        help="what answers paths without a file (an app's routes)",
    )
    files.set_defaults(run=_run_files)

    packing = add_parser(
        commands,
        "compress",
        help="write .gz, .br and .zst siblings of files",
        examples="""
        wsgifast compress site
        wsgifast compress build --codings gzip,br --jobs 2
        """,
    )
    packing.add_argument("directory", metavar="DIR", help="whose files, and those below it")
    packing.add_argument(
        "--codings",
        metavar="LIST",
        help="of gzip,br,zstd; default: those whose package is installed",
    )
    packing.add_argument("--jobs", type=int, metavar="N", help="default: one for each processor")
    packing.add_argument(
        "--overwrite", action="store_true", help="replace older siblings made by others, too"
    )
    packing.add_argument("--quiet", action="store_true", help="no progress, no summary")
    packing.set_defaults(run=_run_compress)

    doctor.add_command(commands)
    benchmark.add_command(commands)
    running.add_command(commands)
    top.add_command(commands)
    return parser


# files


def _run_files(options: argparse.Namespace) -> int:
    address = Address.read(options.bind)
    if address is None:
        raise WSGIFastError(
            f"--bind {options.bind}: write PORT or HOST:PORT, such as {_DEFAULT_BIND}"
        )
    app = StaticFiles(
        directory=options.directory,
        listing=not options.no_listing,
        hidden_files=options.hidden_files,
        follow_symlinks=options.follow_symlinks,
        fallback=options.fallback,
        max_age=0,  # someone is working on these files: browsers are to ask each time
    )
    try:
        listener = socket.create_server(address, family=address.family, backlog=128)
    except OSError as error:
        raise WSGIFastError(
            f"cannot listen on {options.bind}: {_reason(error)}; name another address "
            "with --bind, or --bind 0 for a free port"
        ) from error
    with listener:
        listening = address._replace(port=listener.getsockname()[1])
        print(
            f"Serving {os.path.abspath(options.directory)} on http://{listening}/ "
            "(end with Ctrl-C)",
            flush=True,
        )
        if not _is_loopback(address.host):
            print("Everyone who reaches this machine can read it.", flush=True)
        try:
            import gunicorn  # noqa: F401
        except ImportError:
            return _serve_with_wsgiref(app, listener)
        return _serve_with_gunicorn(app, listener)


def _serve_with_gunicorn(app: StaticFiles, listener: socket.socket) -> int:
    from gunicorn.app.base import BaseApplication

    from .workers.gunicorn_version import UnsupportedGunicorn, check_gunicorn

    try:
        check_gunicorn()
        worker_class = "wsgifast.workers.FastWorker"
    except UnsupportedGunicorn:
        worker_class = "gthread"
    # gunicorn's from here on; the configuration is loaded again at each SIGHUP.
    bind = f"fd://{listener.detach()}"

    class Application(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            self.cfg.set("bind", bind)
            self.cfg.set("worker_class", worker_class)
            self.cfg.set("threads", _THREADS)
            self.cfg.set("loglevel", "warning")

        def load(self) -> StaticFiles:
            return app

    try:
        Application().run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _serve_with_wsgiref(app: StaticFiles, listener: socket.socket) -> int:
    from .devservers import ThreadingWSGIServer, WSGIRequestHandler

    class Server(ThreadingWSGIServer):
        address_family = listener.family

        def server_bind(self) -> None:
            self.socket.close()
            self.socket = listener
            self.server_name, self.server_port = listener.getsockname()[:2]
            self.setup_environ()

    with Server(listener.getsockname(), WSGIRequestHandler) as server:
        server.set_app(app)
        server.serve_forever()
    return 0


def _reason(error: OSError) -> str:
    # create_server() appends the address, which is named already, and makes an OSError of any; the
    # numbers of getaddrinfo()'s are negative, and none of errno's.
    if error.errno is None or error.errno < 0:
        return (error.strerror or str(error)).partition(" (while attempting")[0]
    return os.strerror(error.errno)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# compress


def _run_compress(options: argparse.Namespace) -> int:
    codings = None if options.codings is None else options.codings.split(",")
    with progress_line() as progress:
        report = compress(
            options.directory,
            codings=codings,
            jobs=options.jobs,
            overwrite=options.overwrite,
            progress=None if options.quiet else progress,
        )
    for name, reason in sorted(report.failed.items()):
        print(f"wsgifast: {name}: {reason}", file=sys.stderr)
    for name in report.left_alone:
        print(
            f"wsgifast: {name} is older than its original or a link, and not from here: left "
            "alone (--overwrite replaces it)",
            file=sys.stderr,
        )
    if not options.quiet:
        print(_summary(report))
        if codings is None:
            for coding in sorted(set(SIBLING_SUFFIXES) - set(available_codings())):
                print(
                    f"No {SIBLING_SUFFIXES[coding]} files: pip install {CODING_PACKAGES[coding]} "
                    "brings them."
                )
    return _STATUS_FAILED if report.failed else 0


def _summary(report: CompressReport) -> str:
    parts = [
        f"{len(report.written)} written",
        f"{len(report.current)} already there",
        f"{len(report.removed)} removed",
    ]
    text = ", ".join(parts)
    if report.original_bytes:
        saved = 1 - report.smallest_bytes / report.original_bytes
        text += (
            f"; {report.original_bytes / 1e3:,.0f} kB become "
            f"{report.smallest_bytes / 1e3:,.0f} kB ({saved:.0%} saved)"
        )
    return text
