"""Set up metrics for the workers of a server: the address, the directory, and the exporter.

:func:`prepare` chooses the directory. It must be called before the app imports prometheus_client.
:func:`check` finds invalid settings. FastWorker's arbiter calls both for its workers. Each worker
of uvicorn calls :func:`check`. Then each worker calls :func:`start_exporting`, which also writes
the state of the worker for the health probes.

The directory is named after the server's process, so that all its workers find the same directory.

A worker starts the exporter if there is none. The worker first locks a file, and the exporter
inherits the lock. So two workers never start two exporters. When an exporter ends, its lock is
released, and the next check starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import glob
import json
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from ..errors import ConfigurationError, MissingExtra
from ..sockets.options import Address
from .collecting import every_second
from .health import State, StateFile, is_alive, name_of_process, processes

# The environment variable with the address of the metrics. They have their own address, so that
# they are not public by accident.
VARIABLE = "WSGIFAST_METRICS"
# The environment variable that switches prometheus_client to its multiprocess mode.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# The exporter of an ended server closes its listener within this time.
ADDRESS_PATIENCE_S = 3.0

_PREFIX = "wsgifast-metrics-"
# Metrics are written only while the file system has this much free space. On a full file system, a
# write to a mapped file would kill the process.
_MIN_FREE_BYTES = 16 * 1024 * 1024
_LOCK_FILE = "exporter.lock"
# The file in the directory with the server's current metrics address. An exporter at another
# address ends.
ADDRESS_FILE = "address"
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from wsgifast.metrics.exporter import main; main(sys.argv[1])"
)
# The minimum time between two starts of an exporter that fails at once.
_RESTART_S = 10.0

# The directory that this process or its parent has chosen.
_chosen: str | None = None


class Wanted(NamedTuple):
    """The option that enables metrics: its name for error messages, and its value."""

    name: str
    value: object

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}"

    def address(self) -> Address:
        """Return the value as an address.

        :raises ConfigurationError: if the value is not an address.
        """
        return metrics_address(self.value, self.name)


def wanted_metrics(option: str, configured: object) -> Wanted | None:
    """Return the option that enables metrics, or None.

    :param option: the name of the server's option. The environment variable overrides it.
    :param configured: the value of the server's option.
    """
    value = os.environ.get(VARIABLE)
    if value:
        return Wanted(VARIABLE, value)
    return None if configured is None else Wanted(option, configured)


def metrics_address(text: object, name: str = VARIABLE) -> Address:
    """Parse HOST:PORT, [IPV6]:PORT, or a port on 127.0.0.1.

    :param name: the name of the option for error messages.
    :raises ConfigurationError: if the text has another form.
    """
    address = Address.read(text)
    if address is None or not address.port:
        raise ConfigurationError(
            f"{name}={text!r}: expected a host and a port such as '127.0.0.1:9100' or '[::1]:9100'"
        )
    return address


def prepare(wanted: Wanted, server_pid: int) -> str:
    """Choose the directory of a server's workers, and make it if it does not exist.

    :param server_pid: the pid of the process that ends last, such as the arbiter.
    :raises ConfigurationError: if the option's value is not an address, or if the directory cannot
        be used.
    :raises MissingExtra: if prometheus_client is not installed.
    """
    global _chosen
    wanted.address()
    if find_spec("prometheus_client") is None:
        raise MissingExtra(wanted.name, "prometheus_client", "prometheus")
    existing = os.environ.get(DIRECTORY)
    # After USR2, a new server inherits the variable with the directory of the old server.
    if existing and (existing == _chosen or not os.path.basename(existing).startswith(_PREFIX)):
        return existing
    parent = _memory_folder()
    directory = os.path.join(parent, f"{_PREFIX}{name_of_process(server_pid)}")
    try:
        is_new = _make_ours(directory)
    except OSError as error:
        raise ConfigurationError(
            f"{wanted}: the directory {directory!r} cannot be used: {error.strerror}"
        ) from None
    if is_new:
        _remove_stale(parent)
        if server_pid == os.getpid():
            atexit.register(_remove, directory, server_pid)
    _chosen = os.environ[DIRECTORY] = directory
    return directory


def check(wanted: Wanted, server_pid: int) -> str:
    """Check that metrics can be written and served. For parameters see :func:`prepare`.

    :returns: the directory.
    :raises ConfigurationError: if the address is in use, if no file can be written in the
        directory, or for the reasons of :func:`prepare`.
    :raises MissingExtra: if prometheus_client is not installed.
    """
    directory = prepare(wanted, server_pid)
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{wanted}: metrics are gathered in {DIRECTORY}={directory!r}, where no file can be "
            f"written: {error.strerror}"
        ) from None
    # The check is skipped while an old server that is being replaced, or an exporter of this
    # server, uses the address.
    if "GUNICORN_PID" not in os.environ and not has_exporter(directory):
        try:
            _check_free(wanted)
        except ConfigurationError:
            if not has_exporter(directory):  # a worker may have started it meanwhile
                raise
    return directory


def give_to_user(directory: str, uid: int, gid: int) -> None:
    """Make the workers' user the owner of the directory, if a server of root has chosen it."""
    if directory == _chosen and os.geteuid() == 0:
        os.chown(directory, uid, gid)


