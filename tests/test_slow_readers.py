"""A client that reads nothing costs little memory of the kernel and of the server."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from asgifast.protocols.large_bodies import MEMORY_BYTES

from tests.support.http import Connection
from tests.support.http2 import Connected
from tests.support.large_app import KINDS, SIZE
from tests.support.servers import PATIENCE_S, LiveServer, live_server, wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.serving import fast_worker

pytestmark = pytest.mark.long

KERNEL_BYTES = 200_000
READERS = 6
UVICORN = "python", "-m", "uvicorn", "--no-access-log", "--port", "{port}"
PROTOCOLS = ("HttpToolsProtocol", "H11Protocol")
ASGI_KINDS = ("page", "generator", "compressed-page")


def unsent_bytes(server: LiveServer) -> list[int]:
    """Return the kernel's share of each connection's output (proc(5), /proc/net/tcp)."""
    assert isinstance(server.address, tuple)
    port = f":{server.address[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(row[4].partition(":")[0], 16)
        for row in rows
        if row[1].endswith(port) and row[3] == "01"
    ]


@contextlib.contextmanager
def readers(
    server: LiveServer, target: str, *, tls: bool = False, count: int = READERS
) -> Iterator[None]:
    """Clients that request a large body, and read none of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(
                Connection(
                    server.address, receive_buffer=4096, tls=client_context() if tls else None
                )
            )
            headers = [("Accept-Encoding", "gzip")] if "compressed" in target else []
            connection.send_request(target, headers=headers)
        known: list[int] = []

        def stands_still() -> bool:
            nonlocal known
            before, known = known, sorted(unsent_bytes(server))[-count:]
            time.sleep(0.1)  # between two checks
            return len(known) == count and known == before and known[0] > 0

        wait_for(stands_still, lambda: f"all are sent to: {known}")
        yield


@pytest.fixture(scope="module", params=["HTTP", "HTTPS"])
def worker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveServer, bool]]:
    """Start FastWorker. Return it, and whether it has TLS."""
    options = []
    if request.param == "HTTPS":
        options = ["--certfile", write_certificate(tmp_path_factory.mktemp("tls") / "both.pem")]
    with fast_worker(*options, app="tests.support.large_app:app") as server:
        yield server, bool(options)


@pytest.mark.parametrize("kind", [*KINDS, "compressed-page", "compressed-generator"])
def test_slow_reader_costs_little_kernel_memory(worker: tuple[LiveServer, bool], kind: str) -> None:
    server, tls = worker
    with readers(server, f"/{kind}", tls=tls):
        assert max(unsent_bytes(server)) <= KERNEL_BYTES


