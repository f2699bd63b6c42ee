"""The access log in JSON, and the values for access logs in FastWorker's environ."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from asgifast.json_log import JSONFormatter
from gunicorn.config import Config
from gunicorn.instrument.statsd import Statsd

from tests.support.http import Connection
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from tests.support.shapes import STREAMED_CRUMBS
from tests.workers.app import FILE_BYTES
from tests.workers.serving import fast_worker, gunicorn_command
from tests.workers.stepped_worker import LARGE, MakeStepped, large
from wsgifast.bodies.access_log import ErrorLogFormatter
from wsgifast.workers import JSONLogger

ENVIRON = {
    "REQUEST_METHOD": "GET",
    "RAW_URI": "/caf%C3%A9?q=1",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REMOTE_ADDR": "192.0.2.1",
    "wsgi.url_scheme": "http",
}


@pytest.fixture
def settings() -> Iterator[Config]:
    """Return gunicorn's configuration. Loggers that use it are reset afterwards."""
    loggers = [logging.getLogger(f"gunicorn.{name}") for name in ("access", "error")]
    before = [(each, list(each.handlers), each.propagate) for each in loggers]
    yield Config()
    for each, handlers, propagate in before:
        for handler in set(each.handlers) - set(handlers):
            handler.close()
        each.handlers, each.propagate = handlers, propagate


