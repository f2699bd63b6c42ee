"""Scraped metrics of FastWorker: the values of all workers, while processes start and exit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http import Connection, get, reset_on_close
from tests.support.servers import LiveServer, free_port, wait_for
from tests.workers.app import FILE_BYTES
from tests.workers.serving import fast_worker, refused, rewrite_module, stats
from wsgifast.commands.bench.processes import HOST, is_listening
from wsgifast.metrics import CATALOGUE

pytestmark = pytest.mark.long

Labels = Mapping[str, str]


class Scrape:
    """Return the samples of one scrape."""

    def __init__(self, port: int) -> None:
        response = get(("127.0.0.1", port), "/metrics")
        assert response.status == 200
        families = text_string_to_metric_families(response.body.decode())
        self.all = [sample for family in families for sample in family.samples]

    def samples(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        return [
            (sample.labels, sample.value)
            for sample in self.all
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels."""
        return sum(value for _, value in self.samples(name, **labels))


def scraped_until(port: int, name: str, value: float, **labels: str) -> Scrape:
    """Scrape until a metric has a value, which takes about a second."""
    found: list[Scrape] = []

    def has_it() -> bool:
        with contextlib.suppress(OSError):
            found[:] = [Scrape(port)]
        return bool(found) and found[0].value(name, **labels) == value

    wait_for(has_it, f"{name}{labels} is {value}", interval=0.1)
    return found[0]


def exporter_of(server: LiveServer) -> int:
    """Return the pid of the exporter that began to serve last."""
    server.wait_for_log("[INFO] Metrics at")
    return int(re.findall(r"\[(\d+)\] \[INFO\] Metrics at", server.log())[-1])


