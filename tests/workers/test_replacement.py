"""Workers that are replaced: after max_requests, and when all their threads are stuck."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import ROOT, STOP_S, LiveServer, wait_for
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import fast_worker, rewrite_module, stats

pytestmark = pytest.mark.long

THREADS = 4
# The modules of this checkout, for a server in another directory.
HERE = {"PYTHONPATH": str(ROOT)}


# This app can be imported only while no file forbids it.
GATED = """
import os, time
while os.path.exists("closed"):
    time.sleep(0.01)
import tests.workers.app

def app(environ, start_response):
    if environ["PATH_INFO"] == "/version":
        body = b"{version} %d" % os.getpid()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    return tests.workers.app.app(environ, start_response)
"""
# This app imports nothing that another user might not be allowed to read.
ALONE = GATED.replace("import tests.workers.app\n", "")


class Gated:
    """A server and its clients. The test decides when its workers begin to import the app."""

    def __init__(self, folder: Path, server: LiveServer) -> None:
        self.folder = folder
        self.server = server

    def shut(self) -> None:
        (self.folder / "closed").touch()

    def open(self) -> None:
        (self.folder / "closed").unlink()

    def write(self, text: str) -> None:
        rewrite_module(self.folder / "gated.py", text)

    def reload(self) -> None:
        self.server.process.send_signal(signal.SIGHUP)

    def version(self) -> str:
        response = self.server.get("/version")
        assert response.status == 200
        return response.body.decode().split()[0]

    def pid(self) -> int:
        return int(self.server.get("/version").body.decode().split()[1])

    def booted(self) -> int:
        return self.server.log().count("Booting worker")


@contextlib.contextmanager
def gated(
    folder: Path,
    *options: str,
    workers: int = 1,
    text: str = GATED,
    configuration: str = "",
) -> Iterator[Gated]:
    module = folder / "gated.py"
    module.write_text(text.replace("{version}", "one"))
    options = (f"--chdir={folder}", f"--workers={workers}", *options)
    with fast_worker(*options, app="gated:app", env=HERE, configuration=configuration) as server:
        made = Gated(folder, server)
        seen: set[int] = set()

        def all_answer() -> bool:
            seen.add(made.pid())
            return len(seen) == workers

        wait_for(all_answer, "all have imported the app")
        yield made


def assert_reload_leaves_no_gap(app: Gated, text: str) -> None:
    """Two old workers respond until the new ones have imported the app."""
    app.shut()
    app.write(text.replace("{version}", "two"))
    app.reload()
    wait_for(lambda: app.booted() == 3, "one new worker imports the app")
    for _ in range(20):
        assert app.version() == "one"
    assert app.booted() == 3  # the others wait for their turn
    app.open()
    app.server.wait_for_log("All workers are replaced")
    app.server.wait_for_log("Worker exiting", 2)
    assert app.version() == "two"
    assert app.booted() == 4


def test_reload_old_workers_answer_until_new_import(tmp_path: Path) -> None:
    with gated(tmp_path, workers=2) as app:
        assert_reload_leaves_no_gap(app, GATED)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server can have another user's workers")
@pytest.mark.skipif(
    not all(each.stat().st_mode & 0o001 for each in (ROOT, *ROOT.parents)),
    reason="the user nobody may not read this checkout",
)
def test_reload_of_another_users_workers_has_no_gap() -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with gated(Path(folder), "--user=nobody", workers=2, text=ALONE) as app:
            assert os.stat(f"/proc/{app.pid()}").st_uid == nobody
            assert_reload_leaves_no_gap(app, ALONE)
            assert os.stat(f"/proc/{app.pid()}").st_uid == nobody


def test_max_requests_worker_answers_until_successor(
    tmp_path: Path,
) -> None:
    with gated(tmp_path, "--max-requests=5") as app:
        first = app.pid()
        app.shut()
        wait_for(lambda: app.pid() == first and app.booted() == 2, "a successor is started")
        for _ in range(20):
            assert app.pid() == first
        app.open()
        wait_for(lambda: app.pid() != first, "the successor answers")


def test_reload_to_a_failing_app_keeps_the_old_one(tmp_path: Path) -> None:
    with gated(tmp_path) as app:
        app.write("raise ValueError('not today')")
        app.reload()
        for seconds in (1, 2):
            app.server.wait_for_log(
                f"1 older workers continue to serve. The next attempt starts in {seconds} s"
            )
            assert app.version() == "one"
        assert "not today" in app.server.log()
        app.write(GATED.replace("{version}", "two"))
        wait_for(lambda: app.version() == "two", "it is tried again")
        app.server.wait_for_log("All workers are replaced")


def test_reload_again_tries_a_fixed_app_at_once(tmp_path: Path) -> None:
    with gated(tmp_path) as app:
        app.write("raise ValueError('not today')")
        app.reload()
        app.server.wait_for_log("attempt starts in 4 s")
        app.write(GATED.replace("{version}", "two"))
        app.reload()
        wait_for(lambda: app.version() == "two", "the new one answers")
        assert app.server.log().count("before it was ready") == 3


def test_term_during_a_reload_ends_all_workers(tmp_path: Path) -> None:
    with gated(tmp_path, "--graceful-timeout=60", workers=2) as app:
        app.shut()
        app.reload()
        wait_for(lambda: app.booted() == 3, "a new worker imports the app")
        assert app.server.stop() == 0
        log = app.server.log()  # the signal may arrive before the new worker can handle it
        assert log.count("Worker exiting") + log.count("was sent SIGTERM") == 3


def test_one_worker_more_during_a_reload_stays(tmp_path: Path) -> None:
    with gated(tmp_path) as app:
        app.shut()
        app.reload()
        wait_for(lambda: app.booted() == 2, "a new worker imports the app")
        app.server.process.send_signal(signal.SIGTTIN)
        app.open()
        wait_for(lambda: app.booted() == 3, "there is another one")
        app.server.wait_for_log("Worker exiting", 1)
        wait_for(lambda: len({app.pid() for _ in range(20)}) == 2, "two answer")


def test_slow_download_survives_worker_replacement() -> None:
    with (
        fast_worker("--max-requests=5", "--graceful-timeout=1") as server,
        Connection(server.address) as slow,
    ):
        first = stats(server)["pid"]
        slow.send_request("/file")
        assert slow.read_headers().header("Content-Length") == str(FILE_BYTES)
        wait_for(lambda: stats(server)["pid"] != first, "a successor serves")
        end = time.monotonic() + 2  # longer than graceful_timeout
        while time.monotonic() < end:
            assert stats(server)["pid"] != first
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)


def test_idle_connections_do_not_delay_replacement() -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--max-requests=20", "--keep-alive=60") as server,
    ):
        first = stats(server)["pid"]
        for _ in range(3):
            persistent = stack.enter_context(Connection(server.address))
            assert persistent.request("/small/1").keep_alive
        wait_for(lambda: stats(server)["pid"] != first, "the worker is replaced")


def test_replaced_worker_loses_no_request() -> None:
    def ask(_: int) -> tuple[int, bytes]:
        response = server.get("/small/5")
        return response.status, response.body

    with (
        fast_worker("--max-requests=30", "--max-requests-jitter=10") as server,
        ThreadPoolExecutor(4) as clients,
    ):
        assert {*clients.map(ask, range(160))} == {(200, block(5))}
        assert server.log().count("Booting worker") >= 2


GROWING = """
import tests.workers.app

