"""FastWorker's options as attributes, in gunicorn's configuration, and in the environment."""

from __future__ import annotations

import contextlib
import math
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

from tests.support.calls import raising
from tests.support.http import Connection
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.serving import gunicorn_command, refused, rewrite_module
from tests.workers.stepped_worker import Log, MakeStepped, hello
from wsgifast.commands.bench.processes import HOST, is_listening
from wsgifast.errors import ConfigurationError
from wsgifast.server_options import OPTIONS
from wsgifast.workers import FastWorker, UnsupportedGunicorn
from wsgifast.workers import options as own_options
from wsgifast.workers import worker as worker_module
from wsgifast.workers.gunicorn_support import Settings
from wsgifast.workers.options import InvalidWorkerOption, check_attributes, configure, options

_FILE = "settings_of_gunicorn.py"
# The two ways to name the worker class in it.
_NAME = 'worker_class = "wsgifast.workers.FastWorker"\n'
_CLASS = "from wsgifast.workers import FastWorker\nclass worker_class(FastWorker): "

# Values


def configured(name: str, value: object) -> type[FastWorker]:
    """Return a subclass of FastWorker, like one in a configuration file."""
    made: type[FastWorker] = type("Configured", (FastWorker,), {name: value})
    return made


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        *(
            (
                f"{which}_timeout_s",
                (0, -1, "30", None, math.nan, True, 10**400),
                (1, 0.5, 1e300, math.inf),
            )
            for which in ("body", "send")
        ),
        *(
            (name, (-1, math.nan, 10**400), (1, 10**300, math.inf))
            for name in ("max_rss_bytes", "max_lifetime_s")
        ),
        *(
            (f"{which}_bytes", (-1, 1.0, "1", None, True), (0, 1, 2**40))
            for which in ("body_limit", "bodies_on_disk", "responses_on_disk")
        ),
        ("buffer_bodies", (1, "no", None), (True, False)),
    ],
)
def test_option_values_are_checked(
    name: str, wrong: tuple[Any, ...], right: tuple[Any, ...]
) -> None:
    for value in right:
        configured(name, value).check_config(Config(), Log())
    for value in wrong:
        with pytest.raises(ConfigurationError, match=rf"FastWorker\.{name}={value!r}: expected"):
            configured(name, value).check_config(Config(), Log())


@pytest.mark.parametrize("name", ["keepalive", "graceful_timeout"])
def test_gunicorn_times_beyond_the_clock_are_refused(name: str) -> None:
    cfg = Config()
    for value in (10**400, 10**10):
        cfg.set(name, value)
        with pytest.raises(ConfigurationError, match=rf"^{name}=10+: expected seconds, 92"):
            FastWorker.check_config(cfg, Log())
    cfg.set(name, 10**9)
    FastWorker.check_config(cfg, Log())


def test_http2_settings_are_capped_at_32_bits(make_stepped: MakeStepped) -> None:
    most = make_stepped(
        hello,
        http_protocols="h2,h1",
        http2_max_header_list_size=2**40,
        http2_max_concurrent_streams=2**40,
    ).server.shared.options
    assert most.http2_header_list_bytes == most.http2_streams == 2**32 - 1


def test_threads_below_one_are_refused() -> None:
    cfg, log = Config(), Log()
    cfg.set("threads", 1)
    cfg.set("worker_connections", 1)
    FastWorker.check_config(cfg, log)
    assert log.says("No keepalived connections can be handled")
    cfg.set("threads", 0)
    with pytest.raises(ConfigurationError, match="threads=0: FastWorker needs 1 or more"):
        FastWorker.check_config(cfg, log)


def test_installed_gunicorn_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker_module, "check_gunicorn", raising(UnsupportedGunicorn, "another one")
    )
    with pytest.raises(UnsupportedGunicorn, match="another one"):
        FastWorker.check_config(Config(), Log())


