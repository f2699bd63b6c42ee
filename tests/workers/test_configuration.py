"""FastWorker's options as names in gunicorn's configuration."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gunicorn.config import Config

from tests.support import forkserver
from tests.support.http import Connection
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.serving import gunicorn_command, rewrite_module
from tests.workers.test_metrics import is_listening
from wsgifast.workers import FastWorker
from wsgifast.workers import options as configuration
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.options import InvalidWorkerOption, configure, options

_WORKER = 'worker_class = "wsgifast.workers.FastWorker"\n'


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """gunicorn's configuration file, as the module that gunicorn makes of it."""
    module = ModuleType("__config__")
    monkeypatch.setitem(sys.modules, "__config__", module)
    monkeypatch.setattr(configuration, "_in_use", {})
    yield module
    vars(module).clear()
    configure(FastWorker, FastWorker)


def test_options_in_configuration_apply_until_removed(names: Any) -> None:
    before = FastWorker.body_limit_bytes, FastWorker.metrics_bind
    names.body_limit_bytes, names.metrics_bind = 5, "127.0.0.1:9100"
    configure(FastWorker, FastWorker)
    configure(FastWorker, FastWorker)
    assert (FastWorker.body_limit_bytes, FastWorker.metrics_bind) == (5, "127.0.0.1:9100")
    del names.body_limit_bytes, names.metrics_bind
    configure(FastWorker, FastWorker)
    assert (FastWorker.body_limit_bytes, FastWorker.metrics_bind) == before


def test_options_in_configuration_apply_to_subclass_only(names: Any) -> None:
    worker: Any = type("Worker", (FastWorker,), {"body_timeout_s": 3})
    names.body_limit_bytes = 5
    configure(worker, FastWorker)
    assert (worker.body_limit_bytes, worker.body_timeout_s) == (5, 3)
    assert FastWorker.body_limit_bytes != 5
    del names.body_limit_bytes
    configure(worker, FastWorker)
    assert worker.body_limit_bytes == FastWorker.body_limit_bytes


def test_other_names_in_configuration_are_ignored(names: Any) -> None:
    names.check_host = ModuleType("check_host")
    names.buffer_bodies = lambda: None
    names.metrics, names.check, names.timeout = True, 1, 30
    configure(FastWorker, FastWorker)
    assert FastWorker.check_host is FastWorker.buffer_bodies is True


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("body_limit", 5, "FastWorker.body_limit=5: there is no such attribute; is body_limit_b"),
        ("metric_bind", "a:1", "is metrics_bind meant?"),
        ("body_limit_bytes", -1, "FastWorker.body_limit_bytes=-1: expected bytes, 0 or more"),
        (
            "metrics_bind",
            "nowhere",
            "FastWorker.metrics_bind='nowhere': expected a host and a port",
        ),
        # As gunicorn's `bind` may be.
        ("metrics_bind", ["a:1"], "FastWorker.metrics_bind=['a:1']: expected a host and a port"),
        ("body_timeout_s", (30,), "FastWorker.body_timeout_s=(30,): expected seconds above 0"),
        ("max_rss_bytes", Decimal("NaN"), "expected bytes above 0"),
        ("check_host", {"a"}, "FastWorker.check_host={'a'}: expected True or False"),
    ],
)
def test_wrong_option_in_configuration_is_refused(
    names: Any, name: str, value: object, sentence: str
) -> None:
    setattr(names, name, value)
    with pytest.raises(InvalidWorkerOption) as caught:
        configure(FastWorker, FastWorker)
    assert sentence in str(caught.value)
    assert getattr(FastWorker, name, None) != value


def test_option_in_configuration_and_subclass_is_refused(names: Any) -> None:
    worker: Any = type("Mine", (FastWorker,), {"body_limit_bytes": 7})
    names.body_limit_bytes = 5
    with pytest.raises(InvalidWorkerOption) as caught:
        configure(worker, FastWorker)
    assert str(caught.value) == (
        "body_limit_bytes=5 in gunicorn's configuration: Mine.body_limit_bytes is 7, leave out one "
        "of the two"
    )


