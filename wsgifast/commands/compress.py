"""`wsgifast compress DIR`: write compressed siblings of files."""

from __future__ import annotations

import argparse
from typing import Any

from ..checks import size_text
from ..compression.codings import CODING_PACKAGES, SIBLING_SUFFIXES, available_codings
from ..files.compress import MIN_SAVING, CompressReport, compress
from .arguments import STATUS_PART_FAILED, add_parser, count, option
from .terminal import printable, progress_line, show


def add_command(commands: Any) -> None:
    """Add `compress` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "compress",
        help="write compressed copies of files beside them: .gz, .br, .zst",
        examples="""
        wsgifast compress site
        wsgifast compress build --codings gzip,br --jobs 2
        wsgifast compress site-2 --against site-1
        """,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="the directory whose files are compressed, with its subdirectories",
    )
    codings = "any of gzip,br,zstd (default: those whose package is installed)"
    option(parser, "--codings", "LIST", codings)
    against = (
        "also write deltas (.dcz) to the files of this earlier release, for clients that have it"
    )
    option(parser, "--against", "OLD_DIR", against, repeated=True)
    option(parser, "--jobs", "N", "threads (default: one per CPU)", type=count)
    option(parser, "--overwrite", help="also replace outdated copies that another tool made")
    option(parser, "--quiet", help="print neither progress nor a summary")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    codings = None if options.codings is None else options.codings.replace(" ", "").split(",")
    with progress_line() as progress:
        report = compress(
            options.directory,
            codings=codings,
            jobs=options.jobs,
            overwrite=options.overwrite,
            against=options.against,
            progress=None if options.quiet else progress,
        )
    for name, reason in sorted(report.failed.items()):
        show(f"wsgifast: {printable(name)}: {printable(reason)}", error=True)
    for name in report.left_alone:
        show(
            f"wsgifast: {printable(name)} is a link or older than its original, and was not "
            "written by wsgifast: not replaced (use --overwrite)",
            error=True,
        )
    if not options.quiet:
        show(_summary(report))
        if codings is None:
            for coding in sorted(set(SIBLING_SUFFIXES) - set(available_codings())):
                show(
                    f"No {SIBLING_SUFFIXES[coding]} files were written: to have them, "
                    f"pip install {CODING_PACKAGES[coding]}"
                )
    return STATUS_PART_FAILED if report.failed else 0


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
            f"; {size_text(report.original_bytes)} become {size_text(report.smallest_bytes)} "
            f"({saved:.0%} saved)"
        )
    if left := len(report.not_smaller):
        text += f"; {left} file{'s' * (left > 1)} would not get {MIN_SAVING:.0%} smaller"
    return text
