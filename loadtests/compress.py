"""Compression beside its peers: bytes on the wire, and the server's CPU time for a response.

    python -m loadtests.compress                          over loopback
    python -m loadtests.compress --link 20                over a link of 20 Mbit/s (root, Linux)
    python -m loadtests.compress json csv --coding zstd

The link is a pair of veth interfaces between two network namespaces, with `tc tbf` on the server's
side (burst 32 kB, latency 50 ms); both are removed at the end. Peers that are not installed are
left out with a line: pip install starlette-compress brotli-asgi flask-compress.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from wsgifast.commands.bench.processes import HOST, free_port, running
from wsgifast.commands.bench.tables import cpu_seconds

_GUNICORN = "python -m gunicorn --threads 4 -b {host}:{port} --log-level warning"
_WSGI = " 'loadtests.compress_app:flask_app()'"
_DJANGO = " 'loadtests.compress_app:django_app()'"
_UVICORN = "python -m uvicorn --factory --host {host} --port {port} --no-access-log"
_ASGI = " loadtests.compress_app:asgi_app"
_FAST = " -k wsgifast.workers.FastWorker"
_OURS = " --http asgifast.uvicorn:HttpToolsProtocol"
# What COMPRESS names, the package that it needs, the command, and the codings that it has.
_ALL = ("zstd", "br", "gzip")
CONTENDERS = (
    ("raw", None, _GUNICORN + _FAST + _WSGI, ("identity",)),
    ("flask-compress", "flask_compress", _GUNICORN + " -k gthread" + _WSGI, _ALL),
    ("wsgifast", None, _GUNICORN + _FAST + _WSGI, _ALL),
    ("wsgifast-coalesce", None, _GUNICORN + _FAST + _WSGI, _ALL),
    ("django-gzip", None, _GUNICORN + " -k gthread" + _DJANGO, ("gzip",)),
    ("wsgifast-django", None, _GUNICORN + _FAST + _DJANGO, _ALL),
    ("raw", None, _UVICORN + _ASGI, ("identity",)),
    ("gzip-middleware", None, _UVICORN + _ASGI, ("gzip",)),
    ("starlette-compress", "starlette_compress", _UVICORN + _ASGI, _ALL),
    ("brotli-asgi", "brotli_asgi", _UVICORN + _ASGI, ("br", "gzip")),
    ("wsgifast", None, _UVICORN + _OURS + _ASGI, _ALL),
)
BODIES = {
    "json": "/json", "html": "/html", "small": "/small", "csv": "/csv", "ndjson": "/ndjson",
    "events": "/events", "script": "/script.js",
}  # fmt: skip
# Of the link's namespaces, whose addresses nobody else has (RFC 2544: for benchmarks).
_CLIENT, _SERVER = "198.18.77.1", "198.18.77.2"
CONNECTIONS = 4


@dataclass
class Taken:
    """What the connections have received."""

    sizes: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    coding: str | None = None


def load(host: str, port: int, path: str, coding: str, seconds: float) -> Taken:
    """Request over keep-alive connections until the time is over."""
    taken, ends = Taken(), time.monotonic() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        while time.monotonic() < ends:
            began = time.perf_counter()
            connection.request("GET", path, headers={"Accept-Encoding": coding})
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, response.status
            taken.ms.append((time.perf_counter() - began) * 1e3)
            taken.sizes.append(len(body))
            taken.coding = response.headers.get("Content-Encoding")
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


@contextlib.contextmanager
def link(mbit: float) -> Iterator[str]:
    """A namespace behind a link of this rate; yields its name.

    :raises OSError or subprocess.CalledProcessError: where that is not allowed.
    """
    name, ours, theirs = f"wfc{os.getpid()}", f"wfa{os.getpid()}", f"wfb{os.getpid()}"

    def run(command: str) -> None:
        subprocess.run(command.split(), check=True, capture_output=True)

    run(f"ip netns add {name}")
    try:
        run(f"ip link add {ours} type veth peer name {theirs} netns {name}")
        run(f"ip addr add {_CLIENT}/30 dev {ours}")
        run(f"ip link set {ours} up")
        within = f"ip netns exec {name}"
        run(f"{within} ip addr add {_SERVER}/30 dev {theirs}")
        run(f"{within} ip link set {theirs} up")
        run(f"{within} ip link set lo up")
        shape = f"rate {mbit}mbit burst 32kb latency 50ms"
        run(f"{within} tc qdisc add dev {theirs} root tbf {shape}")
        yield name
    finally:
        subprocess.run(f"ip netns del {name}".split(), check=False, capture_output=True)
        subprocess.run(f"ip link del {ours}".split(), check=False, capture_output=True)


def measure(
    bodies: Sequence[str], codings: Sequence[str], seconds: float, namespace: str | None
) -> None:
    print("| body | server | coding | bytes | CPU ms | p50 ms | p99 ms | responses/s |")
    print("|---|---|---|---|---|---|---|---|")
    host = HOST if namespace is None else _SERVER
    for name, package, command, theirs in CONTENDERS:
        server = command.split()[2]
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"{name}: {package} is not installed")
            continue
        port = free_port()
        words = [word.strip("'") for word in command.format(host=host, port=port).split()]
        if namespace is not None:
            words = [*f"ip netns exec {namespace}".split(), *words]
            words[words.index("python")] = shutil.which("python") or "python3"
        with running(words, (host, port), env={"COMPRESS": name}) as started:
            for body in bodies:
                for coding in theirs if theirs == ("identity",) else codings:
                    if coding not in theirs:
                        continue
                    load(host, port, BODIES[body], coding, 0.3)
                    before, began = cpu_seconds(started.pid), time.monotonic()
                    taken = load(host, port, BODIES[body], coding, seconds)
                    spent, took = cpu_seconds(started.pid) - before, time.monotonic() - began
                    count = len(taken.sizes)
                    cuts = quantiles(taken.ms, n=100) if count > 1 else taken.ms * 99
                    size = sum(taken.sizes) / count
                    print(
                        f"| {body} | {name} on {server} | {taken.coding or 'none'} | {size:,.0f} "
                        f"| {spent / count * 1e3:.2f} | {cuts[49]:.1f} | {cuts[98]:.1f} "
                        f"| {count / took:.0f} |",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.compress", description=__doc__)
    parser.add_argument("bodies", nargs="*", metavar="BODY", help=", ".join(BODIES))
    parser.add_argument("--coding", action="append", choices=_ALL)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--link", type=float, metavar="MBIT")
    given = parser.parse_args()
    bodies = given.bodies or [*BODIES]
    if unknown := set(bodies) - set(BODIES):
        parser.error(f"no body {', '.join(unknown)}: {', '.join(BODIES)}")
    codings = given.coding or _ALL
    if given.link is None:
        measure(bodies, codings, given.seconds, None)
        return
    with contextlib.ExitStack() as stack:
        try:
            namespace = stack.enter_context(link(given.link))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no link of {given.link:g} Mbit/s can be made here: {error}")
            return
        measure(bodies, codings, given.seconds, namespace)


if __name__ == "__main__":
    main()
