"""Make a slow link between a client and the servers, in Linux as root.

A pair of veth interfaces connects two network namespaces. Each end sends at the rate of the link
(`tc tbf`, a token bucket). The servers run in the usual namespace, and also listen on
:data:`ADDRESS`. Programs in the other namespace connect to this address. The link adds no delay and
no packet loss, because these need netem, which some kernels do not have. :func:`slow_proxy`
needs no root, but limits only the rate of responses.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

from wsgifast.commands.bench.processes import HOST, Address

# Each process uses its own network, from the range for benchmarks (RFC 2544).
_NETWORK, _SUBNET = divmod(os.getpid() % 2**14, 64)
# The addresses of the link's two ends: the servers' end, and the clients' end.
ADDRESS, _CLIENT_ADDRESS = (f"198.18.{_NETWORK}.{4 * _SUBNET + end}" for end in (1, 2))
# After a pause, 32 KB may pass at once. A packet that would wait for more than 50 ms is dropped.
SHAPE = "burst 32kb latency 50ms"


class NoLink(Exception):
    """The link cannot be made. The message has the reason."""


@contextlib.contextmanager
def link(mbit: float) -> Iterator[Sequence[str]]:
    """Make a link, and remove it at the end of the block.

    :param mbit: the rate in each direction, in Mbit/s.
    :returns: the words to put before a command, so that it runs in the other namespace.
    :raises NoLink: if the link cannot be made, for example without root.
    """
    name, near, far = f"wfn{os.getpid()}", f"wfa{os.getpid()}", f"wfb{os.getpid()}"
    within = f"ip netns exec {name}"
    shape = f"root tbf rate {mbit:g}mbit {SHAPE}"
    with contextlib.ExitStack() as stack:
        try:
            _run(f"ip netns add {name}")
            stack.callback(_run, f"ip netns del {name}")  # this also deletes both interfaces
            _run(f"ip link add {near} type veth peer name {far} netns {name}")
            _run(f"ip addr add {ADDRESS}/30 dev {near}")
            _run(f"ip link set {near} up")
            _run(f"{within} ip addr add {_CLIENT_ADDRESS}/30 dev {far}")
            _run(f"{within} ip link set {far} up")
            _run(f"tc qdisc add dev {near} {shape}")
            _run(f"{within} tc qdisc add dev {far} {shape}")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise NoLink(f"no link of {mbit:g} Mbit/s can be made here: {reason}") from None
        yield within.split()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


@contextlib.contextmanager
def slow_proxy(server: Address, mbit: float) -> Iterator[Address]:
    """Forward connections to a server, and limit the rate of its responses.

    :param mbit: the rate of all connections together, in Mbit/s.
    :returns: the address of the proxy.
    """
    with _Proxy(server, mbit) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy.server_address
        finally:
            proxy.shutdown()
            thread.join()


_PROXY_BLOCK_BYTES = 8192


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    server_address: Address

    def __init__(self, server: Address, mbit: float) -> None:
        super().__init__((HOST, 0), _Forwarder)
        self.upstream_address = server
        self._bytes_per_s = mbit * 1e6 / 8
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_to_send(self, size: int) -> None:
        """Wait for the time that a block needs on the link."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / self._bytes_per_s
            pause_s = self._free_at - now
        time.sleep(pause_s)


class _Forwarder(socketserver.BaseRequestHandler):
    """One connection of the proxy."""

    server: _Proxy

    def handle(self) -> None:
        # If the client or the server closes, both connections end. Locust reports incomplete
        # responses.
        with (
            socket.create_connection(self.server.upstream_address) as upstream,
            contextlib.suppress(ConnectionError),
        ):
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._forward_requests, args=(upstream,), daemon=True).start()
            while block := upstream.recv(_PROXY_BLOCK_BYTES):
                self.server.wait_to_send(len(block))
                self.request.sendall(block)

    def _forward_requests(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := self.request.recv(_PROXY_BLOCK_BYTES):
                upstream.sendall(block)
            upstream.shutdown(socket.SHUT_WR)
