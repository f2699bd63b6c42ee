"""Run field reports, print their tables, write their JSON and the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import get_args

from loadtests.command_line import command_line
from loadtests.measuring import machine, save, table
from loadtests.measuring.results import REPORTS

from .page import READING, Measured, page
from .result import Figures, Profile

# In the order of the page: what the command line calls it -> its module in this package.
REPORT_MODULES = {
    "wsgiref": "wsgiref_payloads",
    "imap": "mail_append",
    "smtp": "mail_throughput",
    "coalescing": "coalescing",
    "receive": "receive",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("loadtests.field_reports", __doc__)
    parser.add_argument("reports", nargs="*", help=f"of {', '.join(REPORT_MODULES)}")
    parser.add_argument(
        "--profile",
        choices=get_args(Profile),
        default="quick",
        help="full: as much as then",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.reports) - REPORT_MODULES.keys():
        parser.error(f"there is no report {', '.join(sorted(unknown))}")
    measured = []
    for name in options.reports or REPORT_MODULES:
        module = import_module(f".{REPORT_MODULES[name]}", __package__)
        print(f"\n== {module.TITLE}", flush=True)
        started = time.perf_counter()
        result = module.run(options.profile)
        seconds = time.perf_counter() - started
        for figures in (module.OLD, *result.tables):
            _print(figures)
        print(f"What has changed: {result.changed}\n")
        print(f"Measured in {seconds:.0f} s; {save(f'field-report-{name}', result.raw)}")
        measured.append(Measured(module.TITLE, module.OLD, result))
    path = REPORTS / "field-reports.html"
    path.write_text(page(measured, {"profile": options.profile, **machine()}), encoding="utf-8")
    print()
    for report in measured:
        line = report.result.summary
        print(f"{report.title}\n  then                  {line.then}")
        print(f"  today, standard       {line.standard}\n  today, wsgifast       {line.wsgifast}")
        print(f"  what limits it today  {line.limit}\n")
    print(f"{READING}\n\nThe page: {path}")


def _print(figures: Figures) -> None:
    print(f"\n{figures.title}\n{table(figures.columns, figures.rows)}\n")


if __name__ == "__main__":
    main()
