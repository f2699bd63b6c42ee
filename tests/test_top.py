"""`wsgifast top`: the rates between two scrapes, and the command that prints them."""

from __future__ import annotations

import http.server
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http import answering
from tests.support.servers import ROOT, free_port
from wsgifast.commands import cli
from wsgifast.commands import top as command
from wsgifast.metrics import CATALOGUE, top
from wsgifast.metrics.health import SlowClient
from wsgifast.metrics.top import Scrape, View, quantile, view


def parsed(text: str, at: float) -> Scrape:
    """Return a scrape in Prometheus's text format."""
    return Scrape.of(at, text_string_to_metric_families(text))


def lines(of: View, address: str, **options: Any) -> list[str]:
    return command.lines(asdict(of), address, **options)


BOUNDS = ("0.01", "0.1", "1.0", "+Inf")


def histogram(name: str, labels: str, counts: tuple[int, ...], total: float) -> str:
    """Return one series of a histogram as a server writes it. `counts` are of each bucket alone."""
    text = ""
    for number, bound in enumerate(BOUNDS):
        text += f'{name}_bucket{{{labels}le="{bound}"}} {sum(counts[: number + 1])}\n'
    labels = labels.rstrip(",")
    return f"{text}{name}_count{{{labels}}} {sum(counts)}\n{name}_sum{{{labels}}} {total}\n"


def exposition(*, quick: int, slow: int, failed: int, cpu: float) -> str:
    """Return the report of a server with two workers. The numbers are requests since its start."""
    name = "http_server_request_duration_seconds"
    size = "http_server_response_body_size_bytes"
    common = 'http_request_method="GET",url_scheme="http",'
    page = f'{common}http_response_status_code="200",http_route="/page",'
    report = f'{common}http_response_status_code="200",http_route="/report/<int:year>",'
    broken = f'{common}http_response_status_code="500",http_route="/report/<int:year>",'
    gauges = {
        "wsgifast_workers": 2, "wsgifast_threads": 8, "wsgifast_threads_busy": 8,
        "wsgifast_requests_waiting": 12, 'wsgifast_connections{state="sending"}': 7,
        'wsgifast_connections{state="idle"}': 90, "wsgifast_slow_clients": 7,
        'wsgifast_worker_memory_bytes{pid="11"}': 50 << 20,
        'wsgifast_worker_memory_bytes{pid="12"}': 50 << 20,
    }  # fmt: skip
    return "".join(
        (
            f"# TYPE {name} histogram\n",
            histogram(name, page, (quick, 0, 0, 0), 0.005 * quick),
            histogram(name, report, (0, 0, slow, 0), 0.5 * slow),
            histogram(name, broken, (0, 0, 0, failed), 3.0 * failed),
            f"# TYPE {size} histogram\n",
            histogram(size, page, (0, 0, 0, quick), 1000.0 * quick),
            *(f"# TYPE {n.partition('{')[0]} gauge\n{n} {value}\n" for n, value in gauges.items()),
            "# TYPE wsgifast_worker_cpu_seconds counter\n",
            f"wsgifast_worker_cpu_seconds_total {cpu}\n",
        )
    )


BEFORE = exposition(quick=100, slow=0, failed=3, cpu=10.0)
AFTER = exposition(quick=300, slow=20, failed=7, cpu=13.0)


def test_rates_are_those_between_two_scrapes() -> None:
    found = view(parsed(BEFORE, 100.0), parsed(AFTER, 102.0))
    assert found.seconds == 2
    assert (found.workers, found.threads, found.threads_busy) == (2, 8, 8)
    assert found.requests_waiting == 12
    assert found.requests_per_s == pytest.approx((200 + 20 + 4) / 2)
    assert found.errors_per_s == pytest.approx(2)
    assert found.cpu == pytest.approx(1.5)
    assert found.body_bytes_per_s == pytest.approx(100_000)
    assert found.memory_bytes == {"11": 50 << 20, "12": 50 << 20}
    assert list(found.connections.items()) == [("idle", 90), ("sending", 7)]
    assert found.p50_s == pytest.approx(0.01 * 112 / 200)
    assert found.sendfile_bytes_per_s is None
    slowest, quick = found.endpoints
    assert slowest.pattern == "/report/<int:year>"
    assert (slowest.requests_per_s, slowest.errors_per_s) == (12, 2)
    assert slowest.p50_s == pytest.approx(0.1 + 0.9 * 12 / 20)
    assert slowest.p99_s == 1.0  # the last known bound
    assert (quick.pattern, quick.requests_per_s) == ("/page", 100)


