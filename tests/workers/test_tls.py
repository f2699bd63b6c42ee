"""TLS files that are renewed while the worker runs, and broken files."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from gunicorn.config import Config

from tests.support.servers import wait_for
from tests.workers.app import block
from tests.workers.serving import fast_worker, refused, stats
from wsgifast.workers.tls import TLSContexts


class Log(SimpleNamespace):
    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, text: str, *args: object) -> None:
        self.errors.append(text % args)


@pytest.fixture(autouse=True)
def nothing_good_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TLSContexts, "last_valid", None)


def configured(certfile: Path, keyfile: Path, **options: Any) -> Config:
    cfg = Config()
    for name, value in {"certfile": str(certfile), "keyfile": str(keyfile), **options}.items():
        cfg.set(name, value)
    return cfg


def issue(folder: Path, authority: trustme.CA) -> tuple[Path, Path]:
    """Write a new certificate, and then its key."""
    made = authority.issue_cert("localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    for path, blob in ((cert, made.cert_chain_pems[0]), (key, made.private_key_pem)):
        new = folder / "new.pem"
        blob.write_to_path(new)
        os.replace(new, path)
    return cert, key


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls_context_is_renewed_for_changed_file_only(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    authority = trustme.CA()
    pem = authority.issue_cert("localhost").private_key_and_cert_chain_pem.bytes()
    path.write_bytes(pem)
    contexts = TLSContexts(configured(path, path), Log())
    current = contexts.current()
    assert contexts.current() is current
    stat_result = path.stat()

    def keep_time() -> None:
        os.utime(path, ns=(stat_result.st_atime_ns, stat_result.st_mtime_ns))

    def grow() -> None:
        path.write_bytes(pem + b"\n")
        keep_time()

    def replace() -> None:
        new = tmp_path / "new.pem"
        new.write_bytes(pem + b"\n")
        new.replace(path)
        keep_time()

    def touch() -> None:
        os.utime(path, ns=(stat_result.st_atime_ns, stat_result.st_mtime_ns + 1))

    for change in (grow, replace, touch):
        change()
        assert contexts.current() is not current, change.__name__
        current = contexts.current()
        assert contexts.current() is current


@pytest.mark.parametrize("broken", ["key", "other key", "gone"])
def test_broken_tls_files_are_logged_and_old_used(tmp_path: Path, broken: str) -> None:
    cert, key = issue(tmp_path, trustme.CA())
    log = Log()
    contexts = TLSContexts(configured(cert, key), log)
    good = contexts.current()
    if broken == "key":
        key.write_text("no key at all")
    elif broken == "other key":
        other = tmp_path / "other"
        other.mkdir()
        key.write_bytes(issue(other, trustme.CA())[1].read_bytes())
    else:
        key.unlink()
    for _ in range(3):
        assert contexts.current() is good
    assert len(log.errors) == 1
    assert str(key) in log.errors[0]
    assert "The last valid files stay in use, if there are any" in log.errors[0]
    # A worker that starts now gets it from the arbiter.
    assert TLSContexts(configured(cert, key), log).current() is good
    assert len(log.errors) == 2
    issue(tmp_path, trustme.CA())
    assert contexts.current() is not good
    assert len(log.errors) == 2
    assert TLSContexts.last_valid is contexts.current()


@pytest.mark.parametrize("started", [False, True])
def test_tls_files_replaced_in_failed_read_come_again(tmp_path: Path, started: bool) -> None:
    authority = trustme.CA()
    cert, key = issue(tmp_path, authority)
    log = Log()
    replaced = started

    def ssl_context(cfg: Any, make_default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """gunicorn's context, while the files change to another certificate and key between its two
        reads.
        """
        nonlocal replaced
        if not replaced:
            replaced = True
            other = tmp_path / "other"
            other.mkdir()
            new_cert, new_key = issue(other, authority)
            os.replace(new_key, key)
            try:
                return make_default()
            finally:
                os.replace(new_cert, cert)
        return make_default()

    contexts = TLSContexts(configured(cert, key, ssl_context=ssl_context), log)
    before = contexts.current() if started else None
    if started:
        replaced = False
        os.utime(cert)
    assert contexts.current() is not before
    assert log.errors == []


def test_tls_files_replaced_in_read_serve_the_next(tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, key = issue(tmp_path, authority)
    read = 0

    def ssl_context(cfg: Any, make_default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        nonlocal read
        read += 1
        made = make_default()
        if read == 2:
            issue(tmp_path, authority)
        return made

    contexts = TLSContexts(configured(cert, key, ssl_context=ssl_context), Log())
    first = contexts.current()
    os.utime(cert)
    second, third = contexts.current(), contexts.current()
    assert len({first, second, third}) == read == 3
    assert contexts.current() is third


def test_tls_files_that_never_worked_raise(tmp_path: Path) -> None:
    cert, key = issue(tmp_path, trustme.CA())
    key.write_text("no key at all")
    log = Log()
    contexts = TLSContexts(configured(cert, key), log)
    for _ in range(3):
        with pytest.raises(ssl.SSLError):
            contexts.current()
    assert len(log.errors) == 1
    assert "The last valid files stay in use, if there are any" in log.errors[0]
    issue(tmp_path, trustme.CA())
    assert contexts.current() is contexts.current()


def test_failing_ssl_context_hook_is_logged(tmp_path: Path) -> None:
    cert, key = issue(tmp_path, trustme.CA())

    def ssl_context(cfg: Any, make_default: Any) -> ssl.SSLContext:
        raise LookupError("not at home")

    log = Log()
    contexts = TLSContexts(configured(cert, key, ssl_context=ssl_context), log)
    with pytest.raises(LookupError):
        contexts.current()
    assert "not at home" in log.errors[0]


# Live


def test_renewed_certificate_is_used_without_restart(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    pem = tmp_path / "server.pem"
    first.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    with fast_worker(f"--certfile={pem}", f"--keyfile={pem}") as server:
        for authority in (first, second):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            new = tmp_path / "new.pem"
            authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(new)
            os.replace(new, pem)
            assert server.get("/small/5", tls=context).body == block(5)


def test_key_that_does_not_fit_is_refused_at_start(tmp_path: Path) -> None:
    cert, key = issue(tmp_path, trustme.CA())
    key.write_text("no key at all")
    printed = refused(f"--certfile={cert}", f"--keyfile={key}")
    assert f"Error: certfile={str(cert)!r}, keyfile={str(key)!r}: " in printed


def test_certificate_without_key_is_logged_old_used(tmp_path: Path) -> None:
    """The files break while the worker runs.

    After a reload, the new worker has never read valid files.
    """
    authority = trustme.CA()
    cert, key = issue(tmp_path, authority)
    tls = trusting(authority)
    with fast_worker(f"--certfile={cert}", f"--keyfile={key}") as server:
        first = stats(server, tls=tls)["pid"]
        other = tmp_path / "other"
        other.mkdir()
        os.replace(issue(other, authority)[0], cert)
        for _ in range(3):
            assert server.get("/small/5", tls=tls).body == block(5)
        assert server.log().count("key values mismatch") == 1
        assert "[ERROR] TLS: " in server.log()
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: stats(server, tls=tls)["pid"] != first, "a new worker serves")
        assert server.get("/small/5", tls=tls).body == block(5)
        # The key is written late.
        os.replace(other / "key.pem", key)
        assert server.get("/small/5", tls=tls).body == block(5)
