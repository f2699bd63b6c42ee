"""FastWorker beside gunicorn's gthread worker, and beside nginx for large files.

python -m loadtests.worker [rates] [files] [tls] [slow]

One worker process and four threads each; the contenders take turns. wrk is the client; it shares
the machine with the server, so the server's CPU time stands beside each rate.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.measuring import (
    Measured,
    Ratio,
    RunningServer,
    alternate,
    drive_with_wrk,
    free_port,
    gunicorn_command,
    measured,
    running,
    save,
    table,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ROOT = Path(__file__).resolve().parents[1]
FAST = "wsgifast.workers.FastWorker"
ROUNDS = 5
FILE_BYTES = 10 * 1024 * 1024
SMALL_BYTES = 1024
SLOW_BYTES_PER_S = 64 * 1024
SLOW_DOWNLOADS = 2000
SLOW_UPLOADS = 200
UPLOAD_BYTES = 1024 * 1024
PROBE_S = 8.0


@cache
def served_folder() -> Path:
    """A folder with a large and a small file, removed with the process that asked for it."""
    folder = Path(tempfile.mkdtemp(prefix="wsgifast-worker-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "large").write_bytes(b"")
    os.truncate(folder / "large", FILE_BYTES)
    (folder / "small.txt").write_bytes(bytes(SMALL_BYTES))
    return folder


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """/small, /sleep (10 ms), /compute (3 ms), /file (10 MiB), /upload."""
    path = environ["PATH_INFO"]
    if path == "/file":
        start_response("200 OK", [("Content-Length", str(FILE_BYTES))])
        return environ["wsgi.file_wrapper"](open(served_folder() / "large", "rb"))
    if path == "/upload":
        size = len(environ["wsgi.input"].read())
        start_response("200 OK", [("Content-Length", "0"), ("X-Size", str(size))])
        return []
    if path == "/sleep":
        time.sleep(0.010)
    elif path == "/compute":
        end = time.thread_time() + 0.003
        while time.thread_time() < end:
            pass
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(SMALL_BYTES))])
    return [bytes(SMALL_BYTES)]


def whitenoise_app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """A 1 KiB file through WhiteNoise."""
    return _static("whitenoise")(environ, start_response)


def static_app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    """The same file through StaticFiles."""
    return _static("wsgifast")(environ, start_response)


@cache
def _static(kind: str) -> Any:
    if kind == "whitenoise":
        import whitenoise

        return whitenoise.WhiteNoise(app, root=str(served_folder()))
    from wsgifast import StaticFiles

    return StaticFiles(directory=served_folder())


@contextlib.contextmanager
def gunicorn(worker: str, *options: str, target: str = "app") -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    command = gunicorn_command(
        f"loadtests.worker:{target}", address, worker_class=worker, options=options
    )
    with running(command, address, cwd=ROOT) as server:
        yield server


def rates() -> list[list[object]]:
    """Requests a second of short responses, and of apps that sleep or compute."""
    cases = [("/small", 4), ("/small", 32), ("/sleep", 32), ("/compute", 32)]
    rows = []
    with gunicorn("gthread") as base, gunicorn(FAST) as fast:
        for path, connections in cases:
            runs = _in_turn({"gthread": base, "fast": fast}, path, connections)
            rows.append([f"{path} x{connections}", *_rate_cells(runs)])
    with (
        gunicorn("gthread", target="whitenoise_app") as base,
        gunicorn(FAST, target="static_app") as fast,
    ):
        runs = _in_turn({"gthread": base, "fast": fast}, "/small.txt", 32)
        rows.append(["StaticFiles 1 KiB / WhiteNoise x32", *_rate_cells(runs)])
    return rows


def tls() -> list[list[object]]:
    """The same over TLS, with wrk's own TLS."""
    import trustme

    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder, "server.pem")
        trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
        options = ("--certfile", str(pem), "--keyfile", str(pem))
        with gunicorn("gthread", *options) as base, gunicorn(FAST, *options) as fast:
            for path, connections in (("/small", 4), ("/small", 32), ("/file", 4)):
                runs = alternate(
                    {
                        name: partial(_wrk_tls, server, path, connections)
                        for name, server in (("gthread", base), ("fast", fast))
                    },
                    rounds=ROUNDS,
                )
                ratio = Ratio.of(runs["fast"], runs["gthread"])
                medians = [f"{statistics.median(runs[name]):,.0f}" for name in runs]
                rows.append([f"TLS {path} x{connections}", *medians, str(ratio), "", ""])
    return rows