# Names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("body_limit", "body_limit_bytes"),
        ("body_limit_byte", "body_limit_bytes"),
        ("send_timeout", "send_timeout_s"),
        ("buffered_bodies", "buffer_bodies"),
        ("responses_on_disk", "responses_on_disk_bytes"),
        ("max_rss", "max_rss_bytes"),
    ],
)
def test_misspelt_attribute_error_names_the_right_one(name: str, meant: str) -> None:
    worker = type("Worker", (FastWorker,), {name: 1})
    child = type("Child", (worker,), {"body_limit_bytes": 5})
    for each in (worker, child):
        with pytest.raises(InvalidWorkerOption) as caught:
            check_attributes(each, FastWorker)
        sentence = str(caught.value)
        assert sentence.startswith(f"FastWorker.{name}=1: ")
        assert f"Did you mean {meant}?" in sentence
        assert "body_limit_bytes, bodies_on_disk_bytes, head_limit_bytes" in sentence


def test_subclass_attributes_of_other_names_are_fine() -> None:
    class Mixin:
        body_limit = 5

    class Worker(Mixin, FastWorker):
        body_limit_bytes = 5
        send_timeout_s = 0.5
        memory_limit_bytes = 2**30
        db_timeout_s = 3
        health_path = "/health"
        timeout = 5
        send_timeouts: tuple[int, ...] = ()

        def send_timeout(self) -> None:
            """An attribute of the subclass itself."""

    check_attributes(Worker, FastWorker)


# In gunicorn's configuration


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return gunicorn's configuration file, as the module that gunicorn makes of it."""
    module = ModuleType("__config__")
    monkeypatch.setitem(sys.modules, "__config__", module)
    monkeypatch.setattr(own_options, "_last_valid", {})
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


def test_options_in_configuration_apply_to_subclass(names: Any) -> None:
    worker: Any = type("Worker", (FastWorker,), {"body_timeout_s": 3})
    names.body_limit_bytes = 5
    configure(worker, FastWorker)
    assert (worker.body_limit_bytes, worker.body_timeout_s) == (5, 3)
    assert FastWorker.body_limit_bytes != 5
    del names.body_limit_bytes
    configure(worker, FastWorker)
    assert worker.body_limit_bytes == FastWorker.body_limit_bytes


def test_other_names_in_configuration_are_ignored(names: Any) -> None:
    names.metrics, names.check, names.timeout = True, 1, 30
    before = {name: getattr(FastWorker, name) for name in OPTIONS}
    configure(FastWorker, FastWorker)
    assert before == {name: getattr(FastWorker, name) for name in OPTIONS}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("body_limit", 5, "FastWorker.body_limit=5: there is no such attribute. Did you mean bo"),
        ("metric_bind", "a:1", "Did you mean metrics_bind?"),
        ("body_limit_bytes", -1, "FastWorker.body_limit_bytes=-1: expected bytes, 0 or more"),
        (
            "metrics_bind",
            "nowhere",
            "FastWorker.metrics_bind='nowhere': expected a host and a port",
        ),
        # gunicorn's `bind` has these forms, too.
        ("metrics_bind", ["a:1"], "FastWorker.metrics_bind=['a:1']: expected a host and a port"),
        ("body_timeout_s", (30,), "FastWorker.body_timeout_s=(30,): expected seconds above 0"),
        ("max_rss_bytes", Decimal("NaN"), "expected bytes above 0"),
        ("check_host", {"a"}, "FastWorker.check_host={'a'}: expected True or False"),
        ("check_host", math, "FastWorker.check_host=<module 'math'"),
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


def test_option_in_configuration_and_class_is_refused(names: Any) -> None:
    worker: Any = type("Mine", (FastWorker,), {"body_limit_bytes": 7})
    names.body_limit_bytes = 5
    with pytest.raises(InvalidWorkerOption) as caught:
        configure(worker, FastWorker)
    assert str(caught.value) == (
        "body_limit_bytes=5 in gunicorn's configuration: Mine.body_limit_bytes is also set, to 7. "
        "Remove one of the two"
    )


