"""Compares an app as it is and wrapped: `wsgifast bench`."""

from __future__ import annotations

import argparse
import ipaddress
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import ConfigurationError
from ...http.head import header_value
from ..arguments import STATUS_PART_FAILED, check_path, check_writable, given_headers
from ..client import BROWSER_ACCEPT_ENCODING
from ..loading import absolute
from ..terminal import next_steps, show
from .budget import budget, over_budget
from .load import Client, Load, Task, look
from .locust_client import GIVE_UP_S, Locust, LocustFailed
from .measuring import measure
from .processes import HOST, free_port, orderly_end
from .serving import FAST_WORKER, found_app, sides
from .slow_clients import downloads, raise_open_files, slow_clients
from .tables import Contender, Profile, Row, Table

# Beside slow clients a server may be stuck, so requests time out sooner.
_GIVE_UP_BESIDE_SLOW_S = 5.0
# By then the kernel's buffers are full, so that the result does not depend on how the crowd starts.
_SETTLE_S = 1.0
# The most that Linux buffers for a socket (tcp_wmem).
_HELD_BYTES = 4 << 20
_LEAST_ROW_S = 120.0
# gunicorn's own default of --worker-connections, and what the others need beside a crowd.
_CONNECTIONS, _OTHERS = 1000, 100


def compare(options: argparse.Namespace, master: tuple[str, int]) -> int:
    """Run `wsgifast bench`; return its exit status.

    :param master: the address on which it would wait for workers on other machines.
    :raises ConfigurationError: for options that do not go together.
    """
    bars = budget(options.budget or "")
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
    profile = Profile(
        options.seconds, options.rounds, row_seconds=_row_seconds(options), noise=True
    )
    try:
        with orderly_end(), Locust(options.processes or 0, workers, master) as locust:
            table = _table(report.name, options, paths, locust)
            if workers:
                show(
                    f"Waiting for {workers} of: wsgifast bench --worker --master-host {master[0]} "
                    f"--master-port {master[1]}",
                    error=True,
                )
            locust.start()
            results, status = measure([table], profile, host=host, folder=report.parent)
    except LocustFailed as error:
        show(f"wsgifast bench: {error}", error=True)
        return STATUS_PART_FAILED
    if status:
        return status
    if not bars and not options.worker_class and options.server in (None, "gunicorn", "uvicorn"):
        run = shlex.join(["wsgifast", "run", options.app])
        show(f"\n{next_steps((run, 'serve it like the last contender'))}")
    missed = list(over_budget(bars, results))
    for line, _ in missed:
        show(f"wsgifast bench: {line}", error=True)
    return int(any(sure for _, sure in missed) or not all(result.is_good for result in results))


def _row_seconds(options: argparse.Namespace) -> float:
    """Enough time for all rounds, but not for ever if the server is stuck."""
    return max(_LEAST_ROW_S, float(10 * options.rounds * options.seconds))


def _check_host(host: str) -> None:
    try:
        free_port(host)
    except OSError as error:
        raise ConfigurationError(f"--master-host {host}: {error.strerror}") from None
    if ipaddress.ip_address(socket.gethostbyname(host)).is_unspecified:
        raise ConfigurationError(f"--master-host {host}: name the address that workers can reach")


def _table(name: str, options: argparse.Namespace, paths: Sequence[str], locust: Locust) -> Table:
    target = absolute(options.app)
    server, found = found_app(target, options.server, options.rest)
    asgi = found.interface == "ASGI"
    if asgi != (server == "uvicorn"):
        raise ConfigurationError(
            f"--server {server}: {options.app} is an {found.interface} app; leave out the option"
            if asgi
            else f"--server {server} serves ASGI apps, and {options.app} is a WSGI app"
        )
    if options.worker_class and server != "gunicorn":
        raise ConfigurationError(f"--worker-class is gunicorn's, and the server is {server}")
    given = options.worker_class or ["gthread", "FastWorker"]
    classes = [FAST_WORKER if each == "FastWorker" else each for each in given]
    more = tuple(options.rest)
    if more and server in ("wsgiref", "werkzeug"):
        raise ConfigurationError(f"-- {shlex.join(more)}: {server} has no options")
    give_up_s = GIVE_UP_S
    if options.slow_clients:
        raise_open_files()  # servers and crowd inherit it
        give_up_s = _GIVE_UP_BESIDE_SLOW_S
        if server == "gunicorn":
            connections = max(_CONNECTIONS, options.slow_clients + _OTHERS)
            more = (f"--worker-connections={connections}", *more)
    wrapping = {"coalesce": True} if options.coalesce and not asgi else {}
    served = sides(target, server, classes, wrapping, more)
    given_fields = given_headers(options)
    if header_value(given_fields, "accept-encoding") is None:
        given_fields.append(BROWSER_ACCEPT_ENCODING)
    headers = tuple(f"{name}: {value}" for name, value in given_fields)
    client = locust.client(options.users, give_up_s=give_up_s)
    if options.slow_clients:
        client = _beside(client, options.slow_clients, paths)
    rows = [
        Row(path, path, tuple(Contender(n, s, path) for n, s in served.items()), client,
            headers=headers)
        for path in paths
    ]  # fmt: skip
    notes = ["The app is already wrapped with wsgifast; the first contender is the app inside."]
    return Table(name, f"{options.app}, {found.interface}", rows, notes=notes * found.was_wrapped)


def _beside(client: Client, clients: int, paths: Sequence[str]) -> Client:
    """A client that runs beside slow downloads of the largest body."""
    sizes: dict[str, int] = {}

    def run(task: Task) -> Load:
        for path in paths:
            if path not in sizes:
                sizes[path] = look(replace(task, path=path)).body_bytes
                if len(sizes) == len(paths) and max(sizes.values()) < _HELD_BYTES:
                    show(
                        f"The largest body has only {max(sizes.values()):,} bytes, which fit into "
                        "the kernel's buffers: name a path with a larger one",
                        error=True,
                    )
        kind = downloads(max(sizes, key=sizes.__getitem__), task.headers)
        with slow_clients(kind, task.address, clients) as crowd:
            time.sleep(_SETTLE_S)
            load = client(task)
            crowd.end()
        return replace(load, facts={"slow ones": float(crowd.gathered)})

    return run
