"""Pages generated from the code. `make docs` writes them, and a test fails if one is outdated."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from docs.benchmarks.publish import benchmarks_pages, charts, readme
from docs.options import with_tables
from docs.pictures import pictures
from wsgifast.commands.cli import command_parser
from wsgifast.commands.doctor import CATALOGUE as FINDINGS
from wsgifast.metrics import catalogue as metrics

__all__ = ["PAGES", "command_line"]

DOCS = Path(__file__).resolve().parent


def command_line() -> str:
    """Return the page of all commands and options, from their parsers."""
    parser = command_parser()
    parts = [
        "# Command line",
        f"{parser.description} Each command's `--help` has examples.",
    ]
    for name, command in _commands(parser).choices.items():
        usage = " ".join(command.format_usage().removeprefix("usage: ").split())
        parts += [f"## wsgifast {name}", " ".join(str(command.description).split())]
        parts.append(f"```text\n{usage if command.usage else _short_usage(command)}\n```")
        for title, rows in _groups(command):
            parts.append(f"| {title} | meaning |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


_SEVERITIES = {
    "wrong": "an error, a wrong response or a security problem.",
    "slow": "a response or a setting that costs more time, memory or traffic than necessary.",
    "info": "no error, but a fact that you should know.",
}


def findings() -> str:
    """Return the page of the doctor's findings: a list, and the text of each finding."""
    parts = []
    for severity, meaning in _SEVERITIES.items():
        listed = [e for e in FINDINGS.values() if e.severity == severity]
        rows = "\n".join(f"- [{e.id}](#{e.id.lower()}): {e.title}" for e in listed)
        parts.append(f"**{severity}**: {meaning}\n\n{rows}")
    lists = "\n\n".join(parts)
    return f"""# Findings of `wsgifast doctor`

This page explains each finding of `wsgifast doctor`, and how to fix it. `wsgifast run --check`
reports the findings with ids from WF101 on. The ids never change. There are three severities.

{lists}

```{{include}} ../../wsgifast/commands/doctor/findings.md
```
"""


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _commands(parser: argparse.ArgumentParser) -> _Commands:
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return action


def _short_usage(command: argparse.ArgumentParser) -> str:
    """Return a usage line without options. argparse's differs between Python versions."""
    shown = {None: "{}", "?": "[{}]", "*": "[{} ...]"}
    positional = [a for a in command._actions if not a.option_strings]
    values = [shown[a.nargs].format(_value(a)) for a in positional]  # type: ignore[index]
    return " ".join([command.prog, "[OPTION ...]", *values])


def _groups(command: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    for group in command._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._HelpAction):
                continue
            name = " ".join([", ".join(action.option_strings), _value(action)]).strip()
            text = (action.help or "").replace("%(default)s", str(action.default))
            rows.append(f"| `{name}` | {text} |".replace("  |", " |"))
        if rows:
            yield str(group.title).removeprefix("positional "), rows


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        value = str(action.metavar)
    elif action.choices is not None:
        value = f"{{{','.join(map(str, action.choices))}}}"
    else:
        value = action.dest.upper()
    value = value.replace("|", " or ")  # a bar would separate columns
    return f"[{value}]" if action.option_strings and action.nargs == "?" else value


_METRICS_NAMES = """
## Python names

```{eval-rst}
.. autoclass:: wsgifast.metrics.Recorder
   :members:

.. autoclass:: wsgifast.metrics.Answered

.. autoclass:: wsgifast.metrics.RequestMetrics
   :members:

.. autoclass:: wsgifast.metrics.Collector
   :members:

.. autoclass:: wsgifast.metrics.Point
   :members:

.. autoclass:: wsgifast.metrics.Distribution
   :members:

.. autoclass:: wsgifast.metrics.Metric
   :members:

.. py:data:: wsgifast.metrics.CATALOGUE

   Every metric by its name. This page is made from it.
```
"""
_METRICS_BY: tuple[tuple[str, tuple[metrics.Reporter, ...]], ...] = (
    ("On any server: WSGIFast, ASGIFast and FastWorker", metrics.ANY_SERVER),
    ("FastWorker, and asgifast's protocols and workers", metrics.SOCKETS),
    ("FastWorker", metrics.WORKER),
)


def metrics_page() -> str:
    """Return the page of metrics by their reporter, and of OpenTelemetry's names."""
    lines = [
        "# Metrics",
        "",
        "This page lists all metrics of wsgifast. Their names are in Prometheus's spelling. If "
        "OpenTelemetry's semantic conventions define a metric, wsgifast uses its name from these "
        "conventions. [Watch a server](../how-to/monitor.md) shows how to collect metrics.",
        "",
        "The values of these labels come from requests. Their number is limited, so that clients "
        "cannot fill the memory with new values:",
        "",
        "| label | values |",
        "|---|---|",
        "| `http_route` | the framework's URL pattern for the request. The value is "
        f"`{metrics.UNKNOWN}` if the request has no pattern, and `{metrics.OTHER}` if there are "
        "too many patterns |",
        "| `http_request_method` | a method of RFC 9110, or `PATCH`. For all other methods, the "
        f"value is `{metrics.OTHER}` |",
        "| `url_scheme` | `http` or `https`. For all other schemes, the value is "
        f"`{metrics.OTHER}` |",
    ]
    for title, reported_by in _METRICS_BY:
        lines += ["", f"## {title}", "", "| metric | type | meaning |", "|---|---|---|"]
        for metric in metrics.CATALOGUE.values():
            if metric.reported_by == reported_by:
                labels = ", ".join(f"`{label}`" for label in _metric_labels(metric))
                kind = f"{metric.kind} by {labels}" if labels else metric.kind
                lines.append(f"| `{metric.name}` | {kind} | {_with_values(metric.help)} |")
    lines += [
        "",
        "## OpenTelemetry's names",
        "",
        'With `metrics="opentelemetry"`, the metrics have these names:',
        "",
        "- The first three metrics in the first table are `http.server.request.duration`, "
        "`http.server.response.body.size` and `http.server.active_requests`.",
        "- The names of all other metrics have a dot after `wsgifast`. They do not end with a unit "
        "or `total`. For instance, `wsgifast_thread_wait_seconds` becomes `wsgifast.thread_wait`.",
        "- The unit of durations is `s`, and the unit of sizes is `By` (bytes).",
        "- The histogram `wsgifast.thread_wait` counts only requests that have waited. In "
        "Prometheus, it also counts requests for which a thread was free at once.",
    ]
    return "\n".join([*lines, _METRICS_NAMES])


def _with_values(text: str) -> str:
    """Mark the values of a label, which follow a colon, as code."""
    text, _, values = text.removesuffix(".").partition(": ")
    return f"{text}: " + ", ".join(f"`{v}`" for v in values.split(", ")) if values else f"{text}."


def _metric_labels(metric: metrics.Metric) -> tuple[str, ...]:
    return (*metric.labels, "pid") if metric.across == "each" else metric.labels


PAGES: Mapping[str, Callable[[], str]] = {
    **benchmarks_pages(),
    "../README.md": readme,
    **charts(),
    **pictures(),
    "reference/asgi.md": partial(with_tables, "asgi.md"),
    "reference/fastworker.md": partial(with_tables, "fastworker.md"),
    "reference/findings.md": findings,
    "reference/metrics.md": metrics_page,
    "reference/command-line.md": command_line,
    "reference/static-files.md": partial(with_tables, "static-files.md"),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
