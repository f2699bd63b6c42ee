"""Access log lines that are written directly equal the lines of gunicorn's logger."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import queue
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from logging.handlers import QueueHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import AccessLogFormat, Config
from gunicorn.glogging import Logger, SafeAtoms
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.servers import wait_for
from tests.workers.serving import fast_worker
from wsgifast.bodies.access_log import PATTERN, TRACE_ID, sent_text
from wsgifast.workers import JSONLogger
from wsgifast.workers.access_line import AccessLog

ENVIRON = {
    "REQUEST_METHOD": "GET", "RAW_URI": "/a?b", "PATH_INFO": "/a", "QUERY_STRING": "b",
    "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "192.0.2.1", "wsgi.url_scheme": "http",
    "wsgifast.app_us": 5,
}  # fmt: skip
TEXT = st.text(st.sampled_from('ab "\\%é:'), max_size=6)
NAMES = st.sampled_from(["x-id", "X-Id", "cookie", "host", "Host"])
FIELDS = [
    *"hlutrsmUqHbBfaTDMLp", "{x-id}i", "{X-ID}i", "{x-id}o", "{REMOTE_ADDR}e", "{x_id}e",
    "{wsgi.url_scheme}e", "{wsgifast.app_us}e", "{missing}e", "{missing}x", "nothing", "",
]  # fmt: skip
PARTS = st.one_of(
    st.sampled_from(FIELDS).map(lambda name: f"%({name})s"),
    st.sampled_from(
        ["%%", " ", '"', "é", "{", "}", "\\", "%(s)5s", "%(h)-20s", "%(r).4s", "%(p)r"]
    ),
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[Any, Path]]]:
    """Make gunicorn's logger, or ours, with an access log in a file."""
    path = tmp_path_factory.mktemp("log") / "access.log"
    loggers = [logging.getLogger(f"gunicorn.{name}") for name in ("access", "error")]
    before = [(each, list(each.handlers), each.propagate) for each in loggers]

    def close() -> None:
        for each in loggers:
            for handler in each.handlers:
                handler.close()

    def make(of: type[Logger] = Logger, text: str = AccessLogFormat.default) -> tuple[Any, Path]:
        path.write_text("")
        cfg = Config()
        cfg.set("accesslog", str(path))
        cfg.set("access_log_format", text)
        close()
        for each in loggers:
            each.handlers, each.propagate = [], False
        return of(cfg), path

    yield make
    close()
    for each, handlers, propagate in before:
        each.handlers, each.propagate = handlers, propagate


def lines_of(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    path.write_text("")
    return lines


def response(**changes: Any) -> Any:
    return SimpleNamespace(**{"status": "200 OK", "sent": 5, "headers": [("X-Id", "7")], **changes})


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(PARTS, max_size=6).map("".join),
    changes=st.dictionaries(
        st.sampled_from([*ENVIRON, "HTTP_REFERER", "HTTP_USER_AGENT", "HTTP_X_ID", "x_id", "X_ID"]),
        TEXT,
    ),
    authorization=st.sampled_from([None, "Basic eDp5", "Basic !", "basic", "Bearer x"]),
    headers=st.lists(st.tuples(NAMES, TEXT), max_size=3),
    status=st.sampled_from(["200 OK", "404 Not Found", "299 "]),
    sent=st.integers(0, 10**12),
    seconds=st.floats(0, 200_000),
)
def test_direct_line_is_gunicorns(
    own: Any, text: str, changes: Any, authorization: Any, headers: Any, status: str, sent: int,
    seconds: float,
) -> None:  # fmt: skip
    log, path = own(text=text)
    environ = {**ENVIRON, **changes}
    if authorization is not None:
        environ["HTTP_AUTHORIZATION"] = authorization
    resp = response(status=status, sent=sent, headers=headers)
    req = SimpleNamespace(headers=headers)
    while True:
        before = log.now()
        log.access(resp, req, environ, timedelta(seconds=seconds))
        AccessLog(log).write(resp, req, environ, seconds)
        written = lines_of(path)
        if log.now() == before:
            break
    assert len(written) in (0, 2)
    assert written[:1] == written[1:]


