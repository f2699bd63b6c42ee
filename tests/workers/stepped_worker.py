"""FastWorker without threads: a test passes it one event after the other, and sets its clock.

The worker, its poller, connections and sockets are real. Only its pool is never started.
:meth:`SteppedWorker.run` does all work in the test's own thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from gunicorn.config import Config
from gunicorn.workers import base

from tests.server.state_checks import checked_states
from tests.support.http import Connection, ResponseReader
from tests.workers.serving import split_options
from wsgifast.server import connection, poller, server
from wsgifast.server.monitor import this_thread
from wsgifast.server_options import OPTIONS
from wsgifast.workers import FastWorker, worker
from wsgifast.workers.options import options

PEER = ("192.0.2.1", 4711)
HEAD_TIMEOUT_S: float = OPTIONS["head_timeout_s"].default
# More than a Unix socket's buffers contain.
LARGE = 1024 * 1024
LISTENER = ("192.0.2.2", 80)
App = Callable[[dict[str, Any], Any], Iterable[bytes]]
# No wait of a test takes time: an event that is missing after a run never arrives.
_PATIENCE_S = 60.0
# More turns of the worker than any test needs.
_TURNS = 2000


def responses(body: Any = (), *headers: Any, status: Any = "200 OK") -> App:
    """Return an app that responds, also where it must not.

    :param body: the app's return value, or a function that makes it after the call of
        start_response().
    """

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [*headers])
        made: Iterable[bytes] = body() if callable(body) else body
        return made

    return app


hello = responses([b"hello"], ("Content-Length", "5"))
# More than one send accepts.
large = responses(lambda: [bytes(LARGE)], ("Content-Length", str(LARGE)))


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """An app that responds with the request's body."""
    data = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", str(len(data)))])
    return [data]