def test_wrong_option_at_reload_leaves_options_unchanged(
    names: Any, caplog: pytest.LogCaptureFixture
) -> None:
    names.body_limit_bytes = 5
    configure(FastWorker, FastWorker)
    names.body_limit_bytes, names.bodies_on_disk_bytes = -1, 3
    fresh: Any = type("Mine", (FastWorker,), {})
    worker: Any
    for worker in (FastWorker, fresh):
        caplog.clear()
        configure(worker, FastWorker)
        assert worker.body_limit_bytes == 5
        assert worker.bodies_on_disk_bytes != 3
        assert "body_limit_bytes=-1: expected bytes, 0 or more. The options stay" in caplog.text
    names.body_limit_bytes = 6
    configure(FastWorker, FastWorker)
    assert (FastWorker.body_limit_bytes, FastWorker.bodies_on_disk_bytes) == (6, 3)


def _answers(server: LiveServer) -> int:
    with Connection(server.address) as connection:
        return connection.request("/echo", method="POST", body=b"a" * 200).status


@pytest.mark.parametrize("kind", ["file", "module"])
def test_reload_applies_options_of_configuration_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "settings_of_gunicorn.py"
    path.write_text(_WORKER + "body_limit_bytes = 100\n")
    config = str(path) if kind == "file" else f"python:{path.stem}"
    address = ("127.0.0.1", free_port())
    argv = gunicorn_command("-c", config, "-b", f"127.0.0.1:{address[1]}", "tests.workers.app:app")
    environ = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with live_server(argv, address, env=environ) as server:
        assert _answers(server) == 413
        rewrite_module(path, _WORKER + "body_limit_bytes = 3000\n")
        server.process.send_signal(signal.SIGHUP)
        if kind == "module":  # gunicorn imports it once
            server.wait_for_log("Worker exiting")
            assert _answers(server) == 413
            return
        wait_for(lambda: _answers(server) == 200, lambda: f"the new limit holds\n{server.log()}")
        for wrong in ("body_limit_bytes='many'", "metrics_bind='nowhere'"):
            rewrite_module(path, f"{_WORKER}{wrong}\n")
            server.process.send_signal(signal.SIGHUP)
            _wait_for_line(server, f"FastWorker.{wrong}: expected")
            assert _answers(server) == 200
        assert server.log().count("The options stay as they were") == 2


def _wait_for_line(server: LiveServer, text: str) -> None:
    server.wait_for_log(text)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("body_limit_bytes = 'many'", "FastWorker.body_limit_bytes='many': expected bytes"),
        (
            "metrics_bind = '127.0.0.1:9'\npreload_app = True",
            "with preload_app it must be in a file, or in the environment",
        ),
    ],
)
def test_wrong_option_in_configuration_module_is_refused_at_start(
    settings: str, sentence: str, tmp_path: Path
) -> None:
    Path(tmp_path, "settings_of_gunicorn.py").write_text(f"{_WORKER}{settings}\n")
    argv = gunicorn_command(
        "-b", "127.0.0.1:0", "-c", "python:settings_of_gunicorn", "tests.workers.app:app"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = forkserver.run(argv, cwd=ROOT, env=environ, timeout=60)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_metrics_of_subclass_in_module_work_with_preload_app(tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    Path(tmp_path, "settings_of_gunicorn.py").write_text(
        "from wsgifast.workers import FastWorker\n"
        f"class worker_class(FastWorker): metrics_bind = '127.0.0.1:{metrics}'\n"
        "preload_app = True\n"
    )
    argv = gunicorn_command(
        "-b", f"127.0.0.1:{port}", "-c", "python:settings_of_gunicorn", "tests.workers.app:app"
    )
    environ = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with live_server(argv, ("127.0.0.1", port), env=environ):
        wait_for(lambda: is_listening(metrics), "the metrics are served")


def test_environment_overrides_configuration(monkeypatch: pytest.MonkeyPatch, names: Any) -> None:
    names.body_limit_bytes = 5
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "7")
    monkeypatch.setenv("WSGIFAST_HEAD_TIMEOUT_S", "2.5")
    configure(FastWorker, FastWorker)
    found = options(FastWorker, Settings(Config()))
    assert (found.body_limit_bytes, found.head_timeout_s) == (7, 2.5)
    assert found.body_timeout_s == FastWorker.body_timeout_s
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "1e3")
    monkeypatch.setattr(configuration, "_in_use", {})
    with pytest.raises(InvalidWorkerOption, match="WSGIFAST_BODY_LIMIT_BYTES='1e3': expected byt"):
        configure(FastWorker, FastWorker)
    monkeypatch.delenv("WSGIFAST_BODY_LIMIT_BYTES")
