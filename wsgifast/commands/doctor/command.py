"""The command line of `wsgifast doctor`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ..arguments import (
    APP_HELP,
    STATUS_PART_FAILED,
    STATUS_USAGE,
    add_header_options,
    add_parser,
    check_writable,
    given_headers,
    option,
    pair,
    seconds,
    write_file,
)
from ..loading import load_app
from ..terminal import next_steps, output_width, printable, progress_line, show
from . import examine
from .catalogue import explain
from .endpoints import Allow, Fetch, from_access_log, from_openapi, from_paths
from .formats import FORMATS, as_html, as_text, baseline_of, by_reason
from .model import SEVERITIES, STATIC_FILE, Endpoint, Found, Report

# The maximum number of paths in the suggested command. `wsgifast bench` needs about 15 seconds for
# each path.
_MAX_TO_MEASURE = 3
# The maximum number of reasons in the error message that no view was reached. The report contains
# all reasons.
_MAX_REASONS = 3
# Options that have no effect with --live.
_APP_OPTIONS = ("access_log", "openapi", "value", "all", "unsafe", "https")

_EXAMPLES = """\
  wsgifast doctor shop.wsgi:application
  wsgifast doctor 'shop:create_app()' /export.csv /media/cat.jpg
  wsgifast doctor shop.settings --value slug=cat --cookie sessionid=...
  wsgifast doctor api:app --access-log access.log --format json
  wsgifast doctor --live http://127.0.0.1:8000 /
  wsgifast doctor --explain WF003
"""


def add_command(commands: Any) -> None:
    """Add `doctor` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "doctor",
        help="find endpoints with slow or wrong responses",
        description="Find slow and wrong responses of an app. The doctor runs your app in "
        "this process, and requests each endpoint up to sixty times, with and without wsgifast. It "
        "asks you before it requests endpoints that may change data.",
        examples=_EXAMPLES,
    )
    parser.add_argument("app", nargs="?", help=APP_HELP)
    paths_help = "a path to examine (default: all routes of the framework)"
    parser.add_argument("paths", nargs="*", metavar="/PATH", help=paths_help)
    option(parser, "--live", "URL", "examine a running server from outside")
    explain_help = "explain a finding. Without ID, list all findings"
    option(parser, "--explain", "ID", explain_help, nargs="?", const="all")

    source = parser.add_argument_group("endpoints")
    option(
        source,
        "--access-log",
        "FILE",
        "examine the paths in this access log. It can have the common format, the combined format, "
        "uvicorn's format or wsgifast's JSON format",
    )
    openapi_help = "an OpenAPI document in JSON, or the URL path at which the app serves it"
    option(source, "--openapi", "FILE|/PATH", openapi_help)

    requests = parser.add_argument_group("requests")
    value_help = "a value for a URL parameter, such as slug=cat"
    option(requests, "--value", "NAME=X", value_help, repeated=True, type=pair("="))
    add_header_options(requests)
    all_help = "also request endpoints that may change data (default: on a terminal, ask)"
    option(requests, "--all", help=all_help)
    option(requests, "--unsafe", help="like --all, but also send methods other than GET and HEAD")
    https_help = "send requests with the scheme https, for an app that redirects http to https"
    option(requests, "--https", help=https_help)
    option(requests, "--timeout", "S", "seconds for each request", default=10.0, type=seconds)

    result = parser.add_argument_group("result")
    option(result, "--format", "", "format of the report", default="text", choices=FORMATS)
    option(result, "--html", "FILE", "also write the report as one HTML file")
    level_help = "exit with status 1 if a finding has this severity or a higher one"
    option(result, "--fail-level", "", level_help, default="slow", choices=SEVERITIES)
    option(result, "--baseline", "FILE", "ignore findings that an earlier JSON report contains")
    option(result, "--silence", "ID", "ignore a finding, such as WF010", repeated=True)
    parser.usage = "wsgifast doctor [OPTION ...] [APP] [/PATH ...]"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.explain is not None:
        show(explain(options.explain))
        return 0
    ignored_keys = _baseline(options)
    if options.html is not None:
        check_writable("--html", options.html)
    if options.live is not None:
        from .live import examine_server

        for name in _APP_OPTIONS:
            if getattr(options, name):
                shown = name.replace("_", "-")
                raise ConfigurationError(f"--{shown} has no effect with --live. Name paths instead")
        paths = [each for each in (options.app, *options.paths) if each is not None]
        report = examine_server(
            options.live,
            paths or ["/"],
            headers=given_headers(options),
            limit_s=options.timeout,
            silence=options.silence,
        )
        return _finish(report, options, ignored_keys)
    if options.app is None:
        raise ConfigurationError("name an app, as in: wsgifast doctor shop.wsgi:application")
    with _stdout_restored():
        report = _examine_app(options)
    return _finish(report, options, ignored_keys)


