"""The servers that stand beside ours, each tuned as its documentation says.

python -m loadtests.peers nginx PORT FOLDER [--sendfile on|off]

writes nginx's configuration and becomes nginx.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .bench import FAST_WORKER as FAST
from .bench import HOST, Server
from .command import command_line
from .shapes import PAYLOADS, SLOW_FILE_VARIABLE

__all__ = [
    "FAST",
    "anycorn",
    "bare_receive",
    "bare_sendfile",
    "daphne",
    "granian",
    "gunicorn_asgi",
    "hypercorn",
    "nginx",
    "uvicorn",
]

OUR_PROTOCOL = "--http=asgifast.uvicorn:HttpToolsProtocol"
# nginx.org/en/docs/http/ngx_http_core_module.html: sendfile with tcp_nopush for whole packets; a
# bounded sendfile_max_chunk, so that no quick client keeps the worker; without sendfile, large
# output buffers. It is one worker process, as every contender is.
_NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit; user {user};
worker_rlimit_nofile {files};
events {{ worker_connections {files}; multi_accept on; }}
http {{
  access_log off; sendfile {sendfile}; aio {aio}; sendfile_max_chunk 512k;
  tcp_nopush on; tcp_nodelay on;
  output_buffers 2 512k; keepalive_timeout 120s; keepalive_requests 10000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen {host}:{port} backlog=2048; root {payloads}; default_type application/octet-stream;
    location /slow-disk {{ alias {slow}; }}
    location /upload {{ client_max_body_size 1g; proxy_pass http://{host}:{port}/1024.bin; }}
  }}
}}
"""


def nginx(
    *, sendfile: bool = True, aio: bool = False, env: Mapping[str, str] | None = None
) -> Server:
    """nginx with the payload files: /10485760.bin has so many bytes. /slow-disk, /upload too.

    :param aio: reads are done by threads, as its documentation advises for disks that are slow.
    """
    option = f"--sendfile={'on' if sendfile else 'off'}"
    more = ("--aio",) if aio else ()
    argv = ("python", "-m", "loadtests.peers", "nginx", "{port}", "{folder}", option, *more)
    return Server(argv, tuple((env or {}).items()))


def bare_sendfile(size: int) -> Server:
    """The bound: a loop of epoll and sendfile, with the payload file of so many bytes."""
    file = str(PAYLOADS / f"{size}.bin")
    return Server(("python", "-m", "loadtests.bare_sendfile", "{port}", file))


def bare_receive() -> Server:
    """The bound for uploads: a loop of recv_into()."""
    return Server(("python", "-m", "loadtests.bare_receive", "{port}"))


def uvicorn(app: str, *options: str, ours: bool = False) -> Server:
    """uvicorn; it takes uvloop and httptools by itself, as they are installed.

    :param ours: with asgifast's protocol.
    """
    return Server(
        (
            *("python", "-m", "uvicorn", "--no-access-log", "--log-level=warning"),
            *("--port={port}", *options, *([OUR_PROTOCOL] if ours else []), app),
        )
    )


def granian(app: str, *, interface: str = "asgi", workers: int = 1) -> Server:
    return Server(
        (
            *("python", "-m", "granian", f"--interface={interface}", "--no-ws"),
            *("--log-level=warning", f"--workers={workers}", "--port={port}", app),
        )
    )


def hypercorn(app: str, loop: str) -> Server:
    bind = f"--bind={HOST}:{{port}}"
    return Server(
        ("python", "-m", "hypercorn", f"--worker-class={loop}", "--log-level=error", bind, app)
    )


def anycorn(app: str) -> Server:
    """anycorn on trio: on asyncio it breaks off files that are larger than the send buffer."""
    options = ("--worker-class=trio", "--workers=0", "--log-level=error", f"--bind={HOST}:{{port}}")
    return Server(("python", "-m", "anycorn", *options, app))


def daphne(app: str) -> Server:
    return Server(
        ("python", "-m", "daphne", "--verbosity=0", f"--bind={HOST}", "--port={port}", app)
    )


def gunicorn_asgi(app: str, worker: str = "asgi") -> Server:
    """One of gunicorn's ASGI workers."""
    command = f"python -m gunicorn --worker-class {worker} --no-control-socket --log-level error"
    return Server((*command.split(), "--bind", f"{HOST}:{{port}}", app))


def main() -> None:
    parser = command_line("loadtests.peers", __doc__)
    parser.add_argument("server", choices=["nginx"])
    parser.add_argument("port", type=int, help=f"on {HOST}")
    parser.add_argument("folder", help="for nginx's own files; a new one is made in it")
    parser.add_argument("--sendfile", choices=["on", "off"], default="on", help="nginx's setting")
    parser.add_argument("--aio", action="store_true", help="its aio threads")
    given = parser.parse_args()
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light (Debian, Ubuntu)")
    folder = tempfile.mkdtemp(dir=given.folder)
    conf = Path(folder, "nginx.conf")
    conf.write_text(
        _NGINX.format(
            folder=folder,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            files=16_384,
            sendfile=given.sendfile,
            aio="threads" if given.aio else "off",
            host=HOST,
            port=given.port,
            payloads=PAYLOADS,
            slow=os.environ.get(SLOW_FILE_VARIABLE, "/nonexistent"),
        )
    )
    os.execv(program, [program, "-e", "stderr", "-c", str(conf)])


if __name__ == "__main__":
    main()