@pytest.mark.parametrize("of", [Logger, JSONLogger])
def test_line_bypasses_loggers_access(
    own: Any, of: type[Logger], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = own(of)
    access_log = AccessLog(log)
    monkeypatch.setattr(of, "access", None)
    access_log.write(response(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    assert len(lines_of(path)) == 1


VALUES: dict[str, list[Any]] = {
    "RAW_URI": ["/", "/a", "/a?b=c", "/caf\xc3\xa9?", "?", "*", "", '/"\\\x7f', "/" + "a" * 300],
    "REMOTE_ADDR": ["192.0.2.1", "127.0.0.1", "", "::1"],
    "HTTP_X_FORWARDED_FOR": ["", "198.51.100.1", "198.51.100.1, 127.0.0.1", "unknown"],
    "HTTP_AUTHORIZATION": ["", "Basic YTpi", "Basic !", "Bearer x"],
    "HTTP_USER_AGENT": ["", "agent", "\xe9", '"'],
    "HTTP_REFERER": ["", "http://localhost/", "caf\xc3\xa9"],
    "SERVER_PROTOCOL": ["HTTP/1.0", "HTTP/2.0"],
    "wsgifast.pattern": ["", "/items/<id>", None, 7],
    "wsgifast.sent_as": ["", "list", "file"],
    "wsgifast.sendfile_bytes": [0, 5],
    "wsgifast.wait_us": [0, True, 1.5],
    "wsgifast.request_id": ["", "abc"],
    "wsgifast.app_us": [0, 12, "x"],
    "wsgifast.send_us": [3],
    "wsgifast.chunks": [0, 20],
    "wsgifast.coding": ["", "gzip"],
    "wsgifast.uncoded_bytes": [0, 1000],
    "wsgifast.coded_bytes": [0, 10],
    "wsgifast.queue_us": [0, 5],
    "wsgifast.outcome": ["sent", "cut off"],
    "wsgifast.trace_id": ["0af7651916cd43dd8448eb211c80319c"],
}  # fmt: skip
# Keys of the environ that a line has under the same names.
LOGGED_NAMES = {name for name in VALUES if name.startswith("wsgifast.")} - {PATTERN, TRACE_ID}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in VALUES.items()}),
    st.sampled_from(["200 OK", "404", "304 Not Modified"]),
    st.sampled_from([0, 1024]),
    st.floats(0, 4000),
)
def test_json_line_has_the_values_of_the_request(
    own: Any, given: dict[str, Any], status: str, sent: int, seconds: float
) -> None:
    log, _ = own(JSONLogger)
    environ = {**ENVIRON, **given}
    resp = SimpleNamespace(status=status, sent=sent, headers=[])
    line = log.line(resp, None, environ, seconds)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    expected = {name: environ[name] for name in environ if name in LOGGED_NAMES}
    expected |= {
        "http.request.method": "GET",
        "http.response.status_code": int(status[:3]),
        "http.route": environ.get(PATTERN),
        "network.protocol.version": environ["SERVER_PROTOCOL"].removeprefix("HTTP/"),
        "trace_id": environ.get(TRACE_ID),
        "url.scheme": "http",
        "wsgifast.duration_us": round(seconds * 1e6),
    }
    for name, value in expected.items():
        assert found.get(name) == (None if value == "" else value), name
    assert not any(value in ("", None, [], [""]) for value in found.values())
    target = found.get("url.path", "") + "?" * ("url.query" in found) + found.get("url.query", "")
    assert target == sent_text(environ["RAW_URI"]).removesuffix("?")
    del found["time"]
    taken = timedelta(seconds=seconds)
    fields = log.fields(resp, None, environ, taken)
    assert {**fields, "wsgifast.duration_us": found["wsgifast.duration_us"]} == found


class OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]
    pass


class OwnFormatter(logging.Formatter):
    pass


