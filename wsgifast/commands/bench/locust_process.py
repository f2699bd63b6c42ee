"""One of Locust's processes: a single process, a master, or a worker.

    python -m wsgifast.commands.bench.locust_process alone
    python -m wsgifast.commands.bench.locust_process master HOST PORT WORKERS
    python -m wsgifast.commands.bench.locust_process worker HOST PORT

A single process and a master read one run per line, see `locust_client`. A master sends each run to
its workers in a custom message. Locust merges the statistics of the workers. Each worker also
reports its CPU time and the time of its users, because the clocks of machines differ.

Locust's own `client.get` gathers a body in memory in 4 KiB pieces. With tens of megabytes in a
response, this measures the client. So :class:`DownloadUser` reads the body in large blocks.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...hosts import LOCUST

with LOCUST.needed("wsgifast bench", way_out=f"install locust {LOCUST.newest}"):
    from locust import FastHttpUser, constant, runners, task
from locust.env import Environment
from locust.exception import StopUser
from locust.log import setup_logging

# isort: split
# After Locust, which patches ssl for gevent: geventhttpclient imports ssl's classes.
import gevent
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError

from .processes import wait_until

# A request fails if no byte arrives for this time. An app may compute for seconds.
_GIVE_UP_S = 60.0
# The client copies a block several times. Larger blocks do not fit into the cache.
_READ_BLOCK_BYTES = 64 * 1024
# A run without a success ends after this many failures in a process.
_MAX_FAILURES = 20
# Time for messages and for slow machines, after the run and its last requests.
_OVERTIME_S = 30.0
# People start the workers on other machines.
_GATHER_S = 300.0
# Locust's own default is 3 s, longer than most runs.
_REPORT_INTERVAL_S = 0.2
# Names of successful and failed requests in Locust's statistics.
GOOD, FAILED = "good", "failed"
# Locust rounds response times to whole numbers, so they are microseconds.
CLOCK = 1e6


@dataclass(frozen=True)
class Run:
    """One run, in which each user sends a request after each response.

    :ivar host: such as "http://127.0.0.1:8000".
    :ivar expected: the size that every body must have. None allows any size.
    """

    host: str = ""
    path: str = "/"
    users: int = 1
    seconds: float = 2.0
    expected: int | None = None
    headers: tuple[str, ...] = ()
    number: int = 0


class DownloadUser(FastHttpUser):
    """Base class of the scenarios, with a GET that reads the body in large blocks.

    :cvar clock: Locust's units of response times in one second.
    :cvar failed_name: the name of failed requests in Locust's tables. By default their own name.
    """

    abstract = True
    clock = 1e3
    failed_name: str | None = None
    network_timeout = _GIVE_UP_S
    connection_timeout = 10.0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # allow_redirects=False is misspelt between some versions of Locust and geventhttpclient.
        agent: Any = self.client.client
        agent.redirect_response_codes = frozenset()
        get_client = agent.clientpool.get_client

        def client_for(url: Any) -> Any:
            client = get_client(url)
            # geventhttpclient sends a failed request again, one time more often than this number.
            # A second request would hide that the server did not respond to the first one.
            client._connection_pool.size = -1
            return client

        agent.clientpool.get_client = client_for

    def download(
        self,
        path: str,
        *,
        name: str | None = None,
        expected: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> bool:
        """GET a path, read the body to its end, and report one request to Locust.

        A redirect is a response like any other. The user does not follow it.

        :param name: in Locust's tables. By default the path.
        :param expected: the size that the body must have. Another size is a failure.
        :param body: sends a POST with this body in place of the GET.
        :returns: whether it succeeded.
        """
        begun = time.perf_counter()
        fields = dict(headers or {})
        if "accept-encoding" not in map(str.lower, fields):
            fields["Accept-Encoding"] = "identity"
        with self.client.request(
            "GET" if body is None else "POST",
            path,
            # With None, geventhttpclient 2.4 makes two writes, which wait for each other.
            data=body or b"",  # type: ignore[arg-type]
            name=name,
            stream=True,
            catch_response=True,
            headers=fields,
        ) as response:
            size, problem, status = 0, "", response.status_code
            good = bool(status)  # without a response Locust reports the reason
            if status:
                try:
                    # iter_content() would be shorter, but older versions of Locust lack it.
                    while block := response.read(_READ_BLOCK_BYTES):
                        size += len(block)
                except (HTTPConnectionClosed, ConnectionError):
                    pass  # the size shows whether bytes are missing
                except (HTTPParseError, OSError) as error:
                    problem = str(error) or type(error).__name__
                declared = response.headers.get("content-length")
                wanted = int(declared) if declared is not None else expected
                good = status < 400 and not problem and wanted in (None, size)
                if not good:
                    of_all = "" if wanted is None else f" of {wanted}"
                    why = "" if problem in ("", "Incomplete response.") else f" ({problem})"
                    cut = f", then the end after {size}{of_all} bytes{why}"
                    response.failure(f"status {status}{cut if status < 400 else ''}")
            # Locust's own time ends with the headers, and its length is the Content-Length.
            meta = response.request_meta
            meta["response_time"] = (time.perf_counter() - begun) * self.clock
            meta["response_length"] = size
            if not good and self.failed_name:
                meta["name"] = self.failed_name
        return good


@dataclass
class _Progress:
    """A run in this process.

    :ivar ends: no request starts after this time.
    :ivar users: the number of users that send requests.
    :ivar error: an exception that has ended a user.
    """

    run: Run
    ends: float = 0.0
    users: int = 0
    begun: float = 0.0
    begun_cpu: float = 0.0
    last: float = 0.0
    last_cpu: float = 0.0
    good: int = 0
    failed: int = 0
    error: str = ""

    @property
    def is_open(self) -> bool:
        """Whether this process starts further requests."""
        fails = not self.good and self.failed >= _MAX_FAILURES
        return not fails and time.perf_counter() < self.ends

    def report(self) -> dict[str, Any]:
        """Return values that Locust's statistics do not have."""
        return {
            "number": self.run.number,
            "over": not self.users and (self.last > 0 or not self.is_open),
            "seconds": self.last - self.begun,
            "cpu_s": self.last_cpu - self.begun_cpu,
            "error": self.error,
        }


