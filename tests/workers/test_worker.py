"""The worker: its life, its listeners, connections, and limits."""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import raising
from tests.support.tls import write_certificate
from tests.workers.stepped_worker import MakeStepped, SteppedWorker, ask, hello
from wsgifast.sockets.closing import LINGER_S

# Its life


class Pool:
    """A pool that only records when it is called."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.failed = self.has_pending_closes = False
        self.work: deque[Any] = deque()
        self.monitor = self  # and its monitor
        self.at_monitor: list[Callable[[], object]] = []
        self.rounds: list[float] = []

    def start(self) -> None:
        self.said.append("start")

    def push(self, task: Callable[[], object]) -> None:
        self.said.append("sweep")
        task()

    def watch(self, seconds: float) -> None:
        self.said.append("monitor")
        self.rounds.append(seconds)
        if not self.at_monitor:
            pytest.fail("it monitors for ever")
        self.at_monitor.pop(0)()

    def interrupt(self) -> None:
        self.said.append("interrupt")

    def stop(self) -> None:
        self.said.append("stop")

    def turns(self) -> list[Any]:
        return [("one", None, None)]

    def close_in_other_thread(self, stuck_since: float) -> None:
        pass


class Life:
    """A worker with a listener, run in the test's thread."""

    def __init__(self, stepped: SteppedWorker) -> None:
        self.stepped = stepped
        self.worker = worker = stepped.worker
        self.said: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        stepped.begin_anew(self.listener)
        self.pool: Any = Pool(self.said)
        stepped.server.pool = self.pool
        worker.make_server = lambda: stepped.server
        worker.notify = lambda: self.said.append("notify")

    def listens(self) -> bool:
        return bool(self.stepped.listens)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def life(make_stepped: MakeStepped) -> Iterator[Life]:
    made = Life(make_stepped(hello, graceful_timeout=30, keepalive=60))
    yield made
    made.close()


def test_worker_without_arbiter_ends(life: Life) -> None:
    life.worker.ppid = -1
    life.worker.run()
    assert "monitor" not in life.said
    assert life.said[-1] == "stop"
    assert not life.worker.alive


def test_failed_pool_ends_worker_with_status_1(life: Life) -> None:
    def fail() -> None:
        life.pool.failed = True

    life.pool.at_monitor = [fail]
    life.stepped.connect()  # it would never be served
    with pytest.raises(SystemExit) as raised:
        life.worker.run()
    assert raised.value.code == 1
    assert life.said[-2:] == ["interrupt", "stop"]
    assert life.listener.fileno() == -1


def test_ending_worker_waits_for_accept_under_way(life: Life) -> None:
    acceptor = life.stepped.server.acceptor

    def begin() -> None:
        acceptor.accepting += 1  # a thread is in accept()
        life.worker.alive = False

    def end() -> None:
        assert acceptor.accepting
        acceptor.accepting -= 1

    life.pool.at_monitor = [begin, end]
    life.worker.run()
    assert life.pool.at_monitor == []
    assert acceptor._closed  # no connection is accepted that would never be served


def test_ending_worker_lets_idle_clients_ask_once_more(life: Life) -> None:
    worker, stepped, server = life.worker, life.stepped, life.stepped.server
    client = stepped.connect()
    assert ask(stepped, client)[:2] == (200, True)
    now = stepped.clock.now

    def response() -> None:
        # A request at this moment gets a response that tells the truth about the connection.
        assert client.near.deadline == now + LINGER_S
        assert server.shared.keepalive_s == LINGER_S
        assert ask(stepped, client)[:2] == (200, False)
        client.close()
        stepped.run()

    assert server.shared.keepalive_s == 60
    life.pool.at_monitor = [lambda: setattr(worker, "alive", False), response]
    worker.run()
    assert not server.connections


def test_pool_has_the_threads_of_settings(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, threads=7)
    pool = stepped.server.pool
    assert len(pool.members) == 7
    pool.on_tick()