def test_wrong_option_at_reload_changes_no_option(
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
        assert "body_limit_bytes=-1: expected bytes, 0 or more. The options have not" in caplog.text
    names.body_limit_bytes = 6
    configure(FastWorker, FastWorker)
    assert (FastWorker.body_limit_bytes, FastWorker.bodies_on_disk_bytes) == (6, 3)


def configured_by(kind: str, folder: Path, configuration: str) -> tuple[str, dict[str, str]]:
    """Return gunicorn's setting `config`, and the environment for it.

    :param kind: "file" or "module".
    """
    path = folder / _FILE
    path.write_text(configuration)
    config = str(path) if kind == "file" else f"python:{path.stem}"
    return config, {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@contextlib.contextmanager
def configured_server(
    kind: str, folder: Path, configuration: str
) -> Iterator[tuple[LiveServer, Path]]:
    config, env = configured_by(kind, folder, configuration)
    address = ("127.0.0.1", free_port())
    bind = f"127.0.0.1:{address[1]}"
    argv = gunicorn_command("-c", config, "-b", bind, "tests.workers.app:app")
    with live_server(argv, address, env=env) as server:
        yield server, folder / _FILE


@pytest.mark.parametrize("kind", ["file", "module"])
def test_reload_applies_options_of_configuration_file(kind: str, tmp_path: Path) -> None:
    with configured_server(kind, tmp_path, f"{_NAME}body_limit_bytes = 100\n") as (server, path):

        def status() -> int:
            with Connection(server.address) as connection:
                return connection.request("/echo", method="POST", body=b"a" * 200).status

        assert status() == 413
        rewrite_module(path, f"{_NAME}body_limit_bytes = 3000\n")
        server.process.send_signal(signal.SIGHUP)
        if kind == "module":  # gunicorn imports it once
            server.wait_for_log("Worker exiting")
            assert status() == 413
            return
        wait_for(lambda: status() == 200, lambda: f"the new limit holds\n{server.log()}")
        for wrong in ("body_limit_bytes='many'", "metrics_bind='nowhere'"):
            rewrite_module(path, f"{_NAME}{wrong}\n")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log(f"FastWorker.{wrong}: expected")
            assert status() == 200
        assert server.log().count("The options have not changed") == 2


@pytest.mark.parametrize(
    ("kind", "configuration", "sentence"),
    [
        ("file", f"{_CLASS}body_timeout_s = -1", "body_timeout_s=-1: expected seconds above 0"),
        ("module", f"{_NAME}body_limit_bytes = 'many'", "body_limit_bytes='many': expected bytes"),
        (
            "module",
            f"{_NAME}metrics_bind = '127.0.0.1:9'\npreload_app = True",
            "with preload_app it must be in a file, or in the environment",
        ),
    ],
)
def test_wrong_option_is_refused_at_start(
    kind: str, configuration: str, sentence: str, tmp_path: Path
) -> None:
    config, env = configured_by(kind, tmp_path, configuration)
    assert sentence in refused("-c", config, env=env)


def test_subclass_metrics_work_with_preload_app(tmp_path: Path) -> None:
    port = free_port()
    text = f"{_CLASS}metrics_bind = '127.0.0.1:{port}'\npreload_app = True\n"
    with configured_server("module", tmp_path, text):
        wait_for(lambda: is_listening((HOST, port)), "the metrics are served")


def test_environment_overrides_configuration(monkeypatch: pytest.MonkeyPatch, names: Any) -> None:
    names.body_limit_bytes = 5
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "7")
    monkeypatch.setenv("WSGIFAST_HEAD_TIMEOUT_S", "2.5")
    configure(FastWorker, FastWorker)
    found = options(FastWorker, Settings(Config()))
    assert (found.body_limit_bytes, found.head_timeout_s) == (7, 2.5)
    assert found.body_timeout_s == FastWorker.body_timeout_s
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "1e3")
    monkeypatch.setattr(own_options, "_last_valid", {})
    with pytest.raises(InvalidWorkerOption, match="WSGIFAST_BODY_LIMIT_BYTES='1e3': expected byt"):
        configure(FastWorker, FastWorker)
    monkeypatch.delenv("WSGIFAST_BODY_LIMIT_BYTES")