@pytest.fixture(
    scope="module", params=[(p, loop) for p in PROTOCOLS for loop in ("asyncio", "uvloop")]
)
def protocol(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    name, loop = request.param
    options = ("--http", f"asgifast.uvicorn:{name}", "--loop", loop)
    with live_server([*UVICORN, *options, "tests.support.large_app:asgi_app"]) as server:
        yield server


@pytest.mark.parametrize("kind", ASGI_KINDS)
def test_slow_reader_costs_little_under_asgi(protocol: LiveServer, kind: str) -> None:
    with readers(protocol, f"/{kind}"):
        assert max(unsent_bytes(protocol)) <= KERNEL_BYTES


@contextlib.contextmanager
def stream_readers(server: LiveServer, target: str, *, count: int = READERS) -> Iterator[None]:
    """A client of HTTP/2 over TLS that reads no more than the beginning of each response."""
    assert isinstance(server.address, tuple)
    plain = socket.create_connection(server.address, PATIENCE_S)
    with client_context("h2").wrap_socket(plain, server_hostname="localhost") as sock:
        client = Connected(sock, window=4096, reads=False)
        client.begin()
        streams = [client.send(target) for _ in range(count)]
        while not all(client.responses[stream].received for stream in streams):
            client.receive()
        yield


def memory_of(server: LiveServer) -> int:
    """Return the resident bytes of the server's workers, or of the server if it has none."""
    process = psutil.Process(server.pid)
    return sum(each.memory_info().rss for each in process.children() or [process])


# The protocol, the event loop, and whether its readers use HTTP/2. All are over TLS.
OVER_TLS = [
    ("HttpToolsProtocol", "asyncio", False),
    ("HttpToolsProtocol", "uvloop", False),
    ("H11Protocol", "asyncio", False),
]
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    OVER_TLS += [("AutoZttpProtocol", "uvloop", False), ("AutoZttpProtocol", "asyncio", True)]


@pytest.mark.parametrize(("kind", "bound"), [("page", 0), ("own-page", MEMORY_BYTES)])
@pytest.mark.parametrize(("protocol", "loop", "is_http2"), OVER_TLS)
def test_slow_readers_of_pages_have_a_bound_under_asgi(
    protocol: str, loop: str, is_http2: bool, kind: str, bound: int, tmp_path: Path
) -> None:
    """The server has no copy of a page of the app. Pages that the app drops share a bound."""
    crowds, count = 2, 10
    certificate = str(write_certificate(tmp_path / "both.pem"))
    options = ["--http", f"asgifast.uvicorn:{protocol}", "--loop", loop]
    options += ["--ssl-certfile", certificate, "--ssl-keyfile", certificate]
    argv = [*UVICORN, *options, "tests.support.large_app:asgi_app"]
    with live_server(argv) as server:
        with Connection(server.address, tls=client_context()) as quick:
            assert len(quick.request(f"/{kind}").body) == SIZE
        before = memory_of(server)
        with contextlib.ExitStack() as stack:
            if is_http2:
                for _ in range(crowds):
                    stack.enter_context(stream_readers(server, f"/{kind}", count=count))
            else:
                stack.enter_context(readers(server, f"/{kind}", tls=True, count=crowds * count))
            wait_for(
                lambda: memory_of(server) - before < bound + crowds * count * SIZE // 4,
                lambda: f"pages are on the disk: {memory_of(server) - before:,} bytes",
            )
        wait_for(
            lambda: memory_of(server) - before < crowds * count * SIZE // 4,
            lambda: f"memory goes back to the system: {memory_of(server) - before:,} bytes",
        )


@pytest.mark.parametrize("over", ["HTTP", "HTTPS", "HTTP/2"])
@pytest.mark.parametrize("kind", ["page", "own-blocks"])
def test_slow_readers_share_one_bound_of_memory(kind: str, over: str, tmp_path: Path) -> None:
    bound, count = 8 * 2**20, 10
    attributes = {"output_memory_bytes": bound}
    options = []
    if over != "HTTP":
        options += ["--certfile", write_certificate(tmp_path / "both.pem")]
    if over == "HTTP/2":
        options += ["--http-protocols", "h2,h1"]
    with fast_worker(*options, app="tests.support.large_app:app", attributes=attributes) as server:
        with Connection(server.address, tls=client_context() if options else None) as quick:
            quick.request(f"/{kind}")
        before = memory_of(server)
        reading = (
            stream_readers(server, f"/{kind}", count=count)
            if over == "HTTP/2"
            else readers(server, f"/{kind}", tls=bool(options), count=count)
        )
        # Over TLS, freed blocks leave fragments in the heap. 12 MB remained with glibc 2.36.
        fragments = SIZE if (kind, over) == ("own-blocks", "HTTPS") else 0
        with reading:
            wait_for(
                lambda: memory_of(server) - before < bound + 2 * SIZE + fragments,
                lambda: f"pages are on the disk: {memory_of(server) - before:,} bytes",
            )
        wait_for(
            lambda: memory_of(server) - before < SIZE // 2 + 2 * fragments,
            lambda: f"memory goes back to the system: {memory_of(server) - before:,} bytes",
        )
