"""Runs released applications as they are and wrapped, and reports what is worse.

    python -m loadtests.applications                all of them: an hour, and 8 GB of packages
    python -m loadtests.applications dash fava      some of them
    python -m loadtests.applications --list

Each gets a virtual environment of its own, with this checkout in it. It is requested on its usual
server unwrapped, twice, which shows differences between equal runs. Then it is requested under
WSGIFast and FastWorker, or ASGIFast and asgifast's protocol, and by `wsgifast run`. Pages, their
scripts, styles and images, files and calls of the API are requested by GET and HEAD, in ranges,
with validators and with content codings. The statuses, the decoded bodies, the sizes and the
headers are compared. A response to HEAD is compared with the same server's response to GET. Its
headers must be equal. It may only omit headers that a content coding changes, where the client
accepts one and GET's body is compressed or might be.
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
_MAY_END_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try applications. Return 1 if anything is worse in one of them."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.applications",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    option(parser, "--list", help="list the applications")
    folder = "where environments and data are stored"
    option(parser, "--folder", "DIR", folder, default=str(ROOT / "build" / "applications"))
    limit = "start no further server of an application after this time"
    option(parser, "--seconds", "S", limit, default=900.0, type=seconds)
    given = parser.parse_args(arguments)
    known = {application.name: application for application in APPLICATIONS}
    if unknown := set(given.names) - set(known):
        parser.error(f"no such application: {', '.join(sorted(unknown))}; --list lists them")
    if given.list:
        show("\n".join(f"{name:20} {' '.join(one.packages)}" for name, one in known.items()))
        return 0
    chosen = [known[name] for name in given.names or known]
    report = REPORTS / "applications.json"
    REPORTS.mkdir(parents=True, exist_ok=True)
    found = json.loads(report.read_text())["applications"] if report.exists() else {}
    is_worse = False
    with orderly_end():
        for application in chosen:
            show(f"{application.name} ...", error=True)
            result = tried(application, Path(given.folder).resolve(), given.seconds)
            found[application.name] = result
            is_worse |= any(one["worse"] for one in result["contenders"].values())
            show(_text(application.name, result))
            text = json.dumps({"machine": machine(), "applications": found}, indent=2)
            report.write_text(f"{text}\n")
    show(str(report))
    return int(is_worse)


def tried(application: Application, folder: Path, limit_s: float) -> dict[str, Any]:
    """What came of an application, for JSON."""
    result: dict[str, Any] = {"measured": now(), "contenders": {}, "failed": {}}
    environment = Environment(application, folder)
    try:
        environment.install()
        environment.prepare()
    except NotRunning as error:
        result["failed"]["it"] = str(error)
        return result
    began = time.monotonic()
    responses: dict[str, dict[Key, Exchange]] = {}
    asks = [ask if isinstance(ask, Ask) else Ask(ask) for ask in application.paths]
    tracebacks: dict[str, int] = {}
    for name in environment.contenders():
        if time.monotonic() - began > limit_s:
            result["failed"][name] = f"not started: {limit_s:g} s are over"
            continue
        try:
            with environment.serving(name) as server:
                client = HTTPClient(HOST, server.address[1], limit_s=RESPONSE_S)
                found = ask_all(client, asks, environment.names())
                if name == RAW:
                    more = list(links(found))
                    asks += more
                    found |= ask_all(client, more, {})
                # gunicorn listens before it imports the app, and ends after that has failed.
                if all(one.error for one in found.values()):
                    wait_until(lambda: server.process.poll() is not None, _MAY_END_S)
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
        f"{path} [{variant}]": one.error or one.status
        for (path, variant), one in responses[RAW].items()
        if variant == PLAIN
    }
    return result


def _last(log: str) -> str:
    """The last exception's line."""
    lines = log.rpartition("Traceback (most recent call last)")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), "")


def _text(name: str, result: dict[str, Any]) -> str:
    lines = [
        [contender, one["same"], one["varies"], len(one["better"]), len(one["worse"])]
        for contender, one in result["contenders"].items()
    ]
    parts = [name]
    if lines:
        parts.append(table(["", "same", "varies by itself", "better", "worse"], lines))
    for contender, one in result["contenders"].items():
        worse = one["worse"]
        parts += [f"- worse, {contender}: {text}" for text in worse[:_SHOWN]]
        if len(worse) > _SHOWN:
            parts.append(f"- worse, {contender}: and {len(worse) - _SHOWN} more")
    parts += [f"- {which} failed: {reason}" for which, reason in result["failed"].items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