def check_space(directory: str) -> None:
    """Check that the disk has enough space to write metrics.

    :raises OSError: if the space is not enough. Then the values in the files are old.
    """
    at = os.statvfs(directory)
    if at.f_bavail * at.f_frsize < _MIN_FREE_BYTES:
        raise OSError(
            errno.ENOSPC, f"less than {_MIN_FREE_BYTES} bytes are free for metrics", directory
        )


def _check_free(wanted: Wanted) -> None:
    """Wait until the address is free. The exporter of an ended server may still use it.

    :raises ConfigurationError: if the address cannot be used.
    """
    address = wanted.address()
    deadline = time.monotonic() + ADDRESS_PATIENCE_S
    while True:
        try:
            address.check_free()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise ConfigurationError(f"{wanted}: {error.strerror}") from None
            time.sleep(0.1)
        else:
            return


def _memory_folder() -> str:
    """Return a folder in memory if there is one, because writes to a disk may block."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _make_ours(directory: str) -> bool:
    """Make a directory. Return False if another worker has made it.

    :raises OSError: if the directory belongs to another user.
    """
    is_new = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
        is_new = True
    found = os.stat(directory, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's", directory)
    return is_new


def _remove(directory: str, maker: int) -> None:
    if os.getpid() == maker:  # not in its workers
        shutil.rmtree(directory, ignore_errors=True)


def _remove_stale(parent: str) -> None:
    """Remove directories of servers that were killed together with their exporter."""
    for directory in glob.glob(os.path.join(glob.escape(parent), f"{_PREFIX}*")):
        server = os.path.basename(directory).removeprefix(_PREFIX)
        if not is_alive(server) and not _is_in_use(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _is_in_use(directory: str) -> bool:
    """Return whether an exporter or a worker uses a directory, even if the server has ended."""
    try:
        return bool(processes(directory)) or has_exporter(directory)
    except OSError:  # it belongs to another user, or is being removed
        return True


class Export(NamedTuple):
    """The arguments of an exporter process, which are passed as JSON.

    :ivar directory: the directory of prometheus_client's multiprocess mode.
    :ivar own: whether the directory was made for this server, and is removed when the server has
        ended.
    :ivar address: the address to listen on.
    :ivar arbiter: the name of the process that ends last.
    """

    directory: str
    own: bool
    address: str
    arbiter: str

    def announce(self) -> None:
        """Write the address of the metrics into the directory.

        :raises OSError: if the file cannot be written.
        """
        fd, temporary = tempfile.mkstemp(dir=self.directory, suffix=".tmp")
        with open(fd, "w") as file:
            file.write(self.address)
        os.replace(temporary, os.path.join(self.directory, ADDRESS_FILE))


def has_exporter(directory: str) -> bool:
    """Return whether an exporter of a directory runs now.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        lock = _lock_exporter(directory, os.O_RDWR)
    except FileNotFoundError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def _lock_exporter(directory: str, flags: int) -> int | None:
    """Lock the lock file. Return its descriptor for the exporter, or None if it is already locked.

    :raises OSError: if the file cannot be opened.
    """
    lock = os.open(os.path.join(directory, _LOCK_FILE), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def start_exporting(wanted: Wanted, server_pid: int, state: Callable[[], State]) -> None:
    """Start the exporter if there is none, and write this worker's state for it, once a second.

    Each worker writes the address, because a reload of the configuration may have changed it.

    :param server_pid: see :func:`check`, which must be called first.
    :param state: returns the current state of the worker.
    :raises OSError: if the address cannot be written.
    """
    export = _export_of(wanted, server_pid)
    export.announce()
    file = StateFile(export.directory)
    every_second.add(_Supervisor(export).check)
    every_second.add(lambda: file.update(state()))
    every_second.start()


def _export_of(wanted: Wanted, server_pid: int) -> Export:
    directory = os.environ[DIRECTORY]
    own = directory == _chosen
    return Export(directory, own, str(wanted.address()), name_of_process(server_pid))


class _Supervisor:
    """Starts the exporter if there is none."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -math.inf

    def check(self) -> None:
        """Start an exporter if there is none. It is called once a second.

        :raises OSError: if the exporter cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        now = time.monotonic()
        if now < self._started_at + _RESTART_S:
            return
        lock = _lock_exporter(self._export.directory, os.O_RDWR | os.O_CREAT)
        if lock is None:
            return  # an exporter of another worker runs
        try:
            self._start(lock)
            self._started_at = now
        finally:
            os.close(lock)

    def _start(self, lock: int) -> None:
        # With `-m`, modules in the working directory would replace those of wsgifast. Python's
        # folders are first, because an app may have a module with the name of a module of Python,
        # such as `email`.
        own = os.path.dirname(os.__file__)
        path = sorted(
            map(os.path.abspath, sys.path),
            key=lambda each: not each.startswith(own) or each.endswith("-packages"),
        )
        program = _PROGRAM.format(path=path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(self._export)],
            stdin=subprocess.DEVNULL,
            pass_fds=[lock],
        )