class Visitor(DownloadUser):
    """Sends the requests of a run."""

    host = "http://127.0.0.1:1"  # each run has its own host
    wait_time = constant(0)
    clock = CLOCK
    failed_name = FAILED
    progress = _Progress(Run())

    def body(self, headers: dict[str, str]) -> bytes | None:
        """Return the body of each request, and add its headers. None is for a GET."""
        return None

    @task
    def visit(self) -> None:
        progress, run = self.progress, self.progress.run
        progress.users += 1
        if not progress.begun:
            progress.begun, progress.begun_cpu = time.perf_counter(), time.process_time()
        try:
            headers = dict(line.split(": ", 1) for line in run.headers)
            body = self.body(headers)
            while progress.is_open:
                good = self.download(
                    run.path, name=GOOD, expected=run.expected, headers=headers, body=body
                )
                progress.good += good
                progress.failed += not good
        except Exception as error:
            progress.ends = 0.0
            progress.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            progress.users -= 1
            progress.last, progress.last_cpu = time.perf_counter(), time.process_time()
        self.client.client.close()  # a server that ends would wait for this connection
        raise StopUser


def main(
    visitor: type[Visitor] = Visitor,
    make_run: Callable[..., Run] = Run,
    done: Callable[[Environment, Any], None] = lambda environment, run: None,
) -> None:
    """Make runs until the end of the input, or be a worker until the master ends.

    :param make_run: makes a run from the fields of its line.
    :param done: called after each run, with Locust's figures.
    """

    def begin(environment: Environment, msg: Any) -> None:
        """Receive the run from the master. Locust starts the users after this message."""
        run = make_run(**msg.data)
        Visitor.progress = _Progress(run, time.perf_counter() + run.seconds)

    setup_logging("ERROR")  # type: ignore[no-untyped-call]
    runners.WORKER_REPORT_INTERVAL = _REPORT_INTERVAL_S
    environment = Environment(user_classes=[visitor], catch_exceptions=False)
    environment.events.report_to_master.add_listener(  # type: ignore[no-untyped-call]
        lambda client_id, data: data.update(wsgifast=Visitor.progress.report())
    )
    role, *address = sys.argv[1:]
    runner: Any
    workers = 0
    if role == "master":
        workers = int(address[2])
        runner = environment.create_master_runner(address[0], int(address[1]))
    elif role == "worker":
        runner = environment.create_worker_runner(address[0], int(address[1]))
    else:
        runner = environment.create_local_runner()
    runner.register_message("run", begin)
    if role == "worker":
        with contextlib.suppress(KeyboardInterrupt):
            runner.greenlet.join()
        return
    master = _Master(runner, workers)
    master.gather()
    output = sys.stdout
    sys.stdout = sys.stderr  # Locust's own output is not a response
    print("{}", file=output, flush=True)
    # A thread reads the input, because a blocking read here would stop Locust.
    while line := gevent.get_hub().threadpool.apply(sys.stdin.readline):
        run = make_run(**json.loads(line))
        response = master.carry_out(run)
        done(environment, run)
        print(json.dumps(response), file=output, flush=True)
    runner.quit()