@contextlib.contextmanager
def _stdout_restored() -> Iterator[None]:
    """Redirect the app's output, and that of its processes, to stderr. stdout is for the report."""
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _examine_app(options: argparse.Namespace) -> Report:
    for name in ("html", "access_log", "openapi"):
        if (path := getattr(options, name)) and (name != "openapi" or os.path.isfile(path)):
            setattr(options, name, os.path.abspath(path))  # the app may change the directory
    loaded = load_app(options.app)
    values = dict(options.value)
    with progress_line() as progress:
        return examine(
            loaded.app,
            values=values,
            headers=given_headers(options),
            all_endpoints=_allow(options),
            unsafe=options.unsafe,
            limit_s=options.timeout,
            silence=options.silence,
            scheme="https" if options.https else "http",
            name=options.app,
            found=_finder(options, values),
            progress=lambda number, total, endpoint: progress(number, total, endpoint.name),
        )


def _allow(options: argparse.Namespace) -> bool | Allow:
    """Return whether to request endpoints that may change data, or a function that asks the user.

    The function is returned on a terminal, if the command line names no paths and has neither --all
    nor --unsafe.
    """
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    is_all = bool(options.all or options.unsafe)
    if is_all or options.paths or not is_terminal:
        return is_all
    return _confirm


def _confirm(safe: Sequence[Endpoint], unsafe: Sequence[Endpoint]) -> bool:
    if not unsafe:
        return False
    lines = [f"Endpoints that change no data and are requested: {len(safe)}"]
    lines += [f"  {_shown(each)}: {printable(each.evidence)}" for each in safe]
    lines += ["", f"Endpoints that may change data: {len(unsafe)}"]
    lines += [*(f"  {_shown(each)}" for each in unsafe), ""]
    show("\n".join(lines), error=True)
    question = "Also request these endpoints, each up to sixty times? [y/N] "
    show(question, error=True, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _shown(endpoint: Endpoint) -> str:
    return printable(f"{endpoint.method} {endpoint.url}")


def _finder(options: argparse.Namespace, values: dict[str, str]) -> Callable[[Fetch], Found] | None:
    """Return a function that finds the endpoints that the command line names.

    None if the command line names no endpoints. Then the framework of the app lists the endpoints.
    """

    def find(fetch: Fetch) -> Found:
        found = from_paths(options.paths)
        if options.access_log:
            found += from_access_log(options.access_log)
        if options.openapi:
            found += from_openapi(options.openapi, values, fetch)
        return found

    sources = (options.paths, options.access_log, options.openapi)
    return find if any(sources) else None


def _finish(report: Report, options: argparse.Namespace, ignored_keys: set[str]) -> int:
    """Show the report, and return the exit status.

    :param ignored_keys: the keys of findings to ignore.
    """
    report.findings = [finding for finding in report.findings if finding.key not in ignored_keys]
    if options.format == "text":
        width = output_width()
        colours = width is not None and "NO_COLOR" not in os.environ
        show(as_text(report, width=width, colours=colours), colours=colours)
        if report.findings:
            show(f"\n{_next_steps(report, None if options.live else options.app)}")
    else:
        show(FORMATS[options.format](report))
    if options.html:
        write_file(options.html, as_html(report))
    if report.reaches(options.fail_level):
        return STATUS_PART_FAILED
    evidence = {seen.endpoint.evidence for seen in report.observations}
    if evidence <= {STATIC_FILE} and (report.unreached or not evidence):
        reached = "no view, only files," if evidence else "nothing"
        reasons = "; ".join(reason for reason, _ in by_reason(report.unreached)[:_MAX_REASONS])
        hint = "name paths to which the app responds with 200"
        show(f"wsgifast: {reached} was reached ({reasons}): {hint}", error=True)
        return STATUS_USAGE
    return 0


def _next_steps(report: Report, app: str | None) -> str:
    """Return a text with commands to run next.

    :param app: the app for `wsgifast bench`. None with --live, because bench needs an app.
    """
    steps = [(f"wsgifast doctor --explain {report.findings[0].id}", "what it means")]
    slow = report.of("slow")
    paths = list(
        dict.fromkeys(f.endpoint.url for f in slow if f.saves_s and f.endpoint.method == "GET")
    )
    if app is not None and paths:
        command = ["wsgifast", "bench", app, *paths[:_MAX_TO_MEASURE]]
        if any("coalesce" in finding.fix for finding in slow):
            command.append("--coalesce")
        steps.append((shlex.join(command), "what wsgifast gains"))
    return next_steps(*steps)


def _baseline(options: argparse.Namespace) -> set[str]:
    if options.baseline is None:
        return set()
    try:
        return baseline_of(Path(options.baseline).read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"--baseline {options.baseline}: {reason}. Make a report with --format json"
        ) from None