def directory_of(server: LiveServer, worker: int) -> Path:
    """Return the directory of the metrics files that a worker has open."""
    for fd in Path(f"/proc/{worker}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(fd)
            if target.endswith(".db"):
                return Path(target).parent
    raise AssertionError(f"{worker} has no file of metrics open\n{server.log()}")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def metered(*options: str, **attributes: float) -> Iterator[tuple[LiveServer, int]]:
    port = free_port()
    details = {"metrics_bind": f"127.0.0.1:{port}", **attributes}
    with fast_worker(*options, attributes=details) as server:
        yield server, port


def workers_of(scrape: Scrape) -> set[int]:
    return {int(labels["pid"]) for labels, _ in scrape.samples("wsgifast_worker_memory_bytes")}


def test_scrapes_report_server_beyond_its_processes() -> None:
    patient = {"head_timeout_s": 300.0, "body_timeout_s": 300.0}
    with metered("--workers=2", "--threads=3", **patient) as (server, port):
        scraped_until(port, "wsgifast_workers", 2)
        _requests(server, port)
        _gauges(server, port)
        _a_worker_is_killed(server, port)
        _the_exporter_is_killed(server, port)
        new = _another_address_by_hup(server, port)
        assert get(("127.0.0.1", new), "/elsewhere").status == 404
        scrape = Scrape(new)
        directory = directory_of(server, workers_of(scrape).pop())
        exporter = exporter_of(server)
        assert server.stop() == 0
        wait_for(
            lambda: not is_running(exporter),
            "the exporter has ended with the server",
        )
        wait_for(lambda: not directory.exists(), "its directory has gone")


def _requests(server: LiveServer, port: int) -> None:
    for _ in range(3):
        assert server.get("/small/100").status == 200
    assert server.get("/file").status == 200
    assert server.get("/nothing").status == 404
    assert server.get("/raise/before").status == 500
    # A request and its worker change these metrics last. So the other metrics are complete.
    scraped_until(port, "wsgifast_thread_wait_seconds_count", 6)
    scraped_until(port, "wsgifast_sendfile_bytes_total", FILE_BYTES)
    scrape = scraped_until(port, "http_server_request_duration_seconds_count", 6)
    duration = "http_server_request_duration_seconds_count"
    assert scrape.value(duration, http_response_status_code="200") == 4
    assert scrape.value(duration, http_response_status_code="404") == 1
    assert scrape.value(duration, http_response_status_code="500", http_route="unknown") == 1
    size = "http_server_response_body_size_bytes_sum"
    assert scrape.value(size, http_response_status_code="200") == 300 + FILE_BYTES
    assert scrape.value("wsgifast_sendfile_bytes_total") == FILE_BYTES
    # This is read at another moment than the counters of requests.
    scraped_until(port, "wsgifast_thread_wait_seconds_count", 6)
    assert scrape.value("wsgifast_worker_starts_total") == 2
    assert scrape.value("wsgifast_worker_cpu_seconds_total") > 0


def _gauges(server: LiveServer, port: int) -> None:
    with contextlib.ExitStack() as stack:
        for sent in (b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"):
            stack.enter_context(Connection(server.address)).send(sent)
        slow = stack.enter_context(Connection(server.address, receive_buffer=4096))
        slow.send_request("/file")
        scrape = scraped_until(port, "wsgifast_slow_clients", 1)
        assert scrape.value("wsgifast_threads") == 6
        for state in ("idle", "head", "body", "sending"):
            scraped_until(port, "wsgifast_connections", 1, state=state)
        assert scrape.value("wsgifast_connections_limit") == 2000
        assert scrape.value("wsgifast_accept_backlog_limit") > 0
        reset_on_close(slow.sock)
        slow.close()
        scrape = scraped_until(port, "wsgifast_clients_left_total", 1)
    details = {re.sub(r"_(bucket|sum|count)$", "", sample.name) for sample in scrape.all}
    assert details <= CATALOGUE.keys()
    scraped_until(port, "wsgifast_slow_clients", 0)


def _a_worker_is_killed(server: LiveServer, port: int) -> None:
    before = Scrape(port)
    requests = before.value("wsgifast_connections_accepted_total")
    killed = workers_of(before).pop()
    os.kill(killed, signal.SIGKILL)
    scraped_until(port, "wsgifast_worker_starts_total", 3)

    def others() -> bool:
        workers = workers_of(Scrape(port))
        return len(workers) == 2 and killed not in workers

    wait_for(others, "another one is in its place", interval=0.1)
    scrape = scraped_until(port, "wsgifast_workers", 2)
    assert scrape.value("wsgifast_connections_accepted_total") >= requests


def _the_exporter_is_killed(server: LiveServer, port: int) -> None:
    exporter = exporter_of(server)
    os.kill(exporter, signal.SIGKILL)
    wait_for(lambda: exporter_of(server) != exporter, "another one has begun")
    scrape = scraped_until(port, "wsgifast_workers", 2)
    assert scrape.value("wsgifast_worker_starts_total") == 3


def _another_address_by_hup(server: LiveServer, port: int) -> int:
    new = free_port()
    arguments: Any = server.process.args
    conf = Path(arguments[arguments.index("-c") + 1])
    rewrite_module(conf, conf.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{new}"))
    server.process.send_signal(signal.SIGHUP)
    scraped_until(new, "wsgifast_worker_starts_total", 5)
    scraped_until(new, "wsgifast_workers", 2)  # the old workers have ended
    wait_for(lambda: not is_listening((HOST, port)), "nobody is at the old address")
    return new


def test_replaced_workers_leave_no_metric_files() -> None:
    with metered("--max-requests=3") as (server, port):
        first = workers_of(scraped_until(port, "wsgifast_workers", 1)).pop()
        directory = directory_of(server, first)
        pids = {stats(server)["pid"] for _ in range(20)}

        def several() -> bool:
            """A worker that is about to end serves requests until its main thread runs."""
            pids.add(stats(server)["pid"])
            return len(pids) > 2

        wait_for(several, "more workers have served")

        def ends() -> float:
            return Scrape(port).value("wsgifast_worker_ends_total", reason="max_requests")

        wait_for(lambda: ends() >= len(pids) - 1, "they have told of their ends")

        def is_reported() -> bool:
            scrape = Scrape(port)
            # The last worker's last second may be missing.
            waits = scrape.value("wsgifast_thread_wait_seconds_count")
            return waits >= 15 and scrape.value("wsgifast_worker_starts_total") >= len(pids)

        wait_for(is_reported, "their requests and their starts are told")

        def files() -> set[str]:
            return {path.name.rpartition("_")[2] for path in directory.glob("*.db")}

        wait_for(
            lambda: len(files()) <= 3,
            f"the dead ones are put together: {files()}",
        )


def test_killed_worker_reports_its_last_requests(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "email.py").touch()  # the exporter needs Python's own module
    options = ("--workers=1", f"--pythonpath={tmp_path}")
    with fast_worker(*options, env={"WSGIFAST_METRICS": f"127.0.0.1:{port}"}) as server:
        worker = workers_of(scraped_until(port, "wsgifast_workers", 1)).pop()
        for _ in range(5):
            server.get("/small/1")
        os.kill(worker, signal.SIGQUIT)
        scrape = scraped_until(port, "wsgifast_worker_ends_total", 1, reason="stopped")
        assert scrape.value("http_server_request_duration_seconds_count") == 5


def test_usr2_server_takes_over_metrics_address() -> None:
    port = free_port()
    env = {"WSGIFAST_METRICS": f"127.0.0.1:{port}"}
    with fast_worker("--workers=1", env=env, attributes={"metrics_bind": "127.0.0.1:1"}) as server:
        scraped_until(port, "wsgifast_workers", 1)
        first = exporter_of(server)
        server.process.send_signal(signal.SIGUSR2)
        wait_for(
            lambda: "Metrics wait for" in server.log(),
            "the next one wants the address",
        )
        master = int(server.log().rsplit("Listening at: ", 1)[1].split("(")[1].split(")")[0])
        assert server.stop(signal.SIGQUIT) == 0
        wait_for(lambda: exporter_of(server) != first, "the next one has it")
        worker = workers_of(scraped_until(port, "wsgifast_workers", 1)).pop()
        directory = directory_of(server, worker)
        # An exporter that is killed leaves neither a process nor a file.
        os.kill(master, signal.SIGKILL)
        exporter = exporter_of(server)
        wait_for(lambda: not is_running(worker), "the worker has ended")
        wait_for(lambda: not is_running(exporter), "the exporter has ended")
        assert not directory.exists()


def test_unusable_metrics_directory_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    env = {"WSGIFAST_METRICS": "127.0.0.1:1", "PROMETHEUS_MULTIPROC_DIR": missing}
    assert (
        "Error: WSGIFAST_METRICS='127.0.0.1:1': metrics are gathered in "
        f"PROMETHEUS_MULTIPROC_DIR={missing!r}, where no file can be written: No such file"
    ) in refused(env=env)


def test_client_that_leaves_its_upload_has_status_499() -> None:
    port = free_port()
    env = {"WSGIFAST_METRICS": f"127.0.0.1:{port}"}
    attributes = {"buffer_bodies": False}
    with (
        fast_worker("--workers=1", env=env, attributes=attributes) as server,
        Connection(server.address) as upload,
    ):
        upload.send(b"POST /digest HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n")
        upload.send(bytes(3_000_000))
        reset_on_close(upload.sock)
        upload.close()
        duration = "http_server_request_duration_seconds_count"
        scrape = scraped_until(port, duration, 1, http_response_status_code="499")
        assert scrape.value("wsgifast_clients_left_total") == 1
        assert not scrape.value(duration, http_response_status_code="500")