class _Master:
    """Makes one run after another with Locust.

    :param workers: 0 if the users are in this process.
    """

    def __init__(self, runner: Any, workers: int) -> None:
        self._runner = runner
        self._workers = workers
        self._reports: dict[str, dict[str, Any]] = {}
        runner.environment.events.worker_report.add_listener(self._store)

    def _store(self, client_id: str, data: dict[str, Any]) -> None:
        self._reports[client_id] = data["wsgifast"]

    def gather(self) -> None:
        """Wait until all workers are connected and ready for a run."""
        if not self._workers:
            return
        clients = self._runner.clients
        self._wait_until(lambda: len(clients.ready) >= self._workers, _GATHER_S)
        if len(clients.ready) < self._workers:
            sys.exit(f"{len(clients.ready)} of {self._workers} workers are connected")

    def carry_out(self, run: Run) -> dict[str, Any]:
        """Make a run, and return the fields of :class:`~wsgifast.commands.bench.loads.Load`."""
        runner = self._runner
        self.gather()
        runner.environment.host = run.host
        runner.send_message("run", asdict(run))
        runner.start(run.users, spawn_rate=run.users)
        self._wait_until(lambda: self._reports_of(run), run.seconds + _GIVE_UP_S + _OVERTIME_S)
        reports = self._reports_of(run)
        runner.stop()
        stats = runner.environment.stats
        good = stats.get(GOOD, "GET" if (GOOD, "GET") in stats.entries else "POST")
        errors = Counter[str]()
        for each in stats.errors.values():
            errors[_error_text(each.to_name().partition(": ")[2])] += each.occurrences
        errors.update(each["error"] for each in reports if each["error"])
        if not reports:
            errors["no end of the response"] = 1
        count = good.num_requests
        times = {p: good.get_response_time_percentile(p / 100) / CLOCK * 1e3 for p in (50, 95, 99)}
        return {
            "requests": count,
            "failures": errors.total(),
            "body_bytes": good.total_content_length,
            "seconds": max((each["seconds"] for each in reports), default=run.seconds),
            "latency_ms": times if count else {},
            "errors": errors,
            "client_cpu_s": max((each["cpu_s"] for each in reports), default=0.0),
        }

    def _wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait for a condition. End this process if a worker sends no heartbeat for seconds."""

        def is_lost() -> bool:
            return bool(self._workers and self._runner.clients.missing)

        wait_until(lambda: condition() or is_lost(), seconds)
        if not condition() and is_lost():
            self._runner.quit()
            sys.exit(f"one of {self._workers} workers has ended, or does not respond any more")

    def _reports_of(self, run: Run) -> list[dict[str, Any]]:
        """Return the reports of all processes, after the run is over in all of them."""
        found = list(self._reports.values()) if self._workers else [Visitor.progress.report()]
        found = [each for each in found if each["number"] == run.number and each["over"]]
        return found if len(found) == max(1, self._workers) else []


def _error_text(text: str) -> str:
    """Return the reason in an error of Locust, without the URL and its port."""
    reason = text.partition("original=")[2].removesuffix(")") or text.strip("\"'")
    return f"no byte for {_GIVE_UP_S:g} s" if reason == "timed out" else reason


if __name__ == "__main__":
    main()
