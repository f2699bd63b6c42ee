"""What a server's workers and its exporter agree on: the address, the directory and its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from importlib.util import find_spec

from ..errors import ConfigurationError, MissingExtra
from ..sockets.address import Address

# The environment variable with the address where a server is scraped: one of its own, so that
# metrics are never public by accident.
VARIABLE = "WSGIFAST_METRICS"
# The environment variable that switches prometheus_client to its multiprocess mode.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# The exporter of a server that has just ended gives up its address within this time.
ADDRESS_PATIENCE_S = 3.0

_LOCK_FILE = "exporter.lock"
# The files leave this much free on their file system: a write to a mapped file on a full one would
# end the process.
_MIN_FREE_BYTES = 16 * 1024 * 1024


def wanted_metrics(option: str, configured: object) -> tuple[str, object] | None:
    """Return the option that enables metrics and its value; None if there is none.

    :param option: the server's own, which the environment variable overrides.
    :param configured: its value.
    """
    told = os.environ.get(VARIABLE)
    if told:
        return VARIABLE, told
    return None if configured is None else (option, configured)


def checked_address(text: object, name: str) -> Address:
    """The address that an option asks for, if metrics can be made.

    :param name: of the option, for errors.
    :raises ConfigurationError: if it is no address.
    :raises MissingExtra: without prometheus_client.
    """
    address = metrics_address(text, name)
    if not is_installed():
        raise MissingExtra(name, "prometheus_client", "prometheus")
    return address


def is_installed() -> bool:
    """Whether prometheus_client can be imported; it must not be before the directory is chosen."""
    return find_spec("prometheus_client") is not None


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


def check_free(address: Address, option: str) -> None:
    """Wait for an address that the exporter of a server before this one may still have.

    :param option: the option and its value, for errors.
    :raises ConfigurationError: if the address cannot be used.
    """
    deadline = time.monotonic() + ADDRESS_PATIENCE_S
    while True:
        try:
            address.check_free()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise ConfigurationError(f"{option}: {error.strerror}") from None
            time.sleep(0.1)
        else:
            return


def memory_folder() -> str:
    """A folder on a file system in memory, if there is one: writes to a disk may block."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK | os.X_OK) else tempfile.gettempdir()


def check_writable(directory: str, option: str) -> None:
    """:raises ConfigurationError: if no file can be written there; the option is named in it."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{option}: metrics are gathered in {DIRECTORY}={directory!r}, where no file can be "
            f"written: {error.strerror}"
        ) from None


def check_space(directory: str) -> None:
    """:raises OSError: if the disk is too full to write metrics, so that those written are old."""
    at = os.statvfs(directory)
    if at.f_bavail * at.f_frsize < _MIN_FREE_BYTES:
        raise OSError(
            errno.ENOSPC, f"less than {_MIN_FREE_BYTES} bytes are free for metrics", directory
        )


# An exporter holds a lock as long as it lives, so a directory has one at most.


def has_exporter(directory: str) -> bool:
    """Whether a directory has an exporter at the moment.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        lock = _taken(directory, os.O_RDWR)
    except FileNotFoundError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def take_lock(directory: str) -> int | None:
    """The lock, as a descriptor for the exporter to inherit; None if it is held.

    :raises OSError: if it cannot be opened.
    """
    return _taken(directory, os.O_RDWR | os.O_CREAT)


def _taken(directory: str, flags: int) -> int | None:
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
