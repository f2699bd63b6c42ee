"""FastWorker beside gunicorn's gthread worker, and beside nginx for large files.

python -m loadtests.worker [rates] [files] [tls] [slow]

One worker process and four threads each; the contenders take turns. wrk is the client; it shares
the machine with the server, so the server's CPU time stands beside each rate. Large files are
received by clients that read 8 KiB at a time (wrk, which is then busier than the servers), 64 KiB
and 256 KiB; beside the servers stands the bound, a bare loop of epoll and sendfile.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.command_line import command_line
from loadtests.measuring import (
    Load,
    Measured,
    Ratio,
    RunningServer,
    alternate,
    drive,
    drive_with_wrk,
    free_port,
    gunicorn_command,
    measured,
    running,
    save,
    table,
    temporary_folder,
)
from loadtests.measuring.children import start

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ROOT = Path(__file__).resolve().parents[1]
FAST = "wsgifast.workers.FastWorker"
ROUNDS = 5
FILE_BYTES = 10 * 1024 * 1024
SMALL_BYTES = 1024
FILE_RUN_S = 0.6
SLOW_BYTES_PER_S = 64 * 1024
SLOW_DOWNLOADS = (2000, 10_000)
SLOW_UPLOADS = 200
UPLOAD_BYTES = 1024 * 1024
PROBE_S = 8.0


# Names the folder to the servers, which are processes of their own.
FOLDER_VARIABLE = "WSGIFAST_SERVED_FOLDER"


@cache
def served_folder() -> Path:
    """The folder with a large and a small file that all servers share; removed at the end."""
    if FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    folder = Path(tempfile.mkdtemp(prefix="wsgifast-worker-"))
    atexit.register(shutil.rmtree, folder)
    # Not a hole: pages of its own, as a file has that was written.
    (folder / "large").write_bytes(os.urandom(FILE_BYTES))
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
    env = {FOLDER_VARIABLE: str(served_folder())}
    with running(command, address, env=env, cwd=ROOT) as server:
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
    with temporary_folder("tls") as folder:
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
    """10 MiB files: GB/s, and CPU seconds for each GB, by how much the client reads at a time."""
    rows: list[list[object]] = []
    with (
        gunicorn("gthread") as base,
        gunicorn(FAST) as fast,
        nginx(sendfile="on") as nginx_on,
        nginx(sendfile="off") as nginx_off,
        bare_sendfile() as bare,
    ):
        servers = {
            "FastWorker": fast,
            "gthread": base,
            "nginx, sendfile on": nginx_on,
            "nginx, sendfile off": nginx_off,
            "bare sendfile loop": bare,
        }
        for client, load in FILE_CLIENTS.items():
            runs = alternate(
                {
                    name: partial(measured, server, partial(load, server.address))
                    for name, server in servers.items()
                },
                rounds=ROUNDS,
            )
            own = runs["FastWorker"]
            for name, results in runs.items():
                rate = statistics.median(r.load.megabytes_per_s for r in results) / 1000
                cpu = statistics.median(r.cpu_s_per_gb for r in results)
                speed = Ratio.of(
                    [r.load.megabytes_per_s for r in own], [r.load.megabytes_per_s for r in results]
                )
                cost = Ratio.of([r.cpu_s_per_gb for r in own], [r.cpu_s_per_gb for r in results])
                rows.append([client, name, f"{rate:.2f}", f"{cpu:.3f}", speed, cost])
    return rows


def _receive_file(address: tuple[str, int], receive_bytes: int) -> Load:
    return drive(
        address, "/file", seconds=FILE_RUN_S, connections=4, receive_bytes=receive_bytes,
        body_bytes=FILE_BYTES,
    )  # fmt: skip


FILE_CLIENTS: dict[str, Callable[[tuple[str, int]], Load]] = {
    "8 KiB (wrk)": partial(drive_with_wrk, path="/file", seconds=1, connections=4),
    "64 KiB": partial(_receive_file, receive_bytes=64 * 1024),
    "256 KiB": partial(_receive_file, receive_bytes=256 * 1024),
}


@contextlib.contextmanager
def bare_sendfile() -> Iterator[RunningServer]:
    address = ("127.0.0.1", free_port())
    file = str(served_folder() / "large")
    command = ["python", "-m", "loadtests.bare_sendfile", str(address[1]), file]
    with running(command, address, cwd=ROOT, name="the bare sendfile loop") as server:
        yield server


@contextlib.contextmanager
def nginx(sendfile: str) -> Iterator[RunningServer]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    address = ("127.0.0.1", free_port())
    with temporary_folder("nginx") as folder:
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
    most = (_open_files() - 200) // 2  # a socket and a file for each download
    crowds = [("downloads", min(count, most)) for count in SLOW_DOWNLOADS]
    crowds.append(("uploads", SLOW_UPLOADS))
    options = ("--worker-connections", "20000", "--keep-alive", "120")
    for kind, count in crowds:
        with gunicorn(FAST, *options) as server:
            crowd = start(
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
                    f"{count:,} slow {kind}",
                    f"p50 {times[len(times) // 2] * 1e3:.1f} ms",
                    f"p99 {times[int(len(times) * 0.99)] * 1e3:.1f} ms",
                    f"{failures} failures of {len(times)}",
                    said.strip(),
                ]
            )
    return rows


def _open_files() -> int:
    """Allow this process, and those that it starts, as many open files as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


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
        # Twice what is read at a time: packets of a large file fill it badly, and at half the rate.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * block)
        sock.connect(("127.0.0.1", port))
        if upload:
            head = f"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n"
            sock.sendall(head.encode())
        else:
            sock.sendall(b"GET /file HTTP/1.1\r\nHost: a\r\n\r\n")
        sock.setblocking(False)
        clients[sock] = 0
    print("connected", flush=True)
    begun = time.monotonic()
    lost = 0
    data = bytes(block)
    buffer = bytearray(block)
    while time.monotonic() < begun + PROBE_S:
        turn = time.monotonic()
        for sock, done in clients.items():
            try:
                if not upload:
                    got = sock.recv_into(buffer)
                    lost += not got
                    clients[sock] += got
                elif done < UPLOAD_BYTES:
                    clients[sock] += sock.send(data[: UPLOAD_BYTES - done])
            except BlockingIOError:
                pass
            except OSError:
                lost += 1
        time.sleep(max(0.0, 0.25 - (time.monotonic() - turn)))
    rate = sum(clients.values()) / count / (time.monotonic() - begun) / 1024
    print(f"{rate:.0f} KiB/s each, {lost} lost")


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
    "files": ["client reads", "server", "GB/s", "CPU s/GB", "FastWorker's rate to it", "its CPU"],
    "slow": ["case", "1 KiB beside it", "", "", "the crowd"],
}


def main() -> None:
    if sys.argv[1:2] == ["crowd"]:
        crowd(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    sections = {"rates": rates, "files": files, "tls": tls, "slow": slow}
    parser = command_line("loadtests.worker", __doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"of {', '.join(sections)}; all without one"
    )
    wanted = parser.parse_args().sections or list(sections)
    if unknown := [name for name in wanted if name not in sections]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(sections)}")
    for name in wanted:
        rows = sections[name]()
        print(table(HEADINGS[name], [[str(cell) for cell in row] for row in rows]), flush=True)
        save(f"worker-{name}", {"rows": [[str(cell) for cell in row] for row in rows]})


if __name__ == "__main__":
    main()
