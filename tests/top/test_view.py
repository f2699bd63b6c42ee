"""What two scrapes say of the time between them, and how it is written."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from wsgifast import WSGIFastError
from wsgifast.commands import scrapes as module
from wsgifast.commands.scrapes import Client, parsed, quantile, view
from wsgifast.commands.top import lines
from wsgifast.metrics import CATALOGUE

BOUNDS = ("0.01", "0.1", "1.0", "+Inf")


def histogram(name: str, labels: str, counts: tuple[int, ...], total: float) -> str:
    """One series of a histogram as a server writes it; `counts` are of each bucket alone."""
    text = ""
    for number, bound in enumerate(BOUNDS):
        text += f'{name}_bucket{{{labels}le="{bound}"}} {sum(counts[: number + 1])}\n'
    labels = labels.rstrip(",")
    return f"{text}{name}_count{{{labels}}} {sum(counts)}\n{name}_sum{{{labels}}} {total}\n"


def exposition(*, quick: int, slow: int, failed: int, cpu: float, memory: int = 50 << 20) -> str:
    """What a server with two workers reports; the numbers are requests since it has begun."""
    name = "http_server_request_duration_seconds"
    size = "http_server_response_body_size_bytes"
    common = 'http_request_method="GET",url_scheme="http",'
    page = f'{common}http_response_status_code="200",http_route="/page",'
    report = f'{common}http_response_status_code="200",http_route="/report/<int:year>",'
    broken = f'{common}http_response_status_code="500",http_route="/report/<int:year>",'
    return "".join(
        (
            f"# TYPE {name} histogram\n",
            histogram(name, page, (quick, 0, 0, 0), 0.005 * quick),
            histogram(name, report, (0, 0, slow, 0), 0.5 * slow),
            histogram(name, broken, (0, 0, 0, failed), 3.0 * failed),
            f"# TYPE {size} histogram\n",
            histogram(size, page, (0, 0, 0, quick), 1000.0 * quick),
            "# TYPE wsgifast_workers gauge\nwsgifast_workers 2\n",
            "# TYPE wsgifast_threads gauge\nwsgifast_threads 8\n",
            "# TYPE wsgifast_threads_busy gauge\nwsgifast_threads_busy 8\n",
            "# TYPE wsgifast_requests_waiting gauge\nwsgifast_requests_waiting 12\n",
            "# TYPE wsgifast_connections gauge\n",
            'wsgifast_connections{state="sending"} 7\nwsgifast_connections{state="idle"} 90\n',
            "# TYPE wsgifast_slow_clients gauge\nwsgifast_slow_clients 7\n",
            f"# TYPE wsgifast_worker_memory_bytes gauge\n"
            f'wsgifast_worker_memory_bytes{{pid="11"}} {memory}\n'
            f'wsgifast_worker_memory_bytes{{pid="12"}} {memory}\n',
            f"# TYPE wsgifast_worker_cpu_seconds counter\n"
            f"wsgifast_worker_cpu_seconds_total {cpu}\n",
        )
    )


def test_rates_are_those_between_two_scrapes() -> None:
    before = parsed(exposition(quick=100, slow=0, failed=3, cpu=10.0), 100.0)
    found = view(before, parsed(exposition(quick=300, slow=20, failed=7, cpu=13.0), 102.0))
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
    assert slowest.p99_s == 1.0  # the last bound that is known
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
    assert lines(found, "here")[2:] == [
        "requests  -, - with 5xx",
        "bytes     -/s of bodies, -/s by sendfile",
    ]


def test_view_is_written_as_text() -> None:
    before = parsed(exposition(quick=100, slow=0, failed=3, cpu=10.0), 100.0)
    after = parsed(exposition(quick=300, slow=20, failed=7, cpu=13.0), 102.0)
    text = lines(view(before, after), "127.0.0.1:9100")
    assert text[0] == "127.0.0.1:9100: 2 workers, over 2.0 s"
    assert "threads   8 of 8 busy, 12 requests waiting" in text
    assert "requests  112.0/s, 2.0/s with 5xx, p50 5.6 ms, p99 1 s" in text
    assert "bytes     97.7 KiB/s of bodies, -/s by sendfile" in text
    assert "clients   97 connected: 90 idle, 7 sending" in text
    assert "memory    100 MiB (50 MiB, 50 MiB), 1.50 processors in use" in text
    slowest = "/report/<int:year> 12.0 2.0 640 ms 1 s 0 B"
    assert " ".join(text[-2].split()) == slowest
    (line,) = lines(view(before, after), "here", most=1)[-1:]
    assert " ".join(line.split()) == slowest


def test_slow_clients_are_written_as_text() -> None:
    nothing = parsed("", 0.0)
    path = "/movie\x1b[2J"
    slow = [Client(7, f"192.0.2.{number}:5", path, 300_000, 12.0, 800.0) for number in range(3)]
    text = lines(view(nothing, nothing, slow), "here", most=2)
    assert [" ".join(line.split()) for line in text[-2:]] == [
        "192.0.2.0:5 800 B/s 293 KiB 12 s /movie\\x1b[2J",
        "192.0.2.1:5 800 B/s 293 KiB 12 s /movie\\x1b[2J",
    ]


def test_figures_stay_visible_on_a_narrow_terminal() -> None:
    before = exposition(quick=100, slow=0, failed=3, cpu=10.0)
    after = exposition(quick=300, slow=20, failed=7, cpu=13.0)
    long = "/api/organizations/<int:number>/projects"
    one, other = (
        parsed(text.replace("/page", long), at) for at, text in enumerate((before, after))
    )
    slow = [Client(7, "192.0.2.1:5", "/movie" * 20, 300_000, 12.0, 800.0)]
    wide, narrow = (lines(view(one, other, slow), "here", width=width) for width in (200, 70))
    at = wide.index(next(line for line in wide if line.startswith("slowest endpoints")))
    assert max(map(len, narrow[at:])) <= 70
    for whole, cut in zip(wide[at:], narrow[at:], strict=True):
        assert whole.split()[1:4] == cut.split()[1:4]
    assert any(line.startswith("/api/organiz") and "… " in line for line in narrow)
    assert any("/movie/movie" in line and line.endswith("…") for line in narrow)


def test_metrics_that_are_read_are_in_the_catalogue() -> None:
    source = Path(module.__file__).read_text()
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


def test_text_that_is_no_exposition_is_refused() -> None:
    with pytest.raises(WSGIFastError, match="text format"):
        parsed("<!doctype html>\n<p>hello", 0.0)