def test_thread_that_fails_is_logged_and_ends_worker(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello)
    pool = stepped.server.pool
    pool.work.append(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pool._serve_until_stopped(pool.leader)
    assert pool.failed
    assert stepped.log.says("A thread of the worker has failed")
    assert pool.monitor._interrupted


def test_delayed_blocks_are_sent_at_tick(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello)
    stepped.hold_blocks_back()
    client = stepped.connect()
    write_next = client.near.output.begin_stream(b"one", frame=None, may_run_ahead=False)
    write_next(b"two")
    assert client.receive_all_there_is() == b"one"
    assert stepped.server.pool.monitor._tick_requested
    stepped.server.pool.on_tick()
    assert client.receive_all_there_is() == b"two"


# Connections


@pytest.mark.skipif(not hasattr(select, "EPOLLRDHUP"), reason="the system does not tell")
def test_client_that_hung_up_is_answered_after_others(make_stepped: MakeStepped) -> None:
    requested: list[str] = []

    def app(environ: Any, start_response: Any) -> Any:
        requested.append(environ["PATH_INFO"])
        return hello(environ, start_response)

    stepped = make_stepped(app)
    done, waits = stepped.connect(), stepped.connect()
    done.sock.sendall(b"GET /done HTTP/1.1\r\nHost: a\r\n\r\n")
    done.sock.shutdown(socket.SHUT_WR)
    waits.sock.sendall(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n")
    stepped.run()
    assert requested == ["/waits", "/done"]
    for client in (done, waits):
        assert client.receive_all_there_is().startswith(b"HTTP/1.1 200 ")


def test_connection_given_to_ending_worker_is_answered(
    make_stepped: MakeStepped,
) -> None:
    """With EPOLLEXCLUSIVE no other worker learns of it."""
    stepped = make_stepped(hello, workers=2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stepped.begin_anew(listener)
        server = stepped.server
        server.acceptor.update()
        with socket.create_connection(listener.getsockname(), timeout=60) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            (event,) = server.poller.poll(0)
            server.stop()
            server.acceptor.close()
            server.receive(event)
            assert len(server.connections) == 1
            while not stepped.log.requests:
                stepped.run()
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [({"workers": 2}, True), ({"workers": 1}, False), ({"workers": 2, "reuse_port": True}, False)],
)
def test_saturated_worker_leaves_connections(
    make_stepped: MakeStepped, settings: dict[str, Any], leaves: bool
) -> None:
    stepped = make_stepped(hello, **settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stepped.begin_anew(listener)
        server = stepped.server
        for saturated in (False, True, False):
            server.pool.saturated = saturated
            server.acceptor.update()
            assert stepped.listens is not (saturated and leaves)
        server.stop()
        stepped.sweep()


@pytest.mark.parametrize("poller_kind", ["epoll", "poll"])
def test_listener_event_is_accepted_and_answered(
    make_stepped: MakeStepped, poller_kind: str
) -> None:
    stepped = make_stepped(hello, attributes={"poller": poller_kind})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stepped.begin_anew(listener)
        server = stepped.server
        server.acceptor.update()
        with socket.create_connection(listener.getsockname(), timeout=60) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while not server.connections:
                stepped.run()
            (near,) = server.connections
            assert not near.sock.getblocking()
            while not stepped.log.requests:
                stepped.run()
            assert sock.recv(1000).startswith(b"HTTP/1.0 200 OK\r\n")
        # An event of a descriptor that is no longer in use.
        server.receive((12345, 1))
        server.stop()
        server.acceptor.update()
    assert [status for _, status, _ in stepped.log.requests] == ["200 OK"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionResetError(), "A connection has failed at once"),
        (AttributeError(), "A connection could not be made"),  # a mistake that must not be hidden
    ],
)
def test_connection_not_made_is_closed_and_logged(
    make_stepped: MakeStepped, tmp_path: Path, error: Exception, said: str
) -> None:
    pem = write_certificate(tmp_path / "server.pem")
    stepped = make_stepped(hello, certfile=pem, keyfile=pem)
    near, far = socket.socketpair()
    with far:
        stepped.server.parser_for = raising(error)
        assert stepped.server.connect(near, ("192.0.2.1", 1), None) is None
        assert near.fileno() == -1
        assert far.recv(1) == b""
    assert not stepped.server.registry.connections
    assert stepped.log.says(said)
    assert stepped.log.errors == [error] * (not isinstance(error, OSError))


@pytest.mark.parametrize("suppressed", [True, False])
def test_tls_settings_apply_to_sockets(
    make_stepped: MakeStepped, tmp_path: Path, suppressed: bool
) -> None:
    pem = write_certificate(tmp_path / "server.pem")
    stepped = make_stepped(hello, certfile=pem, keyfile=pem, suppress_ragged_eofs=suppressed)
    client = stepped.connect()
    sock = client.near.sock
    assert isinstance(sock, ssl.SSLSocket)
    assert vars(sock)["suppress_ragged_eofs"] is suppressed
    assert not sock.getblocking()


# Requests


def test_worker_ends_after_max_requests(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, max_requests=3, keepalive=5)
    worker, server = stepped.worker, stepped.server
    worker.notify = lambda: None
    client, other = stepped.connect(), stepped.connect()
    assert ask(stepped, client) == (200, True, b"hello")
    assert ask(stepped, client) == (200, True, b"hello")
    assert worker._beat()
    assert not server.pool.monitor._interrupted
    assert ask(stepped, client) == (200, True, b"hello")
    assert server.pool.monitor._interrupted  # the monitor learns of it at once
    assert not worker._beat()  # no arbiter would start its successor
    assert server.shared.is_ending
    assert ask(stepped, other) == (200, False, b"hello")
    assert not worker._beat()
    assert sum("Autorestarting" in line for line in stepped.log.lines) == 1