def request_for(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


GET = request_for("/")


class Clock:
    """The monotonic time. A test moves it.

    :ivar runs: the clock also advances by itself, for a thread that waits for a client.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.runs = False

    def monotonic(self) -> float:
        return self.now + (time.perf_counter() if self.runs else 0.0)


class Log:
    """The worker's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        # The first line, the status, and the size of the body of each request.
        self.requests: list[tuple[str, str, int]] = []
        self.environs: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.errors: list[BaseException | None] = []
        # Failed checks in a test's app. The worker handles them like any error of an app.
        self.failures: list[BaseException] = []
        # The lines that an operator sees: of the level warning, or above.
        self.warnings: list[str] = []
        self.debug = self.info = self._log
        self.warning = self.error = self.critical = self._warn

    def _log(self, text: str, *args: object, **more: object) -> None:
        self.lines.append(str(text) % args if args else str(text))

    def _warn(self, text: str, *args: object, **more: object) -> None:
        self._log(text, *args)
        self.warnings.append(self.lines[-1])

    def exception(self, text: str, *args: object) -> None:
        error = sys.exc_info()[1]
        self.errors.append(error)
        if error is not None and _is_a_tests(error):
            self.failures.append(error)
        self._warn(text, *args)

    def access(self, resp: Any, req: Any, environ: dict[str, Any], elapsed: Any) -> None:
        self.requests.append((f"{req.method} {req.uri}", resp.status, resp.sent))
        self.environs.append(environ)
        self.seconds.append(elapsed.total_seconds())

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def _is_a_tests(error: BaseException) -> bool:
    if isinstance(error, pytest.fail.Exception):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return isinstance(error, AssertionError) and os.sep + "tests" + os.sep in raised_in


class Client(Connection):
    """The client's socket of a connection. `near` is the worker's."""

    def __init__(self, sock: socket.socket, near: Any, stepped: SteppedWorker) -> None:
        sock.settimeout(_PATIENCE_S)
        self.sock = sock
        self.near = near
        self._bench = stepped
        ResponseReader.__init__(self, sock.makefile("rb"))

    def is_in(self, state: str) -> bool:
        """Return whether the worker's connection is in a state."""
        return bool(self.near.state == state)

    def run(self, data: bytes) -> None:
        """Send bytes, and let the worker do all of its work."""
        self.send(data)
        self._bench.run()

    def run_request(self, target: str = "/", **more: Any) -> None:
        """Send a request, and let the worker do all of its work."""
        self.send_request(target, **more)
        self._bench.run()

    def receive_all_there_is(self) -> bytes:
        """Return the bytes that have arrived, b"" at the end of the stream. Never waits."""
        self.sock.setblocking(False)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while block := self.sock.recv(1 << 20):
                data += block
        self.sock.settimeout(_PATIENCE_S)
        return data


class SteppedWorker:
    """A worker, and methods that cause its events.

    :param app: a WSGI app, which runs in the test's thread.
    :param attributes: the worker's class attributes, and options of :func:`.serving.fix_options`.
    :param settings: gunicorn's settings.
    """

    def __init__(
        self, app: Callable[..., Any], *, attributes: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.clock = Clock()
        self.log: Any = Log()
        self._undo = contextlib.ExitStack()
        cfg = Config()
        for name, value in settings.items():
            cfg.set(name, value)
        self._undo.enter_context(mock.patch("time.monotonic", self.clock.monotonic))
        self._undo.enter_context(checked_states())
        own, fixed = split_options(attributes or {})
        kind = fixed.pop("poller", None)
        if kind is not None:
            make = getattr(poller, f"{kind.capitalize()}Poller")
            self._undo.enter_context(mock.patch.object(server, "make_poller", make))
        self._undo.enter_context(
            mock.patch.object(
                worker,
                "options",
                lambda *args: dataclasses.replace(options(*args), **fixed),
            )
        )
        made = type("BenchWorker", (FastWorker,), own)
        self.worker = made(0, os.getppid(), [], SimpleNamespace(), 30, cfg, self.log)
        # These settings would change the whole process: signals, descriptors, the user.
        with mock.patch.object(base.Worker, "init_process"):
            self.worker.init_process()
        self.worker.wsgi = app
        self._clients: list[Client] = []
        self.begin_anew()

    def begin_anew(self, *listeners: socket.socket) -> None:
        """Make the worker's server from the worker's attributes and some listeners."""
        if self.worker.server is not None:
            self.worker.server.poller.close()
        self.worker.sockets = list(listeners)
        self.server = self.worker.server = self.worker.make_server()
        disk: Any = self.server.output_rules.disk
        disk.submit_temporary = self.server.registry.submit = lambda job: job()
        self.worker.application.write_late = lambda write: write()
        rules: Any = self.server.output_rules
        rules.flush_soon = lambda queue, flush: queue.flush()  # since no monitor ticks
        self._pool = self.server.pool  # a test may replace it
        self.thread = self._pool.members[0]  # the only one
        this_thread.member = self.thread

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for near in list(self.server.connections):
            near.close()
        self.server.poller.close()
        this_thread.member = None
        self.worker.tmp.close()
        self._undo.close()

    def connect(
        self,
        tls: ssl.SSLContext | None = None,
        peer: Any = PEER,
        *,
        tcp: bool = False,
        number: int | None = None,
    ) -> Client:
        """Accept a connection, and let the worker do all that needs no data of the client.

        :param tls: the client's context. The handshake is completed.
        :param tcp: whether to use TCP, which has features that a Unix socket lacks.
        :param number: the descriptor of its socket, which must be unused.
        """
        sock, far = _tcp_pair() if tcp else socket.socketpair()
        if number is not None:
            sock, far = _numbered(sock, far, number)
        near = self.accept(sock, peer)
        near.begin()
        if tls is not None:
            far = tls.wrap_socket(far, server_hostname="localhost", do_handshake_on_connect=False)
            far.setblocking(False)
            for _ in range(_TURNS):
                try:
                    far.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self.run()
        client = Client(far, near, self)
        self._clients.append(client)
        return client

    def accept(self, sock: socket.socket, peer: Any) -> connection.Connection:
        """Return the connection of a socket, before its first event."""
        near = self.server.connect(sock, peer, LISTENER)
        assert isinstance(near, connection.Connection)
        return near

    @property
    def listens(self) -> bool:
        """Return whether the worker accepts connections."""
        return bool(self.server.acceptor.listening)

    def begin(self, sent: bytes = GET, **more: Any) -> Client:
        """Return a connection on which data has arrived and has been handled."""
        client = self.connect(**more)
        client.run(sent)
        return client

    def armed(self) -> list[int]:
        """Return the events that the worker waits for from now on."""
        events: list[int] = []
        arm = self.server.poller.arm

        def look(fd: int, event: int) -> None:
            events.append(event)
            arm(fd, event)

        self.server.poller.arm = look
        return events

    def run(self) -> None:
        """Do all work, and run the apps of complete requests."""
        work: deque[Any] = self._pool.work
        for _ in range(_TURNS):
            while self.thread.due:
                self._pool._close(self.thread.due.popleft())
            if not work:
                self.poll()
            if not work:
                break
            job = self.take_up()
            if job is not None:
                self.response(job)
        else:
            pytest.fail("the worker does not come to rest")
        if self.log.failures:
            raise self.log.failures[0]

    # The single steps

    def take_up(self) -> Any:
        """Handle the next event. Return the job, if one is ready to run."""
        return self.server.receive(self._pool.work.popleft())

    def leave_waiting(self, job: Any) -> None:
        """Act as if no thread were free for this job."""
        self.server.on_queued(job)
        self._pool.ready.append(job)

    def take_waiting(self) -> Any:
        """Act as if a thread became free for the next job."""
        job = self._pool.ready.popleft()
        self.server.on_dequeued(job)
        return job

    def response(self, job: Any) -> None:
        """Run the app for a job."""
        self.server.run(job)

    def sweep(self) -> None:
        self.server._sweep()

    def hold_blocks_back(self) -> None:
        """Delay blocks of a stream until a tick that the test chooses."""
        rules: Any = self.server.output_rules
        del rules.flush_soon

    def send_goaways(self) -> None:
        """Announce the end of the worker to clients of HTTP/2."""
        self.server._send_goaways(self.clock.now)

    def log_no_access(self) -> None:
        self.worker.application.log_access = None

    def poll(self) -> None:
        """Fetch the poller's events without handling them."""
        pool = self._pool
        pool.poll_events(0)
        if not pool.work:  # the first poll with a change to make may do no other work
            pool.poll_events(0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, until the sweep and its effects."""
        self.clock.now += seconds
        self.sweep()
        self.run()


def _numbered(
    sock: socket.socket, far: socket.socket, number: int
) -> tuple[socket.socket, socket.socket]:
    """Return the two sockets of a connection. The first has this descriptor number."""
    if far.fileno() == number:
        return far, sock
    if sock.fileno() != number:
        os.dup2(sock.fileno(), number, inheritable=False)
        sock.close()
        sock = socket.socket(fileno=number)
    return sock, far


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        return listener.accept()[0], far


@pytest.fixture
def make_stepped() -> Iterator[Callable[..., SteppedWorker]]:
    with contextlib.ExitStack() as stack:

        def make(app: Callable[..., Any], **options: Any) -> SteppedWorker:
            stepped = SteppedWorker(app, **options)
            stack.callback(stepped.close)
            return stepped

        yield make


MakeStepped = Callable[..., SteppedWorker]


def ask(
    stepped: SteppedWorker, client: Client | None = None, **more: Any
) -> tuple[int, bool, bytes]:
    """Send one request. Return its status, whether the connection stays open, and the body."""
    client = client or stepped.connect()
    client.run_request(**more)
    response = client.read_response()
    if not response.keep_alive:
        assert client.read_to_end() == b""
    return response.status, response.keep_alive, response.body
