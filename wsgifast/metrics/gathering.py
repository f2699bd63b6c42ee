"""Metrics of workers whose server settles nothing for them: they find each other by themselves.

The directory is named for the server's process, so all of its workers have the same one. Whichever
of them finds no exporter starts it (see keeper.py), and that ends with the server's process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, MissingExtra
from ..sockets.address import Address
from .address import VARIABLE, metrics_address
from .exporter_lock import has_exporter
from .periodic import every_second
from .points import Point, point, process_collectors
from .processes import name_of_process, resident_bytes
from .states import State, StateFile

if TYPE_CHECKING:
    from .exporter import Export
    from .requests import RequestMetrics

__all__ = ["begin_to_tell", "check_free", "gather", "memory_folder"]

# prometheus_client's own name for the directory of its multiprocess mode.
_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# The exporter of a server that has just ended gives the address up within this time.
_ADDRESS_PATIENCE_S = 3.0


def gather(server_pid: int) -> Export | None:
    """Choose the directory of a server's workers; called in each of them, before the app, and
    prometheus_client, are imported.

    :param server_pid: of the process that ends when the server does.
    :returns: None if WSGIFAST_METRICS says of no address.
    :raises ConfigurationError: for what is no address, or is taken, and for a directory that cannot
        be written.
    :raises MissingExtra: without prometheus_client.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    address = metrics_address(text)
    if find_spec("prometheus_client") is None:
        raise MissingExtra(VARIABLE, "prometheus_client", "prometheus")
    name = name_of_process(server_pid)
    given = os.environ.get(_DIRECTORY)
    directory = given or os.path.join(memory_folder(), f"wsgifast-metrics-{name}-workers")
    try:
        if not given:
            _make_ours(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{VARIABLE}={text!r}: metrics are gathered in {_DIRECTORY}={directory!r}, where no "
            f"file can be written: {error.strerror}"
        ) from None
    os.environ[_DIRECTORY] = directory
    from .exporter import Export

    export = Export(directory, not given, str(address), name)
    if not has_exporter(directory):
        try:
            check_free(address, _ADDRESS_PATIENCE_S)
        except OSError as error:
            # Unless another worker's exporter has come meanwhile.
            if not has_exporter(directory):
                raise ConfigurationError(f"{VARIABLE}={text!r}: {error.strerror}") from None
    export.announce()
    return export


def begin_to_tell(export: Export, state: Callable[[], State]) -> RequestMetrics:
    """Tell of this process from now on: of its requests, and how it is.

    :param state: asked once a second.
    :returns: what requests are recorded in.
    """
    from .keeper import Keeper
    from .prometheus import recorder

    process_collectors.append(_worker_points)
    every_second.add(Keeper(export).look)
    file = StateFile(export.directory)
    every_second.add(partial(_write, file, state))
    metrics = recorder()
    every_second.start()
    return metrics


def memory_folder() -> str:
    """Memory, where there is a file system of it: a disk would keep who writes waiting."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK | os.X_OK) else tempfile.gettempdir()


def check_free(address: Address, patience_s: float) -> None:
    """:raises OSError: if nobody can be served there, and nobody gives it up within that time."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            address.check_free()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _make_ours(directory: str) -> None:
    """Make it, or find that another worker has.

    :raises OSError: if it is another user's.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.stat(directory, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's", directory)


def _write(file: StateFile, state: Callable[[], State]) -> None:
    file.update(state())


def _worker_points() -> Iterator[Point]:
    yield point("wsgifast_workers", 1)
    yield point("wsgifast_worker_starts_total", 1)
    yield point("wsgifast_worker_memory_bytes", resident_bytes())
    yield point("wsgifast_worker_cpu_seconds_total", time.process_time())