def line(log: Any, *, status: Any = "200 OK", sent: int = 5, **environ: Any) -> str:
    """Return the logged fields of a request."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    log.access_log.handlers = [handler]
    resp = SimpleNamespace(status=status, sent=sent, headers=[])
    req = SimpleNamespace(headers=[])
    log.access(resp, req, {**ENVIRON, **environ}, timedelta(seconds=2, microseconds=345))
    (text,) = records
    return text


def fields(log: Any, **more: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(line(log, **more))
    return value


def test_json_log_has_fields_of_request(settings: Config) -> None:
    ours = {"wsgifast.sent_as": "joined", "wsgifast.chunks": 20, "wsgifast.pattern": "/<name>"}
    found = fields(JSONLogger(settings), **ours)
    assert found.pop("time").endswith("Z")
    assert found.pop("process.pid") > 0
    assert found == {
        "client.address": "192.0.2.1",
        "http.route": "/<name>",
        "http.request.method": "GET",
        "url.scheme": "http",
        "url.path": "/caf%C3%A9",
        "url.query": "q=1",
        "network.protocol.version": "1.1",
        "http.response.status_code": 200,
        "http.response.body.size": 5,
        "wsgifast.duration_us": 2_000_345,
        "wsgifast.sent_as": "joined",
        "wsgifast.chunks": 20,
    }


@pytest.mark.parametrize(
    "sent",
    [
        '" %(s)s \\',
        "a\r\nb\x00\x1b[31m",
        "\u2028 \x7f",
        'a","status":"500',
        "caf\xc3\xa9",
        "\xff\xfe",
    ],
)
def test_json_log_escapes_values_of_clients(settings: Config, sent: str) -> None:
    text = line(JSONLogger(settings), HTTP_USER_AGENT=sent, HTTP_REFERER=sent, RAW_URI=f"/{sent}")
    assert text.isascii()
    assert text.isprintable()
    found = json.loads(text)
    expected = "caf\xe9" if sent.startswith("caf") else sent
    assert found["user_agent.original"] == expected
    assert found["http.request.header.referer"] == [expected]
    assert found["url.path"] == f"/{expected}"
    assert found["http.response.status_code"] == 200


@pytest.mark.parametrize(
    ("allowed", "peer", "forwarded", "client"),
    [
        # Any client may send the header
        ("127.0.0.1,::1", "192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("127.0.0.1,::1", "127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1,::1", "127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1,::1", "127.0.0.1", "198.51.100.1,203.0.113.9 ,127.0.0.1", "203.0.113.9"),
        ("127.0.0.1,::1", "", "203.0.113.9", "203.0.113.9"),  # a Unix socket
        ("127.0.0.1,::1", "-", "203.0.113.9", "203.0.113.9"),  # the same, of gunicorn's asgi worker
        ("127.0.0.1,::1", "", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1,::1", "", "", None),
        ("127.0.0.1,::1", "::1", "2001:db8::9", "2001:db8::9"),
        ("127.0.0.1,::1", "::1", "[2001:db8::9]:443", "2001:db8::9"),
        ("127.0.0.1,::1", "127.0.0.1", "203.0.113.9:1234", "203.0.113.9"),
        ("127.0.0.1,::1", "127.0.0.1", "203.0.113.9, unknown", "127.0.0.1"),
        ("127.0.0.1,::1", "127.0.0.1", ",", "127.0.0.1"),
        ("127.0.0.1,::1", "127.0.0.1", 'x","status":"500', "127.0.0.1"),
        ("10.0.0.0/8", "10.1.2.3", "203.0.113.9, 10.9.9.9", "203.0.113.9"),
        ("*", "192.0.2.1", "198.51.100.1, 203.0.113.9", "198.51.100.1"),
        ("*", "192.0.2.1", "", "192.0.2.1"),
    ],
)
def test_json_log_client_needs_an_allowed_proxy(
    settings: Config, allowed: str, peer: str, forwarded: str, client: str | None
) -> None:
    settings.set("forwarded_allow_ips", allowed)
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    found = fields(JSONLogger(settings), REMOTE_ADDR=peer, **headers)
    assert found.get("client.address") == client
    assert found.get("network.peer.address") == (peer or None if client != peer else None)


@pytest.mark.parametrize("status", ["404 Not Found", b"404 Not Found", 404])
def test_json_log_reads_status_of_every_worker(settings: Config, status: Any) -> None:
    assert fields(JSONLogger(settings), status=status)["http.response.status_code"] == 404


def test_json_log_reads_time_of_every_worker(settings: Config) -> None:
    log = JSONLogger(settings)
    resp, req = SimpleNamespace(status=200, headers=[]), SimpleNamespace(headers=[])
    of_asgi: Any = SimpleNamespace(seconds=3, microseconds=4)  # gunicorn's _RequestTime
    for taken, expected in ((of_asgi, 3_000_004), (timedelta(days=1, seconds=1), 86_401_000_000)):
        assert log.fields(resp, req, ENVIRON, taken)["wsgifast.duration_us"] == expected


def test_json_log_omits_bytes_nobody_counted(settings: Config) -> None:
    log = JSONLogger(settings)
    sendfile = {"wsgifast.sent_as": "file"}
    assert "http.response.body.size" not in fields(log, sent=0, **sendfile)
    counted = {**sendfile, "wsgifast.sendfile_bytes": 0}
    assert fields(log, sent=0, **counted)["http.response.body.size"] == 0
    assert fields(log, sent=0)["http.response.body.size"] == 0


def test_json_log_writes_to_stdout_by_default(settings: Config, tmp_path: Any) -> None:
    JSONLogger(settings)
    assert settings.accesslog == "-"
    settings.set("accesslog", str(tmp_path / "log"))
    JSONLogger(settings)
    assert settings.accesslog == str(tmp_path / "log")
    settings.set("accesslog", None)
    settings.set("logconfig_dict", {"loggers": {"gunicorn.access": {"level": "INFO"}}})
    JSONLogger(settings)
    assert settings.accesslog is None


def test_error_log_is_json_with_traceback_in_a_field(settings: Config, tmp_path: Path) -> None:
    settings.set("errorlog", str(tmp_path / "errors"))
    log = JSONLogger(settings)
    log.info("started %d", 1)
    try:
        raise ValueError("the\nreason")
    except ValueError:
        log.exception("failed")
    log.warning("here", stack_info=True)
    started, failed, here = map(json.loads, (tmp_path / "errors").read_text().splitlines())
    assert started.pop("time").endswith("Z")
    assert started == {"level": "INFO", "process.pid": os.getpid(), "message": "started 1"}
    assert (failed["level"], failed["message"]) == ("ERROR", "failed")
    assert failed["exception.stacktrace"].endswith("ValueError: the\nreason")
    assert 'log.warning("here", stack_info=True)' in here["code.stacktrace"]


def test_error_record_without_traceback_has_no_field() -> None:
    record = logging.makeLogRecord({"msg": "failed", "exc_info": False})
    assert "exception.stacktrace" not in json.loads(ErrorLogFormatter().format(record))


def test_error_record_with_access_arguments_is_message() -> None:
    said = {"name": "uvicorn.error", "msg": "%s %s %s %s %s", "args": (1, "GET", "/", "1.1", 200)}
    line = json.loads(JSONFormatter().format(logging.makeLogRecord(said)))
    assert line["message"] == "1 GET / 1.1 200"


def test_json_log_keeps_statsd_counters(settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Statsd, "_sock_send", lambda self, text: sent.append(text))
    assert not isinstance(JSONLogger(settings), Statsd)
    settings.set("statsd_host", f"127.0.0.1:{free_port()}")
    log = JSONLogger(settings)
    assert isinstance(log, Statsd)
    assert fields(log)["http.response.status_code"] == 200
    assert "gunicorn.request.status.200:1|c|@1.0" in sent
    log.sock.close()


def test_json_log_subclass_adds_fields(settings: Config) -> None:
    class Own(JSONLogger):
        def fields(self, *args: Any) -> dict[str, Any]:
            return {**super().fields(*args), "shop.id": 7, "shop.odd": object}

    found = fields(Own(settings))
    assert found["shop.id"] == 7
    assert "object" in found["shop.odd"]


# FastWorker's times


def times(environ: dict[str, Any]) -> tuple[int, int, int]:
    wait, app, send = (environ[f"wsgifast.{name}_us"] for name in ("wait", "app", "send"))
    return wait, app, send


def test_access_log_times_wait_app_and_sending(make_stepped: MakeStepped) -> None:
    def slow(environ: dict[str, Any], start_response: Any) -> Any:
        stepped.clock.now += 2
        return large(environ, start_response)

    stepped = make_stepped(slow)
    client = stepped.begin(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
    stepped.clock.now += 1  # the remaining body of the request takes this time
    client.send(b"b")
    stepped.poll()
    job = stepped.take_up()
    assert job is not None
    stepped.leave_waiting(job)
    stepped.clock.now += 4
    stepped.response(stepped.take_waiting())
    stepped.clock.now += 8
    while len(client.receive_all_there_is()):
        stepped.run()
    (environ,) = stepped.log.environs
    assert times(environ) == (4_000_000, 2_000_000, 8_000_000)
    assert stepped.log.seconds == [15]
    assert environ["wsgifast.sendfile_bytes"] == 0
    assert stepped.log.requests[0][2] == LARGE


def test_times_are_not_taken_without_access_log(make_stepped: MakeStepped) -> None:
    seen: list[Any] = []
    stepped = make_stepped(large)
    stepped.log_no_access()
    client = stepped.connect()
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    stepped.poll()
    job = stepped.take_up()
    assert job is not None
    seen.append(job.exchange)
    stepped.response(job)
    assert (seen[0].begun, seen[0].answered) == (0.0, 0.0)


# Live servers


def logged(server: LiveServer, text: str = "url.path") -> list[dict[str, Any]]:
    """Return the lines that contain a text."""
    return [json.loads(line) for line in server.log().splitlines() if text in line]


def test_queue_time_is_logged_and_counted() -> None:
    port = free_port()
    options = ("--logger-class=wsgifast.workers.JSONLogger",)
    with fast_worker(*options, env={"WSGIFAST_METRICS": f"127.0.0.1:{port}"}) as server:
        begun = f"t={time.time() - 100:.3f}"
        assert server.get("/small", headers=[("X-Request-Start", begun)]).status == 200
        assert server.get("/small?other").status == 200

        def metrics() -> str:
            with contextlib.suppress(OSError, EOFError), Connection(("127.0.0.1", port)) as sock:
                return sock.request("/metrics").body.decode()
            return ""

        wait_for(lambda: "wsgifast_queue_seconds_count 1.0" in metrics(), "it is measured")
        total = re.search(r"wsgifast_queue_seconds_sum (\S+)", metrics())
        assert total is not None
        assert 100 <= float(total[1]) < 200
        queued: dict[str | None, Any] = {
            line.get("url.query"): line.get("wsgifast.queue_us") for line in logged(server)
        }
        assert 100_000_000 <= queued[None] < 200_000_000
        assert queued["other"] is None


def test_fastworker_logs_json() -> None:
    with fast_worker("--logger-class=wsgifast.workers.JSONLogger") as server:
        server.get("/file?logged")
        server.get("/events/20-50000?logged")
        server.get("/nowhere?logged", headers=[("User-Agent", '"quoted"')])
        server.wait_for_log("url.path", 3)
        # In the order in which they ended
        lines = {line["url.path"]: line for line in logged(server)}
        file, events, missing = (lines[path] for path in ("/file", "/events/20-50000", "/nowhere"))
        workers = {child.pid for child in psutil.Process(server.pid).children()}
    assert {line["process.pid"] for line in lines.values()} == workers
    assert file["http.response.body.size"] == file["wsgifast.sendfile_bytes"] == FILE_BYTES
    assert file["wsgifast.wait_us"] == 0
    parts = sum(times(file))
    assert 0 < parts <= file["wsgifast.duration_us"]
    assert events["http.response.body.size"] == 20 * 50_000
    assert events["wsgifast.sendfile_bytes"] == 0
    assert missing["http.response.status_code"] == 404
    assert missing["user_agent.original"] == '"quoted"'


@pytest.mark.parametrize("worker", ["wsgifast.workers.FastWorker", "gthread"])
def test_json_log_names_client_of_proxy_on_unix_socket(worker: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    options = ("--logger-class=wsgifast.workers.JSONLogger", "--threads=2")
    command = gunicorn_command(f"-k{worker}", f"-bunix:{path}", *options, "tests.workers.app:app")
    with live_server(command, str(path)) as server:
        server.get("/nowhere", headers=[("X-Forwarded-For", "198.51.100.1, 203.0.113.9")])
        server.wait_for_log("/nowhere")
        (line,) = logged(server, "/nowhere")
    assert line["client.address"] == "203.0.113.9"


@pytest.mark.parametrize(
    ("worker", "app", "path"),
    [
        ("gthread", "tests.support.shapes:app", "/generator"),
        ("asgi", "examples.starlette_app:app", "/nowhere"),
    ],
)
def test_other_gunicorn_workers_log_json(worker: str, app: str, path: str) -> None:
    options = ("--logger-class=wsgifast.workers.JSONLogger", "--threads=2")
    command = gunicorn_command(f"-k{worker}", "-b127.0.0.1:{port}", *options, app)
    with live_server(command) as server:
        response = server.get(path)
        server.wait_for_log("url.path")
        (found,) = logged(server)
    assert found["http.response.status_code"] == response.status
    assert found["http.response.body.size"] == len(response.body)
    assert found["url.path"] == path
    assert found["wsgifast.duration_us"] >= 0
    assert found.get("wsgifast.chunks") == (STREAMED_CRUMBS if worker == "gthread" else None)
