"""Make the commands of gunicorn and uvicorn as contenders."""

from __future__ import annotations

from collections.abc import Mapping

from wsgifast.commands.bench.processes import Server
from wsgifast.commands.bench.serving import GUNICORN, OUR_PROTOCOL, UVICORN


def gunicorn(
    app: str,
    *options: str,
    worker_class: str = "gthread",
    threads: int = 4,
    workers: int = 1,
    tls: bool = False,
    env: Mapping[str, str] | None = None,
) -> Server:
    """Return gunicorn's command. By default, it has one worker, so that the client also has a core.

    :param app: "module:app", or "module:factory('argument')".
    :param options: further options, such as "--no-sendfile".
    :param tls: whether to use TLS with the certificate "{folder}/server.pem".
    """
    pem = ("--certfile", "{folder}/server.pem", "--keyfile", "{folder}/server.pem")
    return Server(
        (
            *(*GUNICORN, app, "--worker-class", worker_class, "--threads", str(threads)),
            *("--workers", str(workers), *(pem if tls else ()), *options),
        ),
        tuple((env or {}).items()),
        tls,
    )


def uvicorn(
    app: str, *options: str, ours: bool = False, env: Mapping[str, str] | None = None
) -> Server:
    """Return uvicorn's command. uvicorn uses uvloop and httptools if they are installed.

    :param ours: whether to use asgifast's protocol.
    """
    protocol = (f"--http={OUR_PROTOCOL}",) if ours else ()
    return Server((*UVICORN, *protocol, *options, app), tuple((env or {}).items()))