kept = []

def app(environ, start_response):
    if environ["PATH_INFO"] == "/grow":
        kept.append(b"x" * 300_000_000)
    return tests.workers.app.app(environ, start_response)
"""


def test_grown_or_old_worker_is_replaced(
    tmp_path: Path,
) -> None:
    (tmp_path / "growing.py").write_text(GROWING)
    limits = {"max_rss_bytes": 250_000_000, "max_lifetime_s": 4.0}
    with (
        fast_worker(f"--pythonpath={tmp_path}", app="growing:app", attributes=limits) as server,
        Connection(server.address) as slow,
    ):
        first = stats(server)["pid"]
        slow.send_request("/file")
        assert slow.read_headers().status == 200
        server.get("/grow")
        server.wait_for_log("max_rss_bytes=250,000,000.")
        assert stats(server)["pid"] == first  # it continues while others are served
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)
        slow.close()
        wait_for(lambda: stats(server)["pid"] != first, "it is replaced")
        server.wait_for_log("max_lifetime_s is over")


def test_max_rss_below_size_of_app_is_refused_at_start() -> None:
    with fast_worker(attributes={"max_rss_bytes": 1_000_000}, fails=True) as server:
        assert server.process.wait(STOP_S) == 4  # gunicorn's exit status if an app cannot be loaded
        assert "FastWorker.max_rss_bytes=1,000,000: with this app a worker has" in server.log()
        assert server.log().count("Booting worker") == 1


def test_stuck_threads_are_logged_with_their_stacks() -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--graceful-timeout=1", attributes={"stuck_after_s": 2.0}) as server,
    ):
        for _ in range(THREADS):
            stack.enter_context(Connection(server.address)).send_request("/stuck")
        server.wait_for_log("in do_stuck", THREADS)
        assert "All 4 threads have worked" in server.log()
        assert server.log().count("All 4 threads") == 1


def test_stuck_worker_is_replaced() -> None:
    limits = {"stuck_after_s": 1.0, "kill_stuck_after_s": 2.0}
    with contextlib.ExitStack() as stack, fast_worker(attributes=limits) as server:
        first = stats(server)["pid"]
        slow = stack.enter_context(Connection(server.address))
        slow.send_request("/file")
        assert slow.read_headers().status == 200
        for _ in range(THREADS):
            stack.enter_context(Connection(server.address)).send_request("/stuck")
        server.wait_for_log("the worker ends")
        # Responses that have begun are sent completely.
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)
        assert stats(server)["pid"] != first


# Workers that cannot run beside their predecessor

NUMBERS = """
def pre_fork(server, worker):
    taken = {each.number for each in server.WORKERS.values()}
    worker.number = ({1, 2} - taken).pop()
