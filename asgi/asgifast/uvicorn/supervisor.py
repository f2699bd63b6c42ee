"""Run uvicorn's command with a supervisor for one or more workers.

    python -m asgifast.uvicorn --http asgifast.uvicorn:HttpToolsProtocol module:app

uvicorn's own supervisor runs only for two or more workers. Without a supervisor, SIGHUP ends the
server, and `--host ::` does not listen on IPv4. If the startup fails, uvicorn's supervisor exits
with status 0. With an older version of uvicorn, which lacks names that this supervisor uses,
uvicorn's own supervisor runs, and a warning is logged.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from click import ClickException
from uvicorn.config import Config
from uvicorn.supervisors import multiprocess

from wsgifast.bodies.access_log import report_in_json
from wsgifast.hosts import UVICORN

from ..json_log import CONFIGURATION

logger = logging.getLogger("uvicorn.error")

# uvicorn's exit status of a worker that fails before it serves, because of its app, TLS or address.
_STARTUP_FAILURE = 3
_OLDER = (
    "This version of uvicorn lacks %s, so uvicorn's own supervisor is used. SIGHUP ends a server "
    "with one worker, and systemd's Type=notify does not work. Install uvicorn " + UVICORN.newest
)
# The time in which a new worker may import a large app, while the old worker serves.
_START_S = 30


class _Worker(multiprocess.Process):
    """A worker that ends with _STARTUP_FAILURE if it could not start.

    :ivar drains: whether the whole server ends. Each worker then serves for `drain_delay_s` before
        it ends.
    """

    drains = False

    def terminate(self) -> None:
        """End the worker.

        If the server continues with other workers, a SIGINT makes this worker skip the drain.
        """
        if not self.drains and self.process.exitcode is None and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGINT)
        super().terminate()

    def target(self, sockets: Any = None) -> None:
        try:
            super().target(sockets)
        except Exception:
            logger.critical("The worker could not start", exc_info=True)
        if not self.server.started:
            sys.exit(_STARTUP_FAILURE)


class _Supervisor(multiprocess.Multiprocess):
    """uvicorn's supervisor.

    In addition, it ends if a worker cannot start, and it notifies systemd.
    """

    _is_ready = False

    @property
    def startup_failed(self) -> bool:
        """Whether a worker could not start. A new worker could not start for the same reason."""
        return any(each.process.exitcode == _STARTUP_FAILURE for each in self.processes)

    def keep_subprocess_alive(self) -> None:
        if self.startup_failed and not self.should_exit.is_set():
            logger.error("A worker could not start: the server ends")
            self.should_exit.set()
        super().keep_subprocess_alive()
        if not self._is_ready and not self.should_exit.is_set():
            self._is_ready = all(each.is_ready() for each in self.processes)
            if self._is_ready:
                _notify_systemd("READY=1\nSTATUS=All workers serve")

    def terminate_all(self) -> None:
        _Worker.drains = True
        super().terminate_all()

    def restart_all(self) -> None:
        usual_s = self.config.timeout_worker_healthcheck
        self.config.timeout_worker_healthcheck = max(usual_s, _START_S)
        try:
            super().restart_all()
        finally:
            self.config.timeout_worker_healthcheck = usual_s


def _notify_systemd(state: str) -> None:
    """Send the state of the service to systemd, if the unit has `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # "@" represents the zero byte of an abstract socket.
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.connect(path)
            notified.send(state.encode())
    except OSError as error:
        logger.error("Cannot notify systemd at NOTIFY_SOCKET=%s: %s", address, error)


def _serve(app: str, *, app_dir: str | None = None, **options: Any) -> None:
    """Do what uvicorn.run() does, with the supervisor."""
    if app_dir is not None:
        sys.path.insert(0, app_dir)
    config = Config(app, **options)
    supervisor = _Supervisor(config, sockets=_listeners(config))
    try:
        supervisor.run()
    finally:
        if config.uds:
            _remove_socket(config.uds)
    if supervisor.startup_failed:
        sys.exit(_STARTUP_FAILURE)


def _listeners(config: Config) -> list[socket.socket]:
    """Return the sockets to listen on: for all addresses (`::`), one for IPv4 and one for IPv6.

    A single IPv6 socket would report IPv4 clients as ::ffff:a.b.c.d, and `forwarded_allow_ips`
    contains a.b.c.d.
    """
    if config.uds is not None or config.fd is not None or config.host != "::":
        return [config.bind_socket()]
    config.host = "0.0.0.0"
    sockets = [config.bind_socket()]
    config.host, config.port = "::", sockets[0].getsockname()[1]
    sockets.append(socket.socket(socket.AF_INET6))
    sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sockets[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sockets[1].bind((config.host, config.port))
    except OSError as error:
        logger.error("Cannot listen on [::]:%d: %s", config.port, error.strerror)
        sys.exit(1)
    sockets[1].set_inheritable(True)
    return sockets


def _remove_socket(path: str) -> None:
    """Remove the Unix socket of an earlier server.

    :raises ClickException: if the path is another kind of file. uvicorn would remove it when it
        ends.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ClickException(
                f"--uds {path}: this file is not a socket, and is not replaced. Name another path"
            )
        os.remove(path)


def main() -> None:
    """Run uvicorn's command, which parses the options and calls the replaced run()."""
    command = import_module("uvicorn.main")
    uvicorns_run = command.run
    missing = UVICORN.missing("supervisor")

    def run(app: str, **options: Any) -> None:
        if options["log_config"] == CONFIGURATION:
            report_in_json()
        if options["uds"]:
            _remove_socket(options["uds"])
        if missing:
            Config(app, **{name: value for name, value in options.items() if name != "app_dir"})
            logger.warning(_OLDER, ", ".join(missing))  # after Config() has configured the log
        (uvicorns_run if options["reload"] or missing else _serve)(app, **options)

    command.run = run  # type: ignore[attr-defined]
    if not missing:
        multiprocess.Process = _Worker  # type: ignore[misc]
    command.main(prog_name="python -m asgifast.uvicorn")