def replace_function(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a function like Sentry's logging integration."""
    old = logging.Logger.callHandlers
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: old(self, record))


def replace_factory(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the factory like OpenTelemetry's logging instrumentation."""
    old = logging.getLogRecordFactory()
    monkeypatch.setattr(logging, "_logRecordFactory", lambda *args, **kwargs: old(*args, **kwargs))


SEEN: dict[str, Callable[[Any, pytest.MonkeyPatch], object]] = {
    "handler": lambda log, patch: log.access_log.addHandler(logging.NullHandler()),
    "handler's class": lambda log, patch: patch.setattr(
        log.access_log, "handlers", [OwnHandler(sys.stderr)]
    ),
    "filter": lambda log, patch: patch.setattr(log.access_log, "filters", [lambda record: True]),
    "handler's filter": lambda log, patch: log.access_log.handlers[0].addFilter(lambda _: True),
    "formatter": lambda log, patch: log.access_log.handlers[0].setFormatter(OwnFormatter()),
    "format": lambda log, patch: log.access_log.handlers[0].setFormatter(
        logging.Formatter("> %(message)s")
    ),
    "propagation": lambda log, patch: patch.setattr(log.access_log, "propagate", True),
    "level": lambda log, patch: patch.setattr(log.access_log, "level", logging.WARNING),
    "handler's level": lambda log, patch: log.access_log.handlers[0].setLevel(logging.WARNING),
    "disabled": lambda log, patch: patch.setattr(log.access_log, "disabled", True),
    "function": replace_function,
    "factory": replace_factory,
    "emit": lambda log, patch: patch.setattr(
        logging.StreamHandler, "emit", lambda self, record: self.stream.write("own\n")
    ),
    "access()": lambda log, patch: patch.setattr(log, "access", lambda *args: None),
}


@pytest.mark.parametrize("seen", SEEN)
def test_line_goes_through_logging_if_seen(
    own: Any, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = own()
    access_log = AccessLog(log)
    calls: list[int] = []
    monkeypatch.setattr(Logger, "access", lambda *args: calls.append(1))
    args = response(), SimpleNamespace(headers=[]), ENVIRON, 0.5
    access_log.write(*args)
    assert calls == []
    SEEN[seen](log, monkeypatch)
    log.access_log._cache.clear()  # like setLevel()
    if seen == "access()":
        monkeypatch.setattr(log, "access", lambda *args: calls.append(1))
    access_log.write(*args)
    assert calls == [1]


class NotingStream(io.StringIO):
    """Record which function writes each line."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str] = []

    def write(self, text: str) -> int:
        self.writers.append(sys._getframe(1).f_code.co_name)
        return super().write(text)


def writers_of_lines(log: Any) -> list[str]:
    """Return the functions that write two lines of a log: `write` skips logging."""
    stream = NotingStream()
    handler = log.access_log.handlers[0]
    handler.close()
    handler.setStream(stream)
    access_log = AccessLog(log)
    for _ in range(2):
        access_log.write(response(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    return stream.writers


REPLACED = [
    (Logger, "access"), (Logger, "atoms"), (Logger, "now"), (SafeAtoms, "__getitem__"),
    (logging.LogRecord, "getMessage"), (logging.Formatter, "formatMessage"),
    (logging.Filterer, "filter"), (logging.PercentStyle, "format"),
    (logging.StreamHandler, "flush"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "name"), REPLACED, ids=[f"{of.__name__}.{name}" for of, name in REPLACED]
)
def test_line_does_not_skip_replaced_method(
    own: Any, of: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = own()
    assert writers_of_lines(log) == ["write", "write"]
    real = getattr(of, name)
    monkeypatch.setattr(of, name, lambda *args: real(*args))
    assert writers_of_lines(log) == ["emit", "emit"]


@pytest.mark.parametrize("part", ["logger", "handler", "formatter"])
def test_line_after_a_method_is_set_uses_it(
    own: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = own()
    handler = log.access_log.handlers[0]
    handler.close()
    handler.setStream(NotingStream())
    calls: list[int] = []
    owner, name = {
        "logger": (log.access_log, "handle"),
        "handler": (handler, "emit"),
        "formatter": (handler.formatter, "format"),
    }[part]
    access_log = AccessLog(log)
    args = response(), SimpleNamespace(headers=[]), ENVIRON, 0.5
    access_log.write(*args)
    monkeypatch.setattr(owner, name, lambda record: calls.append(1))
    access_log.write(*args)
    assert calls == [1]


def test_line_survives_if_its_file_closes_meanwhile(own: Any, tmp_path: Path) -> None:
    """Act like a new logging configuration in another thread."""
    log, _ = own()
    log.access_log.handlers[0].close()
    handler = logging.FileHandler(tmp_path / "log")
    handler.setFormatter(logging.Formatter(Logger.access_fmt))
    log.access_log.handlers = [handler]

    class Closing:
        sent = 1
        headers = ()

        @property
        def status(self) -> str:
            handler.close()
            return "200 OK"

    AccessLog(log).write(Closing(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    handler.close()


def test_lines_of_handler_without_stream_reach_it(own: Any) -> None:
    log, _ = own()
    records: queue.Queue[Any] = queue.Queue()
    log.access_log.handlers[0].close()
    log.access_log.handlers = [QueueHandler(records)]
    access_log = AccessLog(log)
    for _ in range(3):
        access_log.write(response(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    assert records.qsize() == 3


def test_lines_reach_syslog() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(30)
        to = f"--log-syslog-to=udp://127.0.0.1:{syslog.getsockname()[1]}"
        with fast_worker("--log-syslog", to, "--access-logformat=line %(U)s") as server:
            paths = [f"/{number}" for number in range(3)]
            for path in paths:
                server.get(path)
            lines: list[str] = []
            while len(lines) < len(paths):
                text = syslog.recv(65536).decode()
                if "line /" in text:
                    lines.append(text.rpartition("line ")[2].rstrip("\0"))
            assert sorted(lines) == paths


def test_line_after_reopening_is_in_new_file(own: Any) -> None:
    log, path = own()
    access_log = AccessLog(log)
    args = response(), SimpleNamespace(headers=[]), ENVIRON, 0.5
    access_log.write(*args)
    moved = path.rename(path.with_suffix(".1"))
    log.reopen_files()
    access_log.write(*args)
    assert [len(lines_of(each)) for each in (moved, path)] == [1, 1]


def test_line_that_stream_refuses_is_reported(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log, _ = own()
    handler = log.access_log.handlers[0]
    full = open("/dev/full", "w")
    file = handler.setStream(full)
    AccessLog(log).write(response(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    handler.stream = file
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert "No space left on device" in capsys.readouterr().err


def test_line_has_time_of_its_second(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log, path = own(text="%(t)s")
    access_log = AccessLog(log)
    seconds = [0, 1, 1, 3600]
    for second in seconds:
        monkeypatch.setattr(time, "time", lambda second=second: 1e9 + second)
        access_log.write(response(), SimpleNamespace(headers=[]), ENVIRON, 0.5)
    assert lines_of(path) == [
        time.strftime("[%d/%b/%Y:%H:%M:%S %z]", time.localtime(1e9 + second)) for second in seconds
    ]


def test_full_log_pipe_delays_but_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    request = b"GET /%b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % (b"x" * 1000)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"))
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        server = stack.enter_context(
            fast_worker(f"--access-logfile={path}", "--access-logformat=%(U)s", "--threads=2")
        )
        assert isinstance(server.address, tuple)
        clients = [
            stack.enter_context(socket.create_connection(server.address, timeout=30))
            for _ in range(12)
        ]
        for client in clients:
            client.sendall(request)
        lines: list[bytes] = []

        def are_logged() -> bool:
            lines.extend(reader.readlines())
            return b"".join(lines).count(b"\n") == len(clients)

        wait_for(are_logged, "all requests are logged")
        for client in clients:
            assert client.recv(9) == b"HTTP/1.1 "
