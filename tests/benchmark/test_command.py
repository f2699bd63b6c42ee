"""`wsgifast bench` as users type it: its measurements, and its errors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.support.servers import ROOT, STOP_S, free_port
from wsgifast.commands import cli

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

APP = "tests.benchmark.apps:app"
ASGI = "tests.doctor.apps:asgi_app"
SHORT = ("--rounds=1", "--seconds=0.5")


def bench(*arguments: str) -> int:
    return cli.main(["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((APP, "no-slash"), 2, "'no-slash' is not a path"),
        ((APP, "/a b"), 2, "percent-encoded"),
        ((APP, "--header", "X-Price: 1 €"), 2, "X-Price"),
        ((APP, "--budget", "p98=1"), 2, "p98=1"),
        ((APP, "--report", "no/such/folder"), 2, "no/such/folder"),
        ((ASGI, "--worker-class", "sync"), 2, "--worker-class"),
        ((ASGI, "--", "-k", "sync"), 2, "No such option"),
        ((APP, "--worker-class", "nope"), 2, "--worker-class nope: ImportError: Entry point"),
        ((APP, "--master", "--processes", "2"), 2, "--processes"),
        ((APP, "--master-host", "10.0.0.1"), 2, "--master-host"),
        ((APP, "--master", "--master-host", "0.0.0.0"), 2, "that workers can reach"),
        ((APP, "--master", "--master-host", "203.0.113.9"), 2, "203.0.113.9: Cannot assign"),
        ((APP, "--master", "--master-host", "no.such.host.invalid"), 2, "no.such.host.invalid: "),
        (("nowhere:app",), 3, "nowhere"),
        (("tests.doctor.apps:nothing",), 3, "nothing"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(
    arguments: tuple[str, ...], status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == status
    out, err = capfd.readouterr()
    assert said in err
    assert len(err.strip().splitlines()) == 1, err
    assert not out


def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without_locust(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "locust" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_locust)
    assert bench(APP) == 2
    assert "pip install 'wsgifast[bench]'" in capsys.readouterr().err


def test_body_that_differs_by_process_is_not_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench(APP, "/process", *SHORT, f"--report={tmp_path / 'report'}") == 0
    assert "/process: the body changes with each request or start" in capfd.readouterr().out


# The app compresses by itself, and does not if it is wrapped and KEPT is false.
COMPRESSED = """\
import gzip, json, os

KEPT, PLAIN = {cached}, b"// text\\n" * 20_000
IS_RAW = json.loads(os.environ.get("WSGIFAST_BENCH", "{{}}")).get("options") is None


def app(environ, start_response):
    accepted = environ.get("HTTP_ACCEPT_ENCODING", "")
    assert "gzip" in accepted and "br" in accepted, accepted
    headers, body = [], PLAIN
    if IS_RAW == {raw_codes} or KEPT:
        headers, body = [("Content-Encoding", "gzip")], gzip.compress(PLAIN)
    start_response("200 OK", [*headers, ("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.mark.parametrize(
    ("cached", "raw_codes", "status", "said"),
    [
        (False, True, 1, "in gzip, WSGIFast on gthread 160,000 bytes, WSGIFast on FastWorker"),
        (False, False, 0, "(gzip of 160,000)"),
        (True, True, 0, ""),
    ],
)
def test_compressed_bodies_are_compared_decoded(
    cached: bool, raw_codes: bool, status: int, said: str,
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    app, report = (tmp_path / name for name in ("coded.py", "report"))
    app.write_text(COMPRESSED.format(cached=cached, raw_codes=raw_codes))
    assert bench(str(app), "/", *SHORT, f"--report={report}") == status
    out, _ = capfd.readouterr()
    assert said in out
    (row,) = json.loads(report.with_suffix(".json").read_text())["rows"].values()
    for found in row["contenders"].values():
        assert (found["failures"], found["requests/s"] > 0) == (0, True), out
    assert len(row["again"]) == 1


TEXT = """\
def app(environ, start_response):
    body = b'{"name": "a name"},' * 20_000
    fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("200 OK", fields)
    return [body]
"""


def test_compressing_wrapper_shows_bytes_and_link_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app, report = tmp_path / "text.py", tmp_path / "report"
    app.write_text(TEXT)
    options = ("--compress", "--link=20mbit", "--worker-class=FastWorker", f"--report={report}")
    assert bench(str(app), "/", *SHORT, *options) == 0
    out, _ = capfd.readouterr()
    assert "ms at 20 Mbit/s are computed, not measured" in out
    (row,) = json.loads(report.with_suffix(".json").read_text())["rows"].values()
    raw, wrapped = (found["body"] for found in row["contenders"].values())
    assert (raw["coding"], raw["bytes"], raw["link"]) == ("", 380_000, {"20 Mbit/s": 152.0})
    assert (wrapped["coding"], wrapped["decoded bytes"]) == ("zstd", 380_000)
    assert wrapped["bytes"] < 1000


@pytest.mark.parametrize("rate", ["20", "20m", "0mbit", "-1mbit", "infmbit", "mbit"])
def test_link_of_no_rate_is_refused(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(APP, f"--link={rate}")
    assert "expected a rate such as 20mbit" in capsys.readouterr().err


def test_wsgi_app_over_budget_ends_with_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    options = ("--worker-class=FastWorker", f"--report={report}")
    assert bench(APP, "/new", "/crumbs", *SHORT, *options, "--budget=p99=0.001,ratio=0.001") == 1
    out, err = capfd.readouterr()
    assert "over budget: /new, WSGIFast on FastWorker: p99 is" in err
    assert "ratio is" not in err
    assert "the body changes with each request" in out
    rows = json.loads(report.with_suffix(".json").read_text())["rows"]
    assert list(rows) == ["/new", "/crumbs"]
    for row in rows.values():
        for name in ("FastWorker", "WSGIFast on FastWorker"):
            found = row["contenders"][name]
            assert found["failures"] == 0
            assert found["requests/s"] > 0
    assert "WSGIFast on FastWorker" in report.with_suffix(".html").read_text()


def test_asgi_app_is_loaded_by_master_and_two_workers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    master = f"--master-port={free_port()}"
    command = [sys.executable, "-m", "wsgifast", "bench", "--worker", master]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    try:
        report = f"--report={tmp_path / 'asgi'}"
        options = ("--master", "--expect-workers=2", "--users=2")
        assert bench(ASGI, "/messages", *SHORT, *options, master, report) == 0
        for worker in workers:
            assert worker.wait(STOP_S) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    out, _ = capfd.readouterr()
    for name in ("uvicorn", "ASGIFast on uvicorn", "ASGIFast on our protocol"):
        assert name in out


def test_dropped_requests_are_failures(tmp_path: Path) -> None:
    (tmp_path / "drops.py").write_text(
        "import itertools\ncount = itertools.count()\n"
        "def app(environ, start_response):\n"
        "    if next(count) % 2:\n        raise StopIteration  # gunicorn closes\n"
        "    start_response('200 OK', [('Content-Length', '2')])\n    return [b'ok']\n"
    )
    command = [sys.executable, "-m", "wsgifast", "bench", "drops.py", "--rounds=1", "--seconds=0.5"]
    subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
        stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert '"failures": 0' not in (tmp_path / "wsgifast-bench.json").read_text()
