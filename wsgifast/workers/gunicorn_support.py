"""Classes that adapt gunicorn's internals to FastWorker.

FastWorker uses gunicorn's request parsers and loggers unchanged. Some of the names that it imports
are not part of gunicorn's documented interface. wsgifast/hosts.py lists these names.
gunicorn_version.py checks them when the server starts.
"""

from __future__ import annotations

import contextlib
import queue
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import gunicorn
from gunicorn import SERVER, SERVER_SOFTWARE
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.message import (
    DEFAULT_MAX_HEADERFIELD_SIZE,
    MAX_HEADERS,
    MAX_REQUEST_LINE,
)
from gunicorn.http.wsgi import FileWrapper, WSGIErrorsWrapper

from ..files.temporary import return_large_blocks
from .json_log import trusts_address

# MemoryReturn trims the heap after this many bytes of responses in memory have been freed.
_TRIM_AT_MEMORY_BYTES = 16 * 1024 * 1024
# MemoryReturn also trims the heap after this many bytes were written to temporary files.
_TRIM_AT_DISK_BYTES = 4 * 1024 * 1024


class Settings:
    """A copy of gunicorn's configuration with faster access to its settings.

    The settings are plain attributes, because the parser reads a dozen of them for each request.
    gunicorn compares the peer with forwarded_allow_ips for each request. FastWorker calls
    :meth:`trusts` once for each connection.
    """

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        for name, setting in cfg.settings.items():
            # Config computes some settings by properties. __getattr__ passes these on.
            if not hasattr(type(cfg), name):
                setattr(self, name, setting.get())
        # gunicorn replaces limits above its maximum, and limits below 1, by its maximum or default.
        # Only for limit_request_line, 0 means "no limit". HttptoolsParser applies gunicorn's
        # maximum in this case too, and passes longer request lines to gunicorn's parser.
        line, fields = self.limit_request_line, self.limit_request_fields
        self.max_line_bytes = line if 0 < line <= MAX_REQUEST_LINE else MAX_REQUEST_LINE
        self.max_fields = fields if 0 < fields <= MAX_HEADERS else MAX_HEADERS
        field_bytes = self.limit_request_field_size
        self.max_field_bytes = field_bytes if field_bytes > 0 else DEFAULT_MAX_HEADERFIELD_SIZE
        self.is_ssl = bool(cfg.is_ssl)
        # A configuration file may have changed gunicorn.SERVER or gunicorn.http.wsgi.SERVER.
        server_name = wsgi.SERVER if gunicorn.SERVER == SERVER else gunicorn.SERVER
        self.server_name = None if server_name is None else str(server_name)
        self.uses_uwsgi: bool = cfg.protocol == "uwsgi"
        self.sends_chunks = not self.uses_uwsgi

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cfg, name)

    def for_peers(self, *, trusted: bool) -> Settings:
        """Return a copy for one kind of peers.

        :param trusted: whether the peers are in forwarded_allow_ips. The copy contains this result
            in place of the addresses.
        """
        copy = Settings.__new__(Settings)
        vars(copy).update(vars(self))
        allowed = ["*"] if trusted else []
        vars(copy).update(forwarded_allow_ips=allowed, forwarded_allow_networks=list)
        return copy

    def trusts(self, peer: object) -> bool:
        """Return whether forwarded_allow_ips contains a peer's address, by gunicorn's rules."""
        if not isinstance(peer, tuple):
            return True  # a client of a Unix socket: the socket's permissions decide who connects
        return trusts_address(self._cfg, self.forwarded_allow_ips, peer[0])

    def is_proxy(self, address: str) -> bool:
        """Return whether an IP address is that of a proxy, whose connections serve many clients."""
        return self.proxy_protocol not in (False, "off") or self.trusts((address,))


def worker_environ(settings: Settings) -> dict[str, Any]:
    """Return the environ keys that have the same value in all requests of a worker."""
    return {
        "wsgi.errors": _Errors(settings),
        "wsgi.multiprocess": settings.workers > 1,
        "wsgi.file_wrapper": FileWrapper,
        "SERVER_SOFTWARE": SERVER_SOFTWARE,
    }


