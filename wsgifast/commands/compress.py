"""`wsgifast compress DIR`: write precompressed files, or train a dictionary for pages."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checks import size_text
from ..compression.codings import (
    CODING_PACKAGES,
    PRECOMPRESSED_SUFFIXES,
    available_codings,
    checked_codings,
)
from ..compression.dictionaries import train
from ..compression.response import is_private
from ..errors import ConfigurationError, WSGIFastError
from ..files.compress import CompressReport, compress
from .arguments import STATUS_PART_FAILED, add_parser, check_writable, count, option
from .client import HTTPClient, NoResponse
from .terminal import printable, progress_line, show

_PAGE_LIMIT_S = 30


def add_command(commands: Any) -> None:
    """Add `compress` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "compress",
        help="write a compressed copy of each file next to it (.gz, .br, .zst), or a dictionary",
        examples="""
        wsgifast compress site
        wsgifast compress build --codings gzip,br --jobs 2
        wsgifast compress site-2 --against site-1
        wsgifast compress --train http://localhost:8000/ http://localhost:8000/about
        """,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        help="the directory whose files are compressed, with its subdirectories",
    )
    copies = parser.add_argument_group("copies")
    codings = "content codings, such as gzip,br,zstd (default: all whose packages are installed)"
    option(copies, "--codings", "LIST", codings)
    against = "also write deltas (.dcz) for clients that have the files of this earlier release"
    option(copies, "--against", "OLD_DIR", against, repeated=True)
    option(copies, "--jobs", "N", "number of threads (default: one per CPU)", type=count)
    option(copies, "--overwrite", help="also replace outdated compressed files of another tool")
    option(copies, "--quiet", help="do not print progress and a summary")
    dictionary = parser.add_argument_group("dictionary")
    train = "make a dictionary from these pages, for Compression(dictionary=FILE)"
    option(dictionary, "--train", "URL", train, nargs="+")
    output = "file for the dictionary of --train"
    option(dictionary, "--output", "FILE", output, default="pages.dict")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.train:
        return _train(options.train, options.output)
    if options.directory is None:
        options.parser.error("name DIR, or pages by --train")
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
            for coding in sorted(set(PRECOMPRESSED_SUFFIXES) - set(available_codings())):
                show(
                    f"No {PRECOMPRESSED_SUFFIXES[coding]} files were written: to have them, "
                    f"pip install {CODING_PACKAGES[coding]}"
                )
    return STATUS_PART_FAILED if report.failed else 0


def _train(urls: Sequence[str], output: str) -> int:
    """Write a dictionary made of public pages. Skip pages that are not public."""
    checked_codings(["zstd"])
    check_writable("--output", output)
    pages: list[bytes] = []
    for url in urls:
        page, why_not = _page(url)
        if page is None:
            show(f"wsgifast: {printable(url)} is left out: {printable(why_not)}", error=True)
        else:
            pages.append(page)
    dictionary = train(pages)
    if not dictionary:
        raise ConfigurationError("--train: no page is left for the dictionary")
    try:
        Path(output).write_bytes(dictionary)
    except OSError as error:
        raise WSGIFastError(f"--output {output}: {error.strerror}") from None
    show(f"{printable(output)}: {size_text(len(dictionary))} of {len(pages)} pages")
    return STATUS_PART_FAILED if len(pages) < len(urls) else 0


def _page(url: str) -> tuple[bytes | None, str]:
    """Fetch a page. Return None and the reason if it may not be in a public dictionary."""
    client, path = HTTPClient.of_url(url, limit_s=_PAGE_LIMIT_S)
    try:
        response = client.ask(path or "/", headers=[("Accept-Encoding", "identity")])
    except NoResponse as error:
        return None, str(error)
    if response.status != 200:
        return None, f"status {response.status}"
    if response.header("content-encoding") not in (None, "identity"):
        return None, "it is compressed"
    if is_private(response.headers):
        return None, "it has Set-Cookie, private or no-store"
    return response.body, ""


def _summary(report: CompressReport) -> str:
    text = (
        f"{len(report.written)} written, {len(report.current)} up to date, "
        f"{len(report.removed)} removed"
    )
    if report.original_bytes:
        saved = 1 - report.smallest_bytes / report.original_bytes
        text += (
            f"; {size_text(report.original_bytes)} become {size_text(report.smallest_bytes)} "
            f"({saved:.0%} saved)"
        )
    return text