"""
LOCK = """
def post_worker_init(worker):
    import fcntl
    worker.lock = open("lock", "w")
    fcntl.flock(worker.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def pids(app: Gated) -> set[int]:
    return {app.pid() for _ in range(20)}


def test_worker_numbers_survive_max_requests(tmp_path: Path) -> None:
    with gated(tmp_path, "--max-requests=30", workers=2, configuration=NUMBERS) as app:
        first = pids(app)
        wait_for(lambda: not first & pids(app), "both workers are replaced")
        assert "A new worker could not be started" in app.server.log()
        assert app.server.process.poll() is None


def test_worker_numbers_of_pre_fork_survive_reload(tmp_path: Path) -> None:
    with gated(tmp_path, workers=2, configuration=NUMBERS) as app:
        first = pids(app)
        app.reload()
        wait_for(lambda: not first & pids(app), "both workers are replaced")


def test_successor_failing_beside_old_worker_follows(tmp_path: Path) -> None:
    with gated(tmp_path, "--max-requests=30", configuration=LOCK) as app:
        first = app.pid()
        wait_for(lambda: app.pid() != first, "the worker is replaced")
        app.server.wait_for_log("set end_old_worker_first")


def test_reload_of_an_app_with_a_lock_names_option(tmp_path: Path) -> None:
    with gated(tmp_path, configuration=LOCK) as app:
        app.reload()
        app.server.wait_for_log("set end_old_worker_first")
        assert app.pid()


@pytest.mark.parametrize("configuration", [LOCK, NUMBERS])
@pytest.mark.parametrize("by", ["max_requests", "reload"])
def test_old_worker_ends_before_its_successor_starts(
    tmp_path: Path, by: str, configuration: str
) -> None:
    configuration += "end_old_worker_first = True\n"
    options = ("--max-requests=30",) if by == "max_requests" else ()
    with gated(tmp_path, *options, configuration=configuration) as app:
        first = app.pid()
        if by == "reload":
            app.reload()
        wait_for(lambda: app.pid() != first, "the worker is replaced")
        log = app.server.log()
        assert log.index("Worker exiting") < log.rindex("Booting worker")
        assert "before it was ready" not in log
        assert "could not be started" not in log


# Many configurations have this shape: at a reload each number is given twice.
FILES = """
import os
def on_starting(server):
    server.spare_numbers = set()
def nworkers_changed(server, new_value, old_value):
    server.most = new_value
def on_reload(server):
    server.spare_numbers = set(range(1, server.cfg.workers + 1))
def pre_fork(server, worker):
    taken = {each.number for each in server.WORKERS.values()}
    free = server.spare_numbers or set(range(1, server.most + 1)) - taken
    worker.number = free.pop()
def post_worker_init(worker):
    open(f"live-{worker.number}", "w").write(str(os.getpid()))
"""
ENDS = {
    "child_exit": "def child_exit(server, worker):",
    "worker_exit": "def worker_exit(server, worker):",
}


def by_environment(configuration: str) -> str:
    """Return the hook with the numbers in the environment.

    The arbiter has them by the workers' ages.
    """
    for old, new in (
        ("each.number for each in", "server.ages[each.age] for each in"),
        ("server.spare_numbers = set()", "server.spare_numbers, server.ages = set(), {}"),
        (
            "    worker.number = free.pop()\n",
            "    server.ages[worker.age] = free.pop()\n    give(server, worker)\n",
        ),
        ("live-{worker.number}", "live-{number()}"),
    ):
        configuration = configuration.replace(old, new)
    return (
        configuration
        + """
def give(server, worker):
    os.environ["FLAG"] = "1"
    os.environ["NUMBER"] = str(server.ages[worker.age])
def number():
    return os.environ["NUMBER"]
"""
    )


@pytest.mark.parametrize("stored_in", ["attribute", "environment", "dict"])
@pytest.mark.parametrize("hook", ENDS)
@pytest.mark.parametrize("by", ["max_requests", "reload"])
def test_exit_of_old_worker_keeps_files_of_new(
    tmp_path: Path, hook: str, by: str, stored_in: str
) -> None:
    configuration = FILES + f"{ENDS[hook]}\n    os.unlink(f'live-{{worker.number}}')\n"
    if stored_in != "attribute":
        if hook == "child_exit":  # it runs in the arbiter
            configuration = configuration.replace("worker.number}')", "server.ages[worker.age]}')")
        configuration = by_environment(configuration)
    if stored_in == "dict":  # the worker reads it after the fork
        configuration = configuration.replace("def give(", "def post_fork(")
        configuration = configuration.replace("    give(server, worker)\n", "")
    options = ("--max-requests=100",) if by == "max_requests" else ()
    with gated(tmp_path, *options, workers=2, configuration=configuration) as app:
        first = pids(app)
        if by == "reload":
            app.reload()
        wait_for(lambda: not first & pids(app), "both workers are replaced")

        def files() -> set[str]:
            return {each.read_text() for each in tmp_path.glob("live-*")}

        wait_for(lambda: files() == set(map(str, pids(app))), "each worker has its file")
        assert app.server.process.poll() is None


SAME = """
def pre_fork(server, worker):
    worker.role = "web-1"
"""


def test_reload_of_workers_of_same_name_has_no_gap(tmp_path: Path) -> None:
    with gated(tmp_path, workers=2, configuration=SAME) as app:
        assert_reload_leaves_no_gap(app, GATED)


def test_retiring_worker_outlives_a_wrong_successor(tmp_path: Path) -> None:
    with gated(tmp_path, "--max-requests=5") as app:
        app.write("import no_such_module")
        for _ in range(5):
            app.pid()
        app.server.wait_for_log("1 older workers continue to serve")
        assert app.version() == "one"
