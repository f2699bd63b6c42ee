"""Run released applications without and with wsgifast, and report worse responses.

    python -m loadtests.applications                all applications: an hour, 8 GB of packages
    python -m loadtests.applications dash fava      only these applications
    python -m loadtests.applications --list

Each application has its own virtual environment, in which this checkout is installed. The command
sends the same requests to the application on these servers:

- twice on its usual server without wsgifast, to find responses that differ without a reason
- in WSGIFast and on FastWorker, or in ASGIFast and on asgifast's protocol
- on `wsgifast run`

The command requests pages, their scripts, styles and images, files, and calls of APIs. It uses GET,
HEAD, ranges, conditional requests and content codings. It compares the statuses, the decoded
bodies, the sizes and the headers. The headers of a response to HEAD must be equal to those of the
same server's response to GET. A response to HEAD may omit headers that depend on the content
coding, if the response to GET is compressed or varies with Accept-Encoding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wsgifast.commands.arguments import option, seconds
from wsgifast.commands.bench.processes import HOST, ServerFailed, orderly_end, wait_until
from wsgifast.commands.bench.report import now
from wsgifast.commands.client import HTTPClient
from wsgifast.commands.terminal import show, table

from ..harness.machine import machine
from ..payloads import REPORTS
from .catalogue import APPLICATIONS, Application, Ask
from .environment import AGAIN, RAW, ROOT, Environment, NotRunning
from .exchanges import PLAIN, RESPONSE_S, Exchange, Key, ask_all, compare, links

_SHOWN = 8
_END_TIMEOUT_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare applications. Return 1 if any response is worse with wsgifast."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.applications",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these applications")
    option(parser, "--list", help="list the applications")
    folder = "a folder for virtual environments and data"
    option(parser, "--folder", "DIR", folder, default=str(ROOT / "build" / "applications"))
    limit = "start no more servers of an application after this time"
    option(parser, "--seconds", "S", limit, default=900.0, type=seconds)
    options = parser.parse_args(arguments)
    known = {application.name: application for application in APPLICATIONS}
    if unknown := set(options.names) - set(known):
        names = ", ".join(sorted(unknown))
        parser.error(f"no such application: {names}. --list lists all applications")
    if options.list:
        show("\n".join(f"{name:20} {' '.join(each.packages)}" for name, each in known.items()))
        return 0
    chosen = [known[name] for name in options.names or known]
    report = REPORTS / "applications.json"
    REPORTS.mkdir(parents=True, exist_ok=True)
    found = json.loads(report.read_text())["applications"] if report.exists() else {}
    is_worse = False
    with orderly_end():
        for application in chosen:
            show(f"{application.name} ...", error=True)
            result = examined(application, Path(options.folder).resolve(), options.seconds)
            found[application.name] = result
            is_worse |= any(outcome["worse"] for outcome in result["contenders"].values())
            show(_text(application.name, result))
            text = json.dumps({"machine": machine(), "applications": found}, indent=2)
            report.write_text(f"{text}\n")
    show(str(report))
    return int(is_worse)


def examined(application: Application, folder: Path, limit_s: float) -> dict[str, Any]:
    """Run an application on all servers, and return the result for JSON."""
    result: dict[str, Any] = {"measured": now(), "contenders": {}, "failed": {}}
    environment = Environment(application, folder)
    try:
        environment.install()
        environment.prepare()
    except NotRunning as error:
        result["failed"]["installation"] = str(error)
        return result
    began = time.monotonic()
    responses: dict[str, dict[Key, Exchange]] = {}
    asks = [ask if isinstance(ask, Ask) else Ask(ask) for ask in application.paths]
    tracebacks: dict[str, int] = {}
    for name in environment.contenders():
        if time.monotonic() - began > limit_s:
            result["failed"][name] = f"not started, because {limit_s:g} s have passed"
            continue
        try:
            with environment.serving(name) as server:
                client = HTTPClient(HOST, server.address[1], limit_s=RESPONSE_S)
                found = ask_all(client, asks, environment.names())
                if name == RAW:
                    more = list(links(found))
                    asks += more
                    found |= ask_all(client, more, {})
                # gunicorn accepts connections before it imports the app. If the import fails, wait
                # until gunicorn ends, so that check() reports the failure.
                if all(exchange.error for exchange in found.values()):
                    wait_until(lambda: server.process.poll() is not None, _END_TIMEOUT_S)
                server.check()
                log = server.log_path.read_text(errors="replace")
        except ServerFailed as error:
            result["failed"][name] = str(error)
            if name == RAW:
                return result
            continue
        tracebacks[name] = log.count("Traceback (most recent call last)")
        if name in (RAW, AGAIN):
            responses[name] = found
            continue
        outcome = compare(responses[RAW], responses.get(AGAIN, responses[RAW]), found)
        outcome.tracebacks = tracebacks[name] - max(tracebacks.get(n, 0) for n in (RAW, AGAIN))
        if outcome.tracebacks > 0:
            outcome.worse.append(f"{outcome.tracebacks} more tracebacks in the log: {_last(log)}")
        result["contenders"][name] = asdict(outcome)
    result["statuses"] = {
        f"{path} [{variant}]": exchange.error or exchange.status
        for (path, variant), exchange in responses[RAW].items()
        if variant == PLAIN
    }
    return result


def _last(log: str) -> str:
    """Return the message of the last exception in a log."""
    lines = log.rpartition("Traceback (most recent call last)")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), "")


def _text(name: str, result: dict[str, Any]) -> str:
    lines = [
        [contender, each["same"], each["varies"], len(each["better"]), len(each["worse"])]
        for contender, each in result["contenders"].items()
    ]
    parts = [name]
    if lines:
        parts.append(table(["", "same", "varies without wsgifast", "better", "worse"], lines))
    for contender, each in result["contenders"].items():
        worse = each["worse"]
        parts += [f"- worse, {contender}: {text}" for text in worse[:_SHOWN]]
        if len(worse) > _SHOWN:
            parts.append(f"- worse, {contender}: and {len(worse) - _SHOWN} more")
    parts += [f"- {which} failed: {reason}" for which, reason in result["failed"].items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