def test_restarted_server_counts_from_nothing() -> None:
    before = parsed(exposition(quick=1000, slow=50, failed=0, cpu=99.0), 0.0)
    found = view(before, parsed(exposition(quick=30, slow=0, failed=0, cpu=2.0), 2.0))
    assert found.requests_per_s == 15
    assert found.cpu == 1


def test_metric_that_is_missing_is_none() -> None:
    nothing = parsed("", 0.0)
    found = view(nothing, nothing)
    for value in (found.workers, found.requests_per_s, found.p99_s, found.cpu, found.threads):
        assert value is None
    assert lines(found, "here")[2:] == ["requests  -, - with 5xx, p50 -, p99 -"]


def test_view_is_written_as_text() -> None:
    found = view(parsed(BEFORE, 100.0), parsed(AFTER, 102.0))
    text = lines(found, "127.0.0.1:9100")
    assert text[:8] == [
        "127.0.0.1:9100, over 2 s",
        "",
        "workers   2, 100 MiB (11: 50 MiB, 12: 50 MiB), 1.5 processors in use",
        "threads   8 of 8 busy, none free - of the time, 12 waiting for one, wait p99 -",
        "requests  112.0/s, 2.0/s with 5xx, p50 5.6 ms, p99 1 s",
        "bytes     97.7 KiB/s of bodies, - by sendfile",
        "clients   97 (idle: 90, sending: 7), - in the accept queue",
        "slow      7 of them, - queued, - in files, - left, - timed out",
    ]
    shares = replace(found, none_free=0.25, wait_p99_s=0.0021, accept_backlog=3)
    assert "25% of the time, 12 waiting for one, wait p99 2.1 ms" in lines(shares, "here")[3]
    assert lines(shares, "here")[6].endswith("3 in the accept queue")
    nobody = replace(found, connections={"idle": 0, "sending": 0})
    assert lines(nobody, "here")[6].startswith("clients   0, ")
    slowest = "/report/<int:year> 12.0/s 2.0/s 640 ms 1 s 0 B/s"
    assert " ".join(text[-2].split()) == slowest
    (line,) = lines(found, "here", most=1)[-1:]
    assert " ".join(line.split()) == slowest


def slow_client(client: str, path: str) -> dict[str, Any]:
    return {"pid": 7, **SlowClient(client, path, 300_000, 12.0, 800.0)._asdict()}


def test_slow_clients_are_written_as_text() -> None:
    nothing = parsed("", 0.0)
    path = "/movie\x1b[2J"
    slow = [slow_client(f"192.0.2.{number}:5", path) for number in range(3)]
    text = lines(view(nothing, nothing, slow), "here", most=2)
    assert [" ".join(line.split()) for line in text[-2:]] == [
        "192.0.2.0:5 800 B/s 293 KiB 12 s /movie\\x1b[2J",
        "192.0.2.1:5 800 B/s 293 KiB 12 s /movie\\x1b[2J",
    ]


def test_figures_stay_visible_on_a_narrow_terminal() -> None:
    long = "/api/organizations/<int:number>/projects"
    one, other = (
        parsed(text.replace("/page", long), at) for at, text in enumerate((BEFORE, AFTER))
    )
    slow = [slow_client("192.0.2.1:5", "/movie" * 20)]
    wide, narrow = (lines(view(one, other, slow), "here", width=width) for width in (200, 70))
    at = wide.index(next(line for line in wide if line.startswith("slowest endpoints")))
    assert max(map(len, narrow[at:])) <= 70
    for whole, cut in zip(wide[at:], narrow[at:], strict=True):
        assert whole.split()[1:4] == cut.split()[1:4]
    assert any(line.startswith("/api/organiz") and "… " in line for line in narrow)
    assert any("/movie/movie" in line and line.endswith("…") for line in narrow)


