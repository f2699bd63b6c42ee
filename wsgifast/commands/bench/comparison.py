"""Carries out `wsgifast bench`: a comparison of an unwrapped and a wrapped app."""

from __future__ import annotations

import argparse
import ipaddress
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...errors import ConfigurationError
from ...http.headers import Headers
from ..arguments import check_path, check_writable, given_headers, write_file
from ..client import BROWSER_ACCEPT_ENCODING
from ..loading import absolute
from ..loading.servers import Loaded
from ..terminal import next_steps, output_width, show
from .budget import budget, over_budget
from .loads import Client, Load, Task
from .locust_client import Locust
from .processes import HOST, Server, free_port, temporary_folder
from .report import as_html, as_json, grid, machine, now, results_text, section
from .results import Result
from .runner import Report, Servers, all_results, at, one_run, sized, take_turns
from .serving import FAST_WORKER, found_app, sides

# Rounds of a path start for this time, or longer if the user wants long runs.
_MIN_PATH_S = 120.0


def compare(options: argparse.Namespace, master: tuple[str, int]) -> int:
    """Run `wsgifast bench`, and return its exit status.

    :param master: the address on which Locust waits for workers on other machines.
    :raises ConfigurationError: for options that exclude each other.
    :raises LocustFailed: if Locust does not start, or its workers do not connect.
    """
    limits = budget(options.budget or "")
    report = Path(options.report)
    if not report.name:
        raise ConfigurationError(f"--report {options.report!r}: name the files to write")
    for suffix in ("json", "html"):
        check_writable("--report", f"{report}.{suffix}")
    paths = list(dict.fromkeys(options.paths or ["/"]))
    for path in paths:
        check_path(path)
    if options.master and options.processes:
        raise ConfigurationError("--master waits for other workers than those of --processes")
    workers = (options.expect_workers or 1) if options.master else 0
    host = master[0] if options.master else HOST
    _check_host(host)
    with (
        temporary_folder("bench") as folder,
        Locust(options.processes or 0, workers, master) as locust,
        Servers(host, folder) as running,
    ):
        servers, app = _servers(options)
        task, client = _task(options), locust.client(options.users)
        if workers:
            show(
                f"Waiting for {workers} of: wsgifast bench --worker --master-host {master[0]} "
                f"--master-port {master[1]}",
                error=True,
            )
        locust.start()
        title, facts, when = f"{options.app}, {app.interface}", machine(), now()
        show(f"{title}; {facts['python']}, {facts['cores']} cores", error=True)

        def measured(number: int, report: Report) -> Result:
            return _result(
                running, servers, replace(task, path=paths[number]), client, options, report
            )

        results, status = all_results(title, paths, measured, running)
    if results:
        run = {"measured": when, "seconds": options.seconds, "rounds": options.rounds}
        rows = {result.title: result.figures() for result in results}
        table, notes = grid(rows), list(_notes(options, app))
        lines = "".join(f"\n- {note}" for note in notes)
        show(f"\n{title}\n\n{results_text([table], results, output_width())}{lines}\n")
        whole = {path: {**run, "machine": facts, **row} for path, row in rows.items()}
        page = as_html(title, [section(title, [table], results, notes)], facts)
        for suffix, text in (("json", as_json(title, whole)), ("html", page)):
            write_file(Path(f"{report}.{suffix}"), text)
            show(f"{report}.{suffix}")
    if status:
        return status
    if not limits and not options.worker_class:
        command = shlex.join(["wsgifast", "run", options.app])
        others = {"compressed": not options.compress, "not coalesced": options.coalesce}
        but = " and ".join(how for how, differs in others.items() if differs)
        what = f"serve it like the last contender{but and f', but {but}'}"
        show(f"\n{next_steps((command, what))}")
    missed = list(over_budget(limits, results))
    for line, _ in missed:
        show(f"wsgifast bench: {line}", error=True)
    return int(any(sure for _, sure in missed) or not all(result.is_good for result in results))


def _check_host(host: str) -> None:
    try:
        free_port(host)
    except OSError as error:
        raise ConfigurationError(f"--master-host {host}: {error.strerror}") from None
    if ipaddress.ip_address(socket.gethostbyname(host)).is_unspecified:
        raise ConfigurationError(f"--master-host {host}: name the address that workers can reach")


def _servers(options: argparse.Namespace) -> tuple[Mapping[str, Server], Loaded]:
    """Return the servers by the contenders' names, and the loaded app."""
    target = absolute(options.app)
    server, found = found_app(target, options.rest)
    asgi = found.interface == "ASGI"
    if options.worker_class and asgi:
        raise ConfigurationError(
            f"--worker-class is gunicorn's, and {options.app} is an ASGI app: leave it out"
        )
    given = options.worker_class or ["gthread", "FastWorker"]
    classes = [FAST_WORKER if each == "FastWorker" else each for each in given]
    wanted = {"coalesce": options.coalesce and not asgi, "compress": options.compress}
    wrapping = {name: True for name, is_wanted in wanted.items() if is_wanted}
    return sides(target, server, classes, wrapping, options.rest), found


def _notes(options: argparse.Namespace, app: Loaded) -> Iterator[str]:
    if app.was_wrapped:
        yield "The app is already wrapped with wsgifast. The first contender is the app inside."
    if options.link:
        yield (
            f"ms at {options.link:g} Mbit/s are computed, not measured: the bytes of the body "
            "divided by the rate, without headers, round trips and losses."
        )


def _task(options: argparse.Namespace) -> Task:
    fields = given_headers(options)
    if Headers(fields).get("accept-encoding") is None:
        fields.append(BROWSER_ACCEPT_ENCODING)
    headers = tuple(f"{name}: {value}" for name, value in fields)
    return Task(seconds=options.seconds, headers=headers)


def _result(
    running: Servers,
    servers: Mapping[str, Server],
    task: Task,
    client: Client,
    options: argparse.Namespace,
    report: Report,
) -> Result:
    """Start the servers, and return the result for the path of the task.

    :param servers: by the contenders' names. The first one serves the unwrapped app.
    :raises ServerFailed: if a server does not start, or ends. The message has its log.
    """
    report("starting")
    tasks = {name: at(task, running.get(server, name)) for name, server in servers.items()}
    first, changes = running.first_responses(servers, tasks)
    if not changes:
        tasks = sized(tasks, first)
    runs: dict[str, Callable[[], Load]] = {
        name: partial(one_run, client, tasks[name], running.get(server))
        for name, server in servers.items()
    }
    # If a server hangs, the rounds end after this time.
    limit_s = max(_MIN_PATH_S, float(10 * options.rounds * options.seconds))
    samples, again = take_turns(
        runs, next(iter(runs)), options.rounds, limit_s=limit_s, noise=True, report=report
    )
    return Result(task.path, samples, first, changes, again, options.link)
