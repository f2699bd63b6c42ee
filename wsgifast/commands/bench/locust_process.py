"""One of Locust's processes: a single one, a master, or a worker.

    python -m wsgifast.commands.bench.locust_process alone
    python -m wsgifast.commands.bench.locust_process master HOST PORT WORKERS
    python -m wsgifast.commands.bench.locust_process worker HOST PORT

Alone, or as the master, it reads one run per line, see `locust_client`. A master sends each run to
its workers in a custom message. The figures are those of Locust's own statistics, which it merges.
Each worker also reports its CPU time, and the time of its users, because the clocks of machines
differ.

Locust's own `client.get` gathers a body in memory in 4 KiB pieces before it counts it. With tens of
megabytes in a response, this measures the client. :class:`DownloadUser` reads the body in large
blocks.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from ...hosts import LOCUST

with LOCUST.needed("wsgifast bench", way_out=f"install locust {LOCUST.newest}"):
    from locust import FastHttpUser, constant, runners, task
from locust.env import Environment
from locust.exception import StopUser
from locust.log import setup_logging

# isort: split
# After Locust, which patches ssl for gevent: geventhttpclient imports ssl's classes.
import gevent
from geventhttpclient.response import HTTPParseError

from .locust_client import GIVE_UP_S, Run
from .processes import wait_until

# The client copies a block several times: larger ones leave the cache, and are slower.
READ_BLOCK_BYTES = 64 * 1024


class DownloadUser(FastHttpUser):
    """Base class of the scenarios: `download` is its GET.

    :cvar clock: Locust's unit of response times, in one second.
    :cvar failed_name: the name of failed requests in Locust's tables, in place of their own.
    """

    abstract = True
    clock = 1e3
    failed_name: str | None = None
    network_timeout = GIVE_UP_S
    connection_timeout = 10.0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # allow_redirects=False is misspelt between some versions of Locust and geventhttpclient.
        agent: Any = self.client.client
        agent.redirect_response_codes = frozenset()
        get_client = agent.clientpool.get_client

        def client_for(url: Any) -> Any:
            client = get_client(url)
            client._connection_pool.size = -1  # geventhttpclient tries as often, and once more
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
        """GET a path once, read its body to the end and report one request to Locust.

        A repeated request would hide that the server did not respond to the first.

        A redirection is a response like any other: nothing but the server is requested.

        :param name: in Locust's tables. By default the path.
        :param expected: the size that the body must have. Another size is a failure.
        :param body: sent by POST in place of the GET.
        :returns: whether it succeeded.
        """
        begun = time.perf_counter()
        fields = dict(headers or {})
        if not any(field.lower() == "accept-encoding" for field in fields):
            fields["Accept-Encoding"] = "identity"
        with self.client.request(
            "GET" if body is None else "POST",
            path,
            # geventhttpclient 2.4 makes two writes of None, which wait for each other.
            data=body or b"",  # type: ignore[arg-type]
            name=name,
            stream=True,  # leaves the body to us
            catch_response=True,
            headers=fields,
        ) as response:
            size, problem = 0, ""
            status = response.status_code
            if status:  # without a response Locust reports why
                try:
                    for block in response.iter_content(READ_BLOCK_BYTES, decode_content=False):
                        size += len(block)
                except (HTTPParseError, OSError) as error:
                    problem = str(error) or type(error).__name__
            declared = response.headers.get("content-length") if response.headers else None
            wanted = int(declared) if declared is not None else expected
            failure = ""
            if status >= 400:
                failure = f"status {status}"
            elif status and (problem or wanted not in (None, size)):
                of_all = "" if wanted is None else f" of {wanted}"
                end = "" if problem in ("", "Incomplete response.") else f" ({problem})"
                failure = f"status {status}, then the end after {size}{of_all} bytes{end}"
            if failure:
                response.failure(failure)
            # Locust's own time ends with the headers, and its length is the Content-Length.
            meta = response.request_meta
            meta["response_time"] = (time.perf_counter() - begun) * self.clock
            meta["response_length"] = size
            good = bool(status) and not failure
            if not good and self.failed_name:
                meta["name"] = self.failed_name
        return good


# A run without a success ends after this many failures, per process.
MAX_VAIN_REQUESTS = 20
# Time for messages, and for slow machines, beyond the run and its last requests.
OVERTIME_S = 30.0
# Workers on other machines are started by hand.
GATHER_S = 300.0
# Locust's own default is 3 s, as long as a run here.
REPORT_INTERVAL_S = 0.2
# Names of successful and failed requests in Locust's statistics.
GOOD, FAILED = "good", "failed"
# Locust rounds response times to whole numbers, so they are microseconds.
CLOCK = 1e6


@dataclass
class _Turn:
    """The task of the users of this process, and its progress.

    :ivar ends: no request is begun after this time.
    :ivar users: under way.
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

    @property
    def goes_on(self) -> bool:
        in_vain = not self.good and self.failed >= MAX_VAIN_REQUESTS
        return not in_vain and time.perf_counter() < self.ends

    def report(self) -> dict[str, Any]:
        """Return values that are missing in Locust's statistics."""
        return {
            "number": self.run.number,
            "over": not self.users and (self.last > 0 or not self.goes_on),
            "seconds": self.last - self.begun,
            "cpu_s": self.last_cpu - self.begun_cpu,
        }


