"""Settings of gunicorn that concern a worker, against gthread where it has an answer of its own."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.gunicorn import may_end_head_with_bare_lf
from tests.support.http import Connection
from tests.support.servers import free_port, live_server, wait_for
from tests.workers.app import block
from tests.workers.serving import fast_worker, gunicorn_command, stats

pytestmark = pytest.mark.long

LIMITED = (
    "--limit-request-line=100",
    "--limit-request-fields=5",
    "--limit-request-field_size=200",
)


def _head(line: int, fields: int, field: int) -> bytes:
    """A request with a line, a number of fields and a longest field of so many bytes."""
    start = b"GET /small/1?%b HTTP/1.1\r\n"
    filled = start % (b"a" * (line - len(start) + 2))
    names = b"".join(b"A%d: 1\r\n" % number for number in range(fields - 2))
    return filled + b"Host: a\r\n" + names + b"X: %b\r\n\r\n" % (b"b" * (field - 5))


@pytest.mark.parametrize(
    "head",
    [_head(90, 4, 150), _head(150, 4, 150), _head(90, 6, 150), _head(90, 4, 300)],
    ids=["within", "line", "fields", "field"],
)
def test_head_limits_equal_those_of_gthread(head: bytes) -> None:
    statuses = []
    address = ("127.0.0.1", free_port())
    argv = gunicorn_command(
        "-k", "gthread", "-b", f"{address[0]}:{address[1]}", *LIMITED, "tests.workers.app:app"
    )
    with live_server(argv, address) as gthread, fast_worker(*LIMITED) as fast:
        for server in (gthread, fast):
            bare_lf = may_end_head_with_bare_lf(server)
            with Connection(server.address, bare_lf=bare_lf) as connection:
                connection.send(head)
                statuses.append(connection.read_response().status)
    assert statuses[0] == statuses[1]
    assert (statuses[1] == 200) == (head == _head(90, 4, 150))


def test_proxy_header_of_other_peer_is_refused() -> None:
    with (
        fast_worker("--proxy-protocol=auto", "--proxy-allow-from=192.0.2.9") as server,
        Connection(server.address) as connection,
    ):
        connection.send(
            b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\nGET /small HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        assert connection.read_response().status == 403
        assert connection.read_to_end() == b""


def test_servers_share_a_port_with_reuse_port() -> None:
    address = ("127.0.0.1", free_port())
    with ExitStack() as stack:
        servers = [
            stack.enter_context(fast_worker("--reuse-port", address=address)) for _ in range(2)
        ]
        wait_for(lambda: all("Booting worker" in s.log() for s in servers), "both serve")
        pids: set[int] = set()

        def both_answer() -> bool:
            pids.add(stats(servers[0])["pid"])
            return len(pids) == 2

        wait_for(both_answer, "each has answered")


ABORT_HOOK = """
import os
def worker_abort(worker):
    os.write(2, b"hook worker_abort\\n")
"""


def test_abort_calls_hook_and_replaces_worker() -> None:
    with fast_worker(configuration=ABORT_HOOK) as server, Connection(server.address) as connection:
        pid = stats(server)["pid"]
        connection.send_request("/sleep/100")  # no app can keep it
        os.kill(pid, signal.SIGABRT)
        server.wait_for_log("hook worker_abort")
        server.wait_for_log("Booting worker", 2)
        assert stats(server)["pid"] != pid


def test_timeout_replaces_silent_worker_not_slow_app() -> None:
    with fast_worker("--timeout=4") as server:
        pid = stats(server)["pid"]
        assert server.get("/sleep/6").body == b"ok"
        assert stats(server)["pid"] == pid
        os.kill(pid, signal.SIGSTOP)
        server.wait_for_log("Booting worker", 2)
        assert server.get("/small/5").body == block(5)
        assert "WORKER TIMEOUT" in server.log()


def test_ttin_and_ttou_change_number_of_workers() -> None:
    hook = (
        "import os\ndef nworkers_changed(server, new, old):\n"
        "    os.write(2, f'workers {old} to {new}\\n'.encode())\n"
    )
    with fast_worker(configuration=hook) as server:
        server.process.send_signal(signal.SIGTTIN)
        server.wait_for_log("workers 1 to 2")
        server.wait_for_log("Booting worker", 2)
        server.process.send_signal(signal.SIGTTOU)
        server.wait_for_log("workers 2 to 1")
        server.wait_for_log("Worker exiting", 1)
        assert server.get("/small/5").body == block(5)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no files in memory here")
@pytest.mark.parametrize("chosen", [False, True])
def test_heartbeat_file_is_in_memory_by_default(tmp_path: Path, chosen: bool) -> None:
    """The file of gunicorn's heartbeat is in memory, unless its place is configured."""
    options = [f"--worker-tmp-dir={tmp_path}"] if chosen else []
    with fast_worker(*options) as server:
        pid = stats(server)["pid"]
        files = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        beats = {path for path in files if "wgunicorn-" in path}
        assert beats
        assert all(path.startswith(str(tmp_path) if chosen else "/dev/shm/") for path in beats)
