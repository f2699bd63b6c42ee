"""FastWorker's metrics directory and address, chosen and checked before the arbiter forks."""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from typing import Any

from ..errors import ConfigurationError, MissingExtra
from ..metrics.multiprocess import (
    DIRECTORY,
    check_free,
    check_writable,
    checked_address,
    has_exporter,
    is_installed,
    memory_folder,
    metrics_address,
    wanted_metrics,
)
from ..metrics.processes import is_alive, name_of_process
from ..metrics.supervisor import Export
from .attributes import InvalidWorkerOption

_PREFIX = "wsgifast-metrics-"

# The directory that this process, or the one that forked it, has made.
_made: str | None = None


def wants_metrics(worker_class: Any) -> tuple[str, object] | None:
    """Return the option that enables metrics and its value: the variable's, or else the class's."""
    return wanted_metrics("FastWorker.metrics_bind", worker_class.metrics_bind)


def prepare_metrics(worker_class: Any) -> None:
    """Choose the directory; called before the app and prometheus_client are imported.

    Errors are reported later, by :func:`check_metrics`.
    """
    global _made
    if wants_metrics(worker_class) is None or not is_installed():
        return
    given = os.environ.get(DIRECTORY)
    # An arbiter that replaces another one (USR2) may have inherited that one's directory.
    if given and (given == _made or not os.path.basename(given).startswith(_PREFIX)):
        return
    parent = memory_folder()
    _remove_stale(parent)
    try:
        made = tempfile.mkdtemp(prefix=f"{_PREFIX}{name_of_process(os.getpid())}-", dir=parent)
    except OSError:
        os.environ.pop(DIRECTORY, None)
        return
    _made = os.environ[DIRECTORY] = made
    atexit.register(_remove, made, os.getpid())


def check_metrics(worker_class: Any, cfg: Any) -> None:
    """Refuse metrics that cannot work, when the server starts.

    :raises InvalidWorkerOption: if the address is malformed or in use, the directory cannot be
        written, or prometheus_client is missing.
    """
    wanted = wants_metrics(worker_class)
    if wanted is None:
        return
    name, text = wanted
    try:
        address = checked_address(text, name)
        directory = os.environ.get(DIRECTORY) or memory_folder()
        option = f"{name}={text!r}"
        check_writable(directory, option)
        if "GUNICORN_PID" not in os.environ:  # else the server that this one replaces still has it
            check_free(address, option)
    except (ConfigurationError, MissingExtra) as error:
        raise InvalidWorkerOption(str(error)) from None
    # Imported here, where an error can be reported; a worker of another user may not be allowed to.
    from ..metrics import prometheus  # noqa: F401

    if directory == _made and os.geteuid() == 0:
        os.chown(directory, cfg.uid, cfg.gid)  # the workers'


def export_of(worker_class: Any, arbiter_pid: int) -> Export | None:
    """What the exporter is told; None if no metrics are wanted.

    The address is announced each time: a reload of the configuration may have changed it.
    """
    wanted = wants_metrics(worker_class)
    directory = os.environ.get(DIRECTORY)
    if wanted is None or not directory:
        return None
    address = str(metrics_address(wanted[1], wanted[0]))
    export = Export(directory, directory == _made, address, name_of_process(arbiter_pid))
    export.announce()
    return export


def _remove(directory: str, maker: int) -> None:
    if os.getpid() == maker:  # not in its workers
        shutil.rmtree(directory, ignore_errors=True)


def _remove_stale(parent: str) -> None:
    """Remove directories of servers that were killed together with their exporter."""
    for directory in glob.glob(os.path.join(glob.escape(parent), f"{_PREFIX}*")):
        maker = os.path.basename(directory).removeprefix(_PREFIX).rpartition("-")[0]
        if not is_alive(maker) and not _is_in_use(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _is_in_use(directory: str) -> bool:
    """Whether its exporter or a worker lives. With `daemon` the process that made it has ended."""
    try:
        names = os.listdir(directory)
    except OSError:  # it is another user's, or is being removed
        return True
    for name in names:
        process = name.removesuffix(".db").rpartition("_")[2]
        if name.endswith(".db") and is_alive(process):
            return True
    try:
        return has_exporter(directory)
    except OSError:
        return True