class Visitor(DownloadUser):
    """Sends the requests of the turn."""

    host = "http://127.0.0.1:1"  # each run has its own
    wait_time = constant(0)
    clock = CLOCK
    failed_name = FAILED
    turn = _Turn(Run(""))

    def body(self, headers: dict[str, str]) -> bytes | None:
        """Return the body of each request, and add its headers. None: it is a GET."""
        return None

    @task
    def visit(self) -> None:
        turn, run = self.turn, self.turn.run
        headers = dict(line.split(": ", 1) for line in run.headers)
        body = self.body(headers)
        turn.users += 1
        if not turn.begun:
            turn.begun, turn.begun_cpu = time.perf_counter(), time.process_time()
        while turn.goes_on:
            good = self.download(
                run.path, name=GOOD, expected=run.expected, headers=headers, body=body
            )
            turn.good += good
            turn.failed += not good
        turn.users -= 1
        turn.last, turn.last_cpu = time.perf_counter(), time.process_time()
        self.client.client.close()  # a server that ends would wait for it
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
        """Take the master's message, just before it has Locust start the users."""
        run = make_run(**msg.data)
        Visitor.turn = _Turn(run, time.perf_counter() + run.seconds)

    setup_logging("ERROR")  # type: ignore[no-untyped-call]
    runners.WORKER_REPORT_INTERVAL = REPORT_INTERVAL_S
    environment = Environment(user_classes=[visitor], catch_exceptions=False)
    environment.events.report_to_master.add_listener(_add_report)  # type: ignore[no-untyped-call]
    role, *where = sys.argv[1:]
    if role == "worker":
        host, port = where
        worker: Any = environment.create_worker_runner(host, int(port))
        worker.register_message("run", begin)
        with contextlib.suppress(KeyboardInterrupt):
            worker.greenlet.join()
        return
    runner: Any
    workers = 0
    if role == "master":
        host, port, expected = where
        workers = int(expected)
        runner = environment.create_master_runner(host, int(port))
    else:
        runner = environment.create_local_runner()
        runner.register_message("run", begin)
    master = _Master(runner, workers)
    master.gather()
    output = sys.stdout
    sys.stdout = sys.stderr  # Locust's own output is not a response
    print("{}", file=output, flush=True)
    # Read by a thread, so that Locust goes on meanwhile.
    while line := gevent.get_hub().threadpool.apply(sys.stdin.readline):
        run = make_run(**json.loads(line))
        response = master.carry_out(run)
        done(environment, run)
        print(json.dumps(response), file=output, flush=True)
    runner.quit()


def _add_report(client_id: str, data: dict[str, Any]) -> None:
    data["wsgifast"] = Visitor.turn.report()


class _Master:
    """Has Locust do one run after another.

    :param workers: 0: its users are in this process.
    """

    def __init__(self, runner: Any, workers: int) -> None:
        self._runner = runner
        self._workers = workers
        self._heard: dict[str, dict[str, Any]] = {}
        runner.environment.events.worker_report.add_listener(self._hear)

    def _hear(self, client_id: str, data: dict[str, Any]) -> None:
        self._heard[client_id] = data["wsgifast"]

    def gather(self) -> None:
        """Wait until all workers are there, and ready for a run."""
        if not self._workers:
            return
        ready = self._runner.clients
        wait_until(lambda: len(ready.ready) >= self._workers or self._has_lost_a_worker(), GATHER_S)
        if self._has_lost_a_worker():
            self._end()
        if len(ready.ready) < self._workers:
            sys.exit(f"{len(ready.ready)} of {self._workers} workers are there")

    def carry_out(self, run: Run) -> dict[str, Any]:
        """Make a run, and return the fields of :class:`~wsgifast.commands.bench.loads.Load`."""
        runner = self._runner
        self.gather()
        runner.environment.host = run.host
        runner.send_message("run", asdict(run))
        runner.start(run.users, spawn_rate=run.users)
        wait_until(
            lambda: self._reports(run) or self._has_lost_a_worker(),
            run.seconds + GIVE_UP_S + OVERTIME_S,
        )
        if not self._reports(run) and self._has_lost_a_worker():
            self._end()
        reports = self._reports(run)
        runner.stop()
        stats = runner.environment.stats
        good = stats.get(GOOD, "GET")
        good = good if good.num_requests else stats.get(GOOD, "POST")
        errors: dict[str, int] = {}
        for each in stats.errors.values():
            text = _error_text(each.to_name().partition(": ")[2])
            errors[text] = errors.get(text, 0) + each.occurrences
        if not reports:
            errors["no end of the response"] = 1
        count = good.num_requests
        times = {p: good.get_response_time_percentile(p / 100) / CLOCK * 1e3 for p in (50, 95, 99)}
        return {
            "requests": count,
            "failures": sum(errors.values()),
            "body_bytes": good.total_content_length,
            "seconds": max((each["seconds"] for each in reports), default=run.seconds),
            "latency_ms": times if count else {},
            "errors": errors,
            "client_cpu_s": max((each["cpu_s"] for each in reports), default=0.0),
        }

    def _end(self) -> NoReturn:
        self._runner.quit()
        sys.exit(f"one of {self._workers} workers has ended, or does not answer any more")

    def _has_lost_a_worker(self) -> bool:
        """Whether a worker has sent no heartbeat for some seconds."""
        return bool(self._workers and self._runner.clients.missing)

    def _reports(self, run: Run) -> list[dict[str, Any]]:
        """The reports of all processes, once the run is over in all of them."""
        found = list(self._heard.values()) if self._workers else [Visitor.turn.report()]
        found = [each for each in found if each["number"] == run.number and each["over"]]
        return found if len(found) == max(1, self._workers) else []


def _error_text(text: str) -> str:
    """Without the URL, which has another port each time."""
    reason = text.partition("original=")[2].removesuffix(")") or text.strip("\"'")
    return f"no byte for {GIVE_UP_S:g} s" if reason == "timed out" else reason


if __name__ == "__main__":
    main()
