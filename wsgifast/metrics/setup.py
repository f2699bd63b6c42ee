"""Sets metrics up for the workers of a server: the address, the directory, and the exporter.

:func:`prepare` chooses the directory, before the app and prometheus_client are imported, and
:func:`check` finds settings that cannot work. FastWorker's arbiter calls both for its workers. Each
worker of uvicorn calls the second for itself. Then each worker calls :func:`start_exporting`, which
also writes the state of its worker for the health probes.

The directory is named after the server's process, so that all of its workers find the same one.

Every worker starts the exporter if there is none. It first locks a file, and the exporter inherits
the lock. So two workers never start two, and after any end the next check finds the lock free.
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

# The environment variable with the address where a server is scraped: one of its own, so that
# metrics are never public by accident.
VARIABLE = "WSGIFAST_METRICS"
# The environment variable that switches prometheus_client to its multiprocess mode.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# The exporter of a server that has just ended gives up its address within this time.
ADDRESS_PATIENCE_S = 3.0

_PREFIX = "wsgifast-metrics-"
# The files leave this much free on their file system: a write to a mapped file on a full one would
# end the process.
_MIN_FREE_BYTES = 16 * 1024 * 1024
_LOCK_FILE = "exporter.lock"
# The file in the directory with the address where the server wants to be scraped. An exporter at
# another address ends.
ADDRESS_FILE = "address"
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from wsgifast.metrics.exporter import main; main(sys.argv[1])"
)
# Between two starts of the exporter, which might end each time at once.
_RESTART_S = 10.0

# The directory that this process, or the one that forked it, has chosen.
_chosen: str | None = None


class Wanted(NamedTuple):
    """The option that enables metrics: its name, for errors, and its value."""

    name: str
    value: object

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}"

    def address(self) -> Address:
        """:raises ConfigurationError: if the value is no address."""
        return metrics_address(self.value, self.name)


def wanted_metrics(option: str, configured: object) -> Wanted | None:
    """Return the option that enables metrics, or None.

    :param option: the server's own, which the environment variable overrides.
    :param configured: its value.
    """
    value = os.environ.get(VARIABLE)
    if value:
        return Wanted(VARIABLE, value)
    return None if configured is None else Wanted(option, configured)


def metrics_address(text: object, name: str = VARIABLE) -> Address:
    """Parse HOST:PORT, [IPV6]:PORT, or a port on 127.0.0.1.

    :param name: of the option, for errors.
    :raises ConfigurationError: if it is none of them.
    """
    address = Address.read(text)
    if address is None or not address.port:
        raise ConfigurationError(
            f"{name}={text!r}: expected a host and a port such as '127.0.0.1:9100' or '[::1]:9100'"
        )
    return address


def prepare(wanted: Wanted, server_pid: int) -> str:
    """Choose the directory of a server's workers, and make it if it is not there.

    :param server_pid: of the process that ends when the server does.
    :raises ConfigurationError: if the option's value is no address, or the directory cannot be
        used.
    :raises MissingExtra: without prometheus_client.
    """
    global _chosen
    wanted.address()
    if find_spec("prometheus_client") is None:
        raise MissingExtra(wanted.name, "prometheus_client", "prometheus")
    given = os.environ.get(DIRECTORY)
    # A server that replaces another one (USR2) may have inherited that one's directory.
    if given and (given == _chosen or not os.path.basename(given).startswith(_PREFIX)):
        return given
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
    """Check that the metrics of a server can be gathered and served.

    :returns: the directory. See :func:`prepare`.
    :raises ConfigurationError: if the address is in use, if no file can be written in the
        directory, and for the errors of :func:`prepare`.
    :raises MissingExtra: without prometheus_client.
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
    # The server that this one replaces has the address still, or one of its own workers.
    if "GUNICORN_PID" not in os.environ and not has_exporter(directory):
        try:
            _check_free(wanted)
        except ConfigurationError:
            if not has_exporter(directory):  # else a worker has started it meanwhile
                raise
    return directory


def hand_over(directory: str, uid: int, gid: int) -> None:
    """Give the directory to the workers' user, if it was chosen by a server of root's."""
    if directory == _chosen and os.geteuid() == 0:
        os.chown(directory, uid, gid)


def check_space(directory: str) -> None:
    """:raises OSError: if the disk is too full to write metrics, so that those written are old."""
    at = os.statvfs(directory)
    if at.f_bavail * at.f_frsize < _MIN_FREE_BYTES:
        raise OSError(
            errno.ENOSPC, f"less than {_MIN_FREE_BYTES} bytes are free for metrics", directory
        )


def _check_free(wanted: Wanted) -> None:
    """Wait for an address that the exporter of a server before this one may still have.

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
    """A folder on a file system in memory, if there is one: writes to a disk may block."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _make_ours(directory: str) -> bool:
    """Make a directory. Return False if another worker has made it.

    :raises OSError: if it belongs to another user.
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
    """Whether its exporter or a worker lives. With `daemon` the process that made it has ended."""
    try:
        return bool(processes(directory)) or has_exporter(directory)
    except OSError:  # it is another user's, or is being removed
        return True


class Export(NamedTuple):
    """The task of an exporter. The exporter gets it as JSON.

    :ivar directory: of prometheus_client's multiprocess mode.
    :ivar own: whether it was made for this server, and is removed with it.
    :ivar address: where to serve it.
    :ivar arbiter: the process that ends with the server.
    """

    directory: str
    own: bool
    address: str
    arbiter: str

    def announce(self) -> None:
        """Write the address where the server wants to be scraped into the directory.

        :raises OSError: if that cannot be.
        """
        fd, made = tempfile.mkstemp(dir=self.directory, suffix=".tmp")
        with open(fd, "w") as file:
            file.write(self.address)
        os.replace(made, os.path.join(self.directory, ADDRESS_FILE))


def has_exporter(directory: str) -> bool:
    """Whether a directory has an exporter at the moment.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        lock = _take_lock(directory, os.O_RDWR)
    except FileNotFoundError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def _take_lock(directory: str, flags: int) -> int | None:
    """Return the lock as a descriptor for the exporter to inherit, or None if it is locked.

    :raises OSError: if it cannot be opened.
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
    """Once a second, start the exporter if there is none, and write this worker's state for it.

    Each worker writes the address: a reload of the configuration may have changed it.

    :param server_pid: as for :func:`check`, which has been called.
    :param state: returns the state.
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
        """Start one if there is none. Called now and then.

        :raises OSError: if none can be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        now = time.monotonic()
        if now < self._started_at + _RESTART_S:
            return
        lock = _take_lock(self._export.directory, os.O_RDWR | os.O_CREAT)
        if lock is None:
            return  # another worker's exporter lives
        try:
            self._start(lock)
            self._started_at = now
        finally:
            os.close(lock)

    def _start(self, lock: int) -> None:
        # Not `-m`: a module in the working directory must not be taken for one of ours. Nor, where
        # an app has an `email`, for one of Python's own.
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
