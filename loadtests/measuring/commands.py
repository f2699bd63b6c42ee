"""The command lines of the servers that benchmarks run most."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["gunicorn_command", "waitress_command"]


def gunicorn_command(
    app: str,
    address: tuple[str, int],
    *,
    worker_class: str = "gthread",
    threads: int = 4,
    workers: int = 1,
    options: Sequence[str] = (),
) -> list[str]:
    """gunicorn, with one worker process: on a small machine the client needs a core too.

    :param app: what gunicorn takes: "module:app", or "module:factory('argument')".
    :param threads: of a gthread-like worker; other workers have none and ignore it.
    :param options: added at the end, such as ("--no-sendfile",).
    """
    return [
        *("python", "-m", "gunicorn", app),
        *("--bind", f"{address[0]}:{address[1]}"),
        *("--worker-class", worker_class, "--threads", str(threads), "--workers", str(workers)),
        # The defaults of 2 s and 30 s would end a paused client's connection, or a slow raw app.
        *("--keep-alive", "30", "--timeout", "120", "--graceful-timeout", "3"),
        *("--log-level", "warning", *options),
    ]


def waitress_command(app: str, address: tuple[str, int], *, threads: int = 4) -> list[str]:
    """waitress, for an app named "module:app"."""
    listen = f"--listen={address[0]}:{address[1]}"
    return ["python", "-m", "waitress", listen, f"--threads={threads}", app]