def _wrk_tls(server: RunningServer, path: str, connections: int) -> float:
    url = f"https://{server.address[0]}:{server.address[1]}{path}"
    command = ["wrk", "-d", "1s", "-t", "1", "-c", str(connections), url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(next(line.split()[1] for line in out.splitlines() if "Requests/sec" in line))


def files() -> list[list[object]]:
    """10 MiB files: GB/s, and CPU seconds for each GB, beside nginx with and without sendfile."""
    rows = []
    with (
        gunicorn("gthread") as base,
        gunicorn(FAST) as fast,
        nginx(sendfile="on") as nginx_on,
        nginx(sendfile="off") as nginx_off,
    ):
        servers = {"gthread": base, "fast": fast, "nginx on": nginx_on, "nginx off": nginx_off}
        runs = _in_turn(servers, "/file", 4)
        own = runs["fast"]
        for name, results in runs.items():
            rate = statistics.median(r.load.megabytes_per_s for r in results) / 1000
            cpu = statistics.median(r.cpu_s_per_gb for r in results)
            speed = Ratio.of(
                [r.load.megabytes_per_s for r in own], [r.load.megabytes_per_s for r in results]
            )
            cost = Ratio.of([r.cpu_s_per_gb for r in own], [r.cpu_s_per_gb for r in results])
            rows.append([f"10 MiB, {name}", f"{rate:.2f} GB/s", f"{cpu:.3f}", speed, cost])
    return rows


@contextlib.contextmanager
def nginx(sendfile: str) -> Iterator[RunningServer]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    address = ("127.0.0.1", free_port())
    with tempfile.TemporaryDirectory(prefix="wsgifast-nginx-") as folder:
        Path(folder, "file").symlink_to(served_folder() / "large")
        Path(folder).chmod(0o755)
        Path(folder, "conf").write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr; user root;\n"
            "events { worker_connections 4096; }\n"
            f"http {{ access_log off; sendfile {sendfile}; tcp_nopush on; output_buffers 2 512k;\n"
            f" keepalive_requests 1000000; client_body_temp_path {folder}/b;\n"
            f" proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;\n"
            f" uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f" server {{ listen 127.0.0.1:{address[1]}; root {folder}; }} }}\n"
        )
        command = [program, "-e", "stderr", "-c", f"{folder}/conf"]
        with running(command, address, name=f"nginx, sendfile {sendfile}") as server:
            yield server


def slow() -> list[list[object]]:
    """Many slow clients, while another one asks for 1 KiB again and again."""
    rows: list[list[object]] = []
    options = ("--worker-connections", "20000", "--keep-alive", "120")
    with gunicorn(FAST, *options) as server:
        for kind, count in (("downloads", SLOW_DOWNLOADS), ("uploads", SLOW_UPLOADS)):
            crowd = subprocess.Popen(
                [
                    sys.executable, "-m", "loadtests.worker", "crowd", kind, str(count),
                    str(server.address[1]),
                ],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )  # fmt: skip
            assert crowd.stdout is not None
            crowd.stdout.readline()  # all are connected
            times, failures = _probe(server.address)
            said = crowd.communicate()[0]
            times.sort()
            rows.append(
                [
                    f"{count} slow {kind}",
                    f"p50 {times[len(times) // 2] * 1e3:.1f} ms",
                    f"p99 {times[int(len(times) * 0.99)] * 1e3:.1f} ms",
                    f"{failures} failures of {len(times)}",
                    said.strip(),
                ]
            )
    return rows