def test_metrics_that_are_read_are_in_the_catalogue() -> None:
    source = Path(top.__file__).read_text()
    names = set(re.findall(r'"((?:wsgifast|http)_[a-z_]+)"', source))
    names -= {"http_route", "http_response_status_code"}
    assert len(names) > 15
    assert names <= CATALOGUE.keys()


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 2.0), (0.99, 2.0), (1.0, 2.0)],
)
def test_quantile_equals_that_of_prometheus(share: float, expected: float) -> None:
    found = quantile(share, {1.0: 2, 2.0: 3, math.inf: 4})
    assert found == pytest.approx(expected)


def test_quantile_without_an_observation_is_none() -> None:
    assert quantile(0.5, {}) is None
    assert quantile(0.5, {1.0: 0, math.inf: 0}) is None


SLOW = SlowClient("192.0.2.1:50000", "/movie", 300_000, 12.5, 800.0)


class Metrics(http.server.BaseHTTPRequestHandler):
    """A metrics address of a server that answers ten more requests in each view."""

    def do_GET(self) -> None:
        assert self.path in ("/top?seconds=0.1", "/top?seconds=0.05")
        one, other = (exposition(quick=n, slow=0, failed=0, cpu=1.0) for n in (10, 20))
        slow = [SLOW._asdict() | {"pid": 11}]
        body = json.dumps(asdict(view(parsed(one, 1.0), parsed(other, 3.0), slow))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_top_prints_one_view_as_text_or_json(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSGIFAST_METRICS", address)
    monkeypatch.setattr(command, "_INTERVAL_S", 0.1)
    assert cli.main(["top", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] == 8
    assert found["requests_per_s"] * found["seconds"] == pytest.approx(10)
    assert found["endpoints"][0]["pattern"] == "/page"
    assert found["clients"] == [SLOW._asdict() | {"pid": 11}]
    url = f"http://{address}/metrics"
    assert cli.main(["top", url]) == 0
    assert "threads   8 of 8 busy" in capsys.readouterr().out


def test_top_with_an_interval_prints_again_and_again(address: str) -> None:
    command = [sys.executable, "-m", "wsgifast", "top", address, "--every", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    try:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("threads")
            assert "\x1b" not in line
            if seen == 3:
                break
    finally:
        process.terminate()
        process.wait()
        process.stdout and process.stdout.close()


def test_top_without_a_server_names_the_way_out(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    assert cli.main(["top", f"127.0.0.1:{port}"]) == 2
    said = capsys.readouterr().err
    assert f"nothing listens on 127.0.0.1:{port}" in said
    assert f"WSGIFAST_METRICS=127.0.0.1:{port}" in said
    assert cli.main(["top", "nosuchhost.invalid:9100"]) == 2
    assert "wsgifast: nosuchhost.invalid:9100: " in capsys.readouterr().err
    assert cli.main(["top", "9100x"]) == 2
    assert "ADDRESS='9100x': expected a host and a port" in capsys.readouterr().err


def test_top_of_another_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(
        [b"HTTP/1.0 200 OK\r\n\r\n<p>hello"],
        [b'HTTP/1.0 200 OK\r\n\r\n{"seconds": 2}'],
        [b"HTTP/1.0 404 Not Found\r\n\r\n"],
        [b"HTTP/1.0 500 Internal Server Error\r\n\r\nThe disk is full\n"],
        [b"no HTTP"],
    ) as address:
        for said in (
            "answers 200 without a view", "answers 200 without a view",
            "answers 404 without a view", "answers 500: The disk is full",
            "the response is not HTTP (no HTTP",
        ):  # fmt: skip
            assert cli.main(["top", "{}:{}".format(*address)]) == 2
            assert said in capsys.readouterr().err
