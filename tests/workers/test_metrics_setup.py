"""Settings that the arbiter checks: the address, the directory, and invalid values."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from wsgifast.metrics import setup
from wsgifast.metrics.health import name_of_process
from wsgifast.metrics.setup import Export
from wsgifast.workers import FastWorker
from wsgifast.workers.metrics import check_metrics, prepare_metrics, wants_metrics
from wsgifast.workers.options import InvalidWorkerOption

CFG = SimpleNamespace(uid=os.geteuid(), gid=os.getegid())
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WSGIFAST_METRICS", DIRECTORY, "GUNICORN_PID"):
        monkeypatch.setenv(name, "")  # so that the environment is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(setup, "_chosen", None)
    monkeypatch.setattr(setup, "_memory_folder", lambda: str(tmp_path))
    monkeypatch.setattr(setup, "ADDRESS_PATIENCE_S", 0.0)


def worker(bind: object) -> type[FastWorker]:
    return type("Worker", (FastWorker,), {"metrics_bind": bind})


def export_of(worker_class: type[FastWorker]) -> Export:
    wanted = wants_metrics(worker_class)
    assert wanted is not None
    export = setup._export_of(wanted, os.getpid())
    export.announce()
    return export


def refused(bind: object) -> str:
    with pytest.raises(InvalidWorkerOption) as caught:
        check_metrics(worker(bind), CFG)
    return str(caught.value)


def test_no_directory_is_made_without_metrics(tmp_path: Path) -> None:
    prepare_metrics(FastWorker)
    check_metrics(FastWorker, CFG)
    assert wants_metrics(FastWorker) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bind", ["localhost", "127.0.0.1:", "127.0.0.1:0", "::1:80", "a:b:80", 80])
def test_wrong_metrics_address_is_refused(bind: object) -> None:
    assert refused(bind) == (
        f"FastWorker.metrics_bind={bind!r}: expected a host and a port such as '127.0.0.1:9100' "
        "or '[::1]:9100'"
    )


def test_taken_metrics_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = f"FastWorker.metrics_bind={address!r}: Address already in use"
        assert refused(address) == said
        # The server that is being replaced still has it.
        monkeypatch.setenv("GUNICORN_PID", "1")
        check_metrics(worker(address), CFG)
    monkeypatch.delenv("GUNICORN_PID")
    check_metrics(worker(address), CFG)


def test_metrics_without_prometheus_client_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    monkeypatch.setenv("WSGIFAST_METRICS", "127.0.0.1:9100")
    prepare_metrics(FastWorker)
    assert not list(tmp_path.iterdir())
    assert refused(None) == (
        "WSGIFAST_METRICS needs prometheus_client, which is not installed: "
        "pip install 'wsgifast[prometheus]'"
    )


def test_environment_overrides_metrics_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSGIFAST_METRICS", "nonsense")
    assert refused("127.0.0.1:9100").startswith("WSGIFAST_METRICS='nonsense': ")


def test_metrics_directory_is_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        prepare_metrics(worker("9100"))
    (made,) = tmp_path.iterdir()
    assert os.environ[DIRECTORY] == str(made)
    export = export_of(worker("9100"))
    assert (made / "address").read_text() == export.address == "127.0.0.1:9100"
    assert export.own
    elsewhere = export_of(worker("[::1]:9100"))
    assert elsewhere.address == "[::1]:9100"


def test_given_metrics_directory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    given.mkdir()
    monkeypatch.setenv(DIRECTORY, str(given))
    prepare_metrics(worker("9100"))
    export = export_of(worker("9100"))
    assert (export.directory, export.own) == (str(given), False)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_metrics_directory_of_previous_server_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reload and USR2, it is in the environment of the next arbiter."""
    before = tmp_path / f"wsgifast-metrics-{name_of_process(os.getppid())}"
    before.mkdir()
    monkeypatch.setenv(DIRECTORY, str(before))
    prepare_metrics(worker("9100"))
    assert before.is_dir()
    assert os.environ[DIRECTORY] != str(before)


def test_metrics_directories_of_killed_servers_go(tmp_path: Path) -> None:
    gone = tmp_path / "wsgifast-metrics-wsgifast-1-1"
    daemons = tmp_path / "wsgifast-metrics-wsgifast-1-2"
    exported = tmp_path / "wsgifast-metrics-wsgifast-1-3"
    others = tmp_path / "others"
    unreadable = tmp_path / "wsgifast-metrics-wsgifast-1-4"  # like the directory of another user
    unreadable.touch()
    for directory in (gone, daemons, exported, others):
        directory.mkdir()
        (directory / "counter_wsgifast-1-1.db").touch()
        (directory / "exporter.lock").touch()
    (daemons / f"counter_{name_of_process(os.getpid())}.db").touch()
    with (exported / "exporter.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare_metrics(worker("9100"))
    assert not gone.exists()
    assert daemons.is_dir()
    assert exported.is_dir()
    assert others.is_dir()
    assert unreadable.is_file()


def test_metrics_without_directory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_memory_folder", lambda: "/proc")
    prepare_metrics(worker("9100"))
    assert refused("9100") == (
        "FastWorker.metrics_bind='9100': the directory "
        f"'/proc/wsgifast-metrics-{name_of_process(os.getpid())}' cannot be used: "
        "No such file or directory"
    )


def test_metrics_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"wsgifast-metrics-{name_of_process(os.getpid())}").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    prepare_metrics(worker("9100"))
    assert DIRECTORY not in os.environ
    assert refused("9100").endswith(" cannot be used: it is another user's")
