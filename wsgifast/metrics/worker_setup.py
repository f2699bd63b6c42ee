"""Metrics of workers whose server prepares nothing for them, as those of uvicorn.

The directory is named after the server's process, so all of its workers find the same one. The
first worker that finds no exporter starts it (supervisor.py); it ends with the server's process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .health import State
from .multiprocess import (
    DIRECTORY,
    check_free,
    check_writable,
    checked_address,
    has_exporter,
    memory_folder,
    wanted_metrics,
)
from .periodic import every_second
from .points import Point, point, process_collectors
from .processes import name_of_process, resident_bytes
from .supervisor import Export, start_exporting

if TYPE_CHECKING:
    from .requests import RequestMetrics


def prepare_worker(server_pid: int, configured: object = None) -> Export | None:
    """Choose the directory of a server's workers; called in each worker, before it imports the app
    and prometheus_client.

    :param server_pid: of the process that ends when the server does.
    :param configured: `metrics_bind` of the server's configuration.
    :returns: None if neither that nor WSGIFAST_METRICS is set.
    :raises ConfigurationError: for what is no address, or is taken, and for a directory that cannot
        be written.
    :raises MissingExtra: without prometheus_client.
    """
    wanted = wanted_metrics("metrics_bind", configured)
    if wanted is None:
        return None
    option_name, text = wanted
    address = checked_address(text, option_name)
    name = name_of_process(server_pid)
    given = os.environ.get(DIRECTORY)
    directory = given or os.path.join(memory_folder(), f"wsgifast-metrics-{name}-workers")
    option = f"{option_name}={text!r}"
    if not given:
        try:
            _make_ours(directory)
        except OSError as error:
            raise ConfigurationError(
                f"{option}: the directory {directory!r} cannot be used: {error.strerror}"
            ) from None
    check_writable(directory, option)
    os.environ[DIRECTORY] = directory
    export = Export(directory, not given, str(address), name)
    if not has_exporter(directory):
        try:
            check_free(address, option)
        except ConfigurationError:
            if not has_exporter(directory):  # else another worker has started it meanwhile
                raise
    export.announce()
    return export


def start_reporting(export: Export, state: Callable[[], State]) -> RequestMetrics:
    """Report this process's metrics and state from now on.

    :param state: called once a second.
    :returns: what records its requests.
    """
    from .prometheus import recorder

    process_collectors.append(_worker_points)
    start_exporting(export, state)
    metrics = recorder()
    every_second.start()
    return metrics


def _make_ours(directory: str) -> None:
    """Make it, or find that another worker has.

    :raises OSError: if it is another user's.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.stat(directory, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's", directory)


def _worker_points() -> Iterator[Point]:
    yield point("wsgifast_workers", 1)
    yield point("wsgifast_worker_starts_total", 1)
    yield point("wsgifast_worker_memory_bytes", resident_bytes())
    yield point("wsgifast_worker_cpu_seconds_total", time.process_time())