def thread_problem() -> str | None:
    """Return the reason why FastWorker cannot use this process's threads, or None if it can."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "This Python runs without the GIL (free threading), which FastWorker does not support: "
            "set PYTHON_GIL=1 in gunicorn's environment, or use `-k gthread`"
        )
    gevent = sys.modules.get("gevent.monkey")
    eventlet = sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        library, worker = "gevent", "use `-k gevent`, or "
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library, worker = "eventlet", ""  # newer versions of gunicorn have no worker for eventlet
    else:
        return None
    return (
        f"The app, or a module that it imports, has replaced threads and sockets by {library}'s "
        f"(monkey patching). FastWorker needs the real ones: {worker}remove the patching"
    )


class MemoryReturn:
    """Makes glibc return freed memory to the system.

    The constructor calls :func:`~wsgifast.files.temporary.return_large_blocks`. :meth:`update`
    returns freed memory between used blocks.
    """

    def __init__(self) -> None:
        return_large_blocks()
        # Both values are counted since the last trim.
        self._peak_bytes = self._min_disk_bytes = 0
        self._repeats = False

    def update(self, waiting_bytes: int, on_disk_bytes: int) -> None:
        """Trim the heap if many bytes of responses were freed or written to the disk.

        :param waiting_bytes: the size of the responses that wait in memory.
        :param on_disk_bytes: the size of the responses that wait in temporary files.
        """
        self._peak_bytes = max(self._peak_bytes, waiting_bytes)
        self._min_disk_bytes = min(self._min_disk_bytes, on_disk_bytes)
        has_less = (
            self._peak_bytes >= _TRIM_AT_MEMORY_BYTES and waiting_bytes <= self._peak_bytes // 4
        )
        is_written = on_disk_bytes >= self._min_disk_bytes + _TRIM_AT_DISK_BYTES
        if not (has_less or is_written or self._repeats):
            return
        # Bytes on the disk are counted before the memory that contained them is freed. So the next
        # call trims again.
        self._repeats = is_written
        self._peak_bytes, self._min_disk_bytes = waiting_bytes, on_disk_bytes
        with contextlib.suppress(ImportError, OSError, AttributeError):  # no malloc_trim()
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)


class _Errors:
    """`wsgi.errors`, which makes a stream of gunicorn for each write.

    A stream shared by all requests would write to the old file after logs are reopened (SIGUSR1). A
    stream for each request would cost more than all other keys of the environ.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, text: str) -> None:
        WSGIErrorsWrapper(self._settings).write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: gunicorn's stream flushes each write."""


def early_signals(arbiter: Any) -> Callable[[], list[int]]:
    """Return a function that reads the signals that a worker received while it started.

    A new worker inherits the arbiter's handlers. These handlers put a signal into the worker's copy
    of the arbiter's queue, and no other code reads that copy. Without this function, an early
    SIGTERM would be lost. The arbiter would then kill the worker after graceful_timeout.

    :param arbiter: gunicorn's arbiter, or None.
    :returns: a function that empties the queue and returns its signals.
    """
    signals: Any = getattr(arbiter, "SIG_QUEUE", queue.SimpleQueue())

    def pending_signals() -> list[int]:
        return [signals.get_nowait() for _ in range(signals.qsize())]

    return pending_signals


# Adapters for gunicorn's error pages.

_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")


class ErrorPage:
    """Acts as the socket to which gunicorn writes an error page, in one call.

    :class:`ErrorPage` parses the page and sends it with corrected headers. From Python 3.14 on,
    gunicorn's page has a bare LF after its headers, because textwrap.dedent() removes the CR of the
    empty line (gunicorn.util.write_error). RFC 9112 section 2.2 requires CR LF.

    :param send: see :meth:`.Channel.send_error`.
    :ivar size: the size of the body in bytes, as returned by `send`.
    """

    def __init__(self, send: Callable[[int, str, list[tuple[str, str]], bytes], int]) -> None:
        self._send = send
        self.size = 0

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, data: bytes) -> None:
        block, body = _END_OF_HEADERS.split(data, maxsplit=1)
        first, *lines = block.decode("latin-1").splitlines()
        _, status, reason = first.split(" ", 2)
        pairs = [line.partition(":") for line in lines]
        headers = [
            (name, value.strip()) for name, _, value in pairs if name.lower() != "connection"
        ]
        self.size = self._send(int(status), reason, headers, body)

    send = sendall


class RecordingWorker:
    """Replaces the worker while its handle_error() runs.

    It records the arguments of the access log, because gunicorn would write the log line before the
    response is sent, and without the path.

    :param worker: the real worker. All other attributes are read from it.
    :ivar status: the status of the error response.
    :ivar line: the arguments of the logger's access().
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.status = "500 Internal Server Error"
        self.line: tuple[Any, ...] | None = None
        self.log = _RecordingLog(self, worker.log)

    # A subclass's handle_error() may call super(), which checks the class of its argument.
    __class__ = property(lambda self: type(self._worker))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


class _RecordingLog:
    def __init__(self, recording: RecordingWorker, log: Any) -> None:
        self._recording = recording
        self._log = log

    def access(self, resp: Any, req: Any, environ: dict[str, Any], elapsed: Any) -> None:
        self._recording.status = resp.status
        # Wsgi.input refers to the environ, and this reference cycle would leak memory.
        environ["wsgi.input"] = None
        self._recording.line = resp, req, environ, elapsed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