def _probe(address: tuple[str, int]) -> tuple[list[float], int]:
    times: list[float] = []
    failures = 0
    end = time.monotonic() + PROBE_S
    with socket.create_connection(address, 10) as sock:
        while time.monotonic() < end:
            begun = time.perf_counter()
            sock.sendall(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = b""
            while not answer.endswith(bytes(SMALL_BYTES)):
                data = sock.recv(65_536)
                if not data:
                    failures += 1
                    break
                answer += data
            times.append(time.perf_counter() - begun)
            time.sleep(0.005)
    return times, failures


def crowd(kind: str, count: int, port: int) -> None:
    """Clients that read, or send, 64 KiB a second each; one thread for all of them."""
    block = SLOW_BYTES_PER_S // 4  # four times a second
    upload = kind == "uploads"
    clients: dict[socket.socket, int] = {}
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, block)
        sock.connect(("127.0.0.1", port))
        if upload:
            head = f"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n"
            sock.sendall(head.encode())
        else:
            sock.sendall(b"GET /file HTTP/1.1\r\nHost: a\r\n\r\n")
        sock.setblocking(False)
        clients[sock] = 0
    print("connected", flush=True)
    end = time.monotonic() + PROBE_S
    lost = 0
    data = bytes(block)
    while time.monotonic() < end:
        turn = time.monotonic()
        for sock in clients:
            try:
                if upload and clients[sock] < UPLOAD_BYTES:
                    clients[sock] += sock.send(data[: UPLOAD_BYTES - clients[sock]])
                elif not upload:
                    got = len(sock.recv(block))
                    lost += not got
                    clients[sock] += got
            except BlockingIOError:
                pass
            except OSError:
                lost += 1
        time.sleep(max(0.0, 0.25 - (time.monotonic() - turn)))
    moved = sum(clients.values()) / 1e6 / PROBE_S
    print(f"{moved:.0f} MB/s to or from them, {lost} lost")


def _in_turn(
    servers: dict[str, RunningServer], path: str, connections: int
) -> dict[str, list[Measured]]:
    return alternate(
        {
            name: partial(
                measured,
                server,
                partial(drive_with_wrk, server.address, path, seconds=1, connections=connections),
            )
            for name, server in servers.items()
        },
        rounds=ROUNDS,
    )


def _rate_cells(runs: dict[str, list[Measured]]) -> list[object]:
    rate = {n: [r.load.requests / r.load.seconds for r in runs[n]] for n in runs}
    cost = {n: [r.cpu_us_per_request for r in runs[n]] for n in runs}
    return [
        f"{statistics.median(rate['gthread']):,.0f}",
        f"{statistics.median(rate['fast']):,.0f}",
        str(Ratio.of(rate["fast"], rate["gthread"])),
        f"{statistics.median(cost['fast']):.0f} us",
        str(Ratio.of(cost["fast"], cost["gthread"])),
    ]


HEADINGS = {
    "rates": ["case", "gthread/s", "FastWorker/s", "ratio", "CPU/request", "CPU ratio"],
    "tls": ["case", "gthread/s", "FastWorker/s", "ratio", "", ""],
    "files": ["case", "rate", "CPU s/GB", "FastWorker's rate to it", "its CPU per GB"],
    "slow": ["case", "1 KiB beside it", "", "", "the crowd"],
}


def main() -> None:
    if sys.argv[1:2] == ["crowd"]:
        crowd(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    sections = {"rates": rates, "files": files, "tls": tls, "slow": slow}
    for name in sys.argv[1:] or list(sections):
        rows = sections[name]()
        print(table(HEADINGS[name], [[str(cell) for cell in row] for row in rows]), flush=True)
        save(f"worker-{name}", {"rows": [[str(cell) for cell in row] for row in rows]})


if __name__ == "__main__":
    main()
