"""The rows of the load tests: each has a key, and a sample of them is measured."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests import asgi, jit, slow_memory, wsgi
from loadtests.__main__ import SEPARATE, UNPUBLISHED, chosen, main, tables
from loadtests.clients import percentile, raw
from loadtests.field_reports import mail, receive
from loadtests.harness.results import Result
from loadtests.harness.runner import run
from loadtests.harness.tables import BYTES, Profile, Table, Task
from loadtests.link import ADDRESS, NoLink, link
from tests.support.programs import program
from tests.support.servers import wait_for
from wsgifast.commands.bench.processes import Server, running_server
from wsgifast.commands.bench.report import problems

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

SHORT = Profile(0.1, 1, 5.0)
TRIES = 5


def _measured(key: str, *contenders: int, seconds: float | None = None) -> Result:
    """Measure the row of a key, with some of its contenders or all, as quickly as possible."""
    (table,) = chosen([*tables(), *SEPARATE, *UNPUBLISHED], [key])
    (row,) = table.rows
    selected = tuple(row.contenders[number] for number in contenders) or row.contenders
    row = replace(row, contenders=selected, seconds=seconds or row.seconds)
    for _ in range(TRIES):  # a machine that stalls may complete no request
        (result,) = run(replace(table, rows=[row]), SHORT)
        if all(each.requests for runs in result.runs.values() for each in runs):
            break
    return result


def test_percentile_is_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_client_counts_requests_bytes_and_errors() -> None:
    def seen(requests: int, path: str, size: int | None = None) -> tuple[int, int, object]:
        task = Task(path, 10.0, server.address, body_bytes=size)
        load = raw(requests=requests)(task)
        assert load.client_cpu_s > 0
        return load.requests, load.body_bytes, load.errors

    wsgiref = ("python", "-m", "tests.support.serve", "wsgiref", "{port}", "loadtests.app:app")
    with running_server(Server(wsgiref)) as server:
        assert seen(5, "/small", 512) == (5, 5 * 512, {})
        assert seen(2, "/rows/4096", 4096) == (2, 2 * 4096, {})
        assert seen(1, "/small/9", 10) == (0, 0, {"status 200 with 9 bytes instead of 10": 1})
        assert seen(1, "/none") == (0, 0, {"status 404": 1})


def test_unknown_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["no-such-key"])
    assert ended.value.code == 2
    assert "no key contains no-such-key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("t", ["a.b", "a.bc", "b.c"]),
        ("b.", ["b.c"]),
        ("a.b", ["a.b", "a.bc"]),
        ("c", ["a.bc", "b.c"]),
        ("d", []),
    ],
)
def test_key_chooses_rows_by_beginning_or_part(given: str, found: list[str]) -> None:
    rows = [replace(wsgi.WORKER.rows[0], key=key) for key in ("a.b", "a.bc", "b.c")]
    assert [
        row.key for table in chosen([Table("t", "t", rows)], [given]) for row in table.rows
    ] == found


def test_key_all_is_every_published_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [row.key for table in tables() for row in table.rows]
    assert main(["leaks.", "--list"]) == 0
    assert capsys.readouterr().out.startswith("leaks.FastWorker ")


def test_row_has_a_unique_key_and_contenders() -> None:
    every = [*tables(), *SEPARATE, *UNPUBLISHED]
    keys = [row.key for table in every for row in table.rows]
    assert len(keys) == len(set(keys)) > 100
    for table in every:
        for row in table.rows:
            names = [contender.name for contender in row.contenders]
            assert len(names) == len(set(names)), row
            assert len(names) > 1 or table in UNPUBLISHED
            assert row.ours is None or row.ours in names


@pytest.mark.parametrize(
    ("key", "contenders"),
    [
        ("ranges.1MiB", (0, 1)),
        ("flask.lines-fast", (0, 1)),
        ("compress.wsgi.small.gzip", (0, 1)),
        ("compress.asgi.small.gzip", (0, 1)),
        ("nodelay.small.wsgiref", ()),
        ("nodelay.small.werkzeug", ()),
        ("field.receive.sendall", ()),
        ("field.receive.link-used", ()),
        ("field.wsgiref.string", (1, 2)),  # the first one fails
        ("field.wsgiref.file", ()),
        ("field.imap.direct", ()),
        ("field.imap.forwarded", ()),
        ("field.smtp.small", ()),
        ("worker.http2.list", (1,)),
        ("peers.http2.burst", (0, 5)),
    ],
)
def test_row_measures_each_contender(
    key: str, contenders: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(receive.LARGE_BYTES, False, 4_000_000)
    monkeypatch.setitem(mail.APPENDS, False, 2)
    if key.startswith("field.imap."):
        program("dovecot")  # skipped without it
    if ".http2." in key:
        program("h2load")
    result = _measured(key, *contenders)
    for name in result.runs:
        assert result.median(name, result.row.unit.rate), problems([result])
    assert not result.differs


def test_link_reaches_a_server_and_is_removed() -> None:
    ip = program("ip")
    with contextlib.ExitStack() as stack:
        try:
            within = stack.enter_context(link(20))
        except NoLink as error:
            pytest.skip(str(error))
        server = stack.enter_context(socket.create_server((ADDRESS, 0)))
        ask = f"import socket; socket.create_connection({server.getsockname()!r}).sendall(b'x')"
        subprocess.run([*within, sys.executable, "-c", ask], check=True)
        sock, _ = server.accept()
        with sock:
            assert sock.recv(10) == b"x"

    def addresses() -> str:
        return subprocess.run([ip, "addr"], capture_output=True, text=True, check=True).stdout

    # The kernel removes the interface some time after the command has ended.
    wait_for(lambda: ADDRESS not in addresses(), "the link is removed")


def test_missing_link_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["compress.wsgi.small.gzip", "--link", "20"]) == 0
    assert capsys.readouterr().out.startswith("no link of 20 Mbit/s can be made here: ")


def test_instruction_row_counts() -> None:
    program("valgrind")
    result = _measured("instructions.wsgi.declared", -1)
    counted = result.median("WSGIFast", result.row.unit.rate)
    assert 1000 < (counted or 0) < 1_000_000, problems([result])


def test_row_without_its_framework_names_the_way_out() -> None:
    rows = asgi.middleware_rows("no_such_framework", "Nobody's middleware")
    results = list(run(Table("missing", "m", rows), SHORT))
    assert len(results) == 3
    for result in results:
        for name in result.runs:
            assert result.median(name, result.row.unit.rate) is None
            (message,) = result.errors(name)
            assert "no_such_framework is not installed: " in message
            assert "pip install --group frameworks" in message


def test_python_without_a_jit_names_the_way_out() -> None:
    results = [*run(Table("jit", "j", jit.rows(available=False)), SHORT)]
    errors = {error for each in results for name in each.runs for error in each.errors(name)}
    assert errors == {jit.REMEDY}


@pytest.mark.skipif(not jit.is_available(), reason=jit.REMEDY)
def test_jit_is_on_in_one_server_only() -> None:
    found = {}
    for contender in jit.rows(available=True)[0].contenders:
        assert contender.server
        env = {**os.environ, **dict(contender.server.env)}
        command = [sys.executable, "-c", "import sys; print(sys._jit.is_enabled())"]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found[contender.name] = ran.stdout.strip()
    assert found["FastWorker"] == "False"
    assert found["FastWorker, JIT"] == "True"


def test_large_file_of_the_worker_is_measured() -> None:
    """The client is one that is always installed, not wrk. It reports its own CPU time too."""
    result = _measured("worker.files.64KiB", 0, 1)
    assert result.median("FastWorker", BYTES.rate)
    assert result.facts("FastWorker")["client's CPU s/GB"] > 0
    assert not result.differs


def test_upload_is_measured_with_its_messages() -> None:
    program("curl")
    result = _measured("asgi.upload.stream", -1)
    assert result.median("a bare loop", BYTES.rate), problems([result])
    assert result.facts("a bare loop")["messages"] > 0


def test_memory_row_measures_idle_http2_connections() -> None:
    result = _measured("slow.memory-http2.idle", 0, seconds=0.1)
    assert result.facts("FastWorker")["slow ones"] == slow_memory.IDLE_COUNT
    assert result.facts("FastWorker")["dropped"] == 0
    assert result.failures("FastWorker") == 0


def test_attack_row_measures_other_clients() -> None:
    result = _measured("attack.silent-bodies", 0, seconds=0.1)
    assert result.facts("FastWorker")["slow ones"] == 100
    assert result.failures("FastWorker") == 0
