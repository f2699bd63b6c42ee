"""The parts of gunicorn that FastWorker uses although they are not a documented interface.

FastWorker uses gunicorn's request parsers and loggers unchanged. Not all of their names are public.
wsgifast/hosts.py lists the names, and gunicorn_version.py checks them when the server starts.
"""

from __future__ import annotations

import contextlib
import os
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

from .json_log import trusts_address

# The least bytes of waiting responses in memory for which a return of memory is worth its time.
_MUCH_WAITING_BYTES = 16 * 1024 * 1024
# The same for bytes that were written to temporary files since the last return.
_MUCH_ON_DISK_BYTES = 4 * 1024 * 1024


# mallopt(3). Freed blocks of M_MMAP_THRESHOLD bytes or more return to the system at once. The heap
# retains at most M_TRIM_THRESHOLD free bytes at its end.
_THRESHOLDS = (-3, 4 * 1024 * 1024), (-1, 8 * 1024 * 1024)


class Settings:
    """A copy of gunicorn's configuration that reads a setting without a function call.

    The parser reads a dozen settings for each request. gunicorn also looks the peer up in
    forwarded_allow_ips for each request. :meth:`trusts` does that once for each connection.
    """

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        for name, setting in cfg.settings.items():
            if not hasattr(type(cfg), name):  # a property of the original computes the others
                setattr(self, name, setting.get())
        # gunicorn has limits of its own. It uses them in place of a larger value, and of one that
        # is not positive. Its parser accepts request lines of any length for 0. A plain request
        # line stays below its limit: longer ones are left to its parser.
        line, fields = self.limit_request_line, self.limit_request_fields
        self.most_line_bytes = line if 0 < line <= MAX_REQUEST_LINE else MAX_REQUEST_LINE
        self.most_fields = fields if 0 < fields <= MAX_HEADERS else MAX_HEADERS
        field_bytes = self.limit_request_field_size
        self.most_field_bytes = field_bytes if field_bytes > 0 else DEFAULT_MAX_HEADERFIELD_SIZE
        self.is_ssl = bool(cfg.is_ssl)
        # A configuration file may have changed gunicorn.SERVER, or the copy of it in
        # gunicorn.http.wsgi.
        server_name = wsgi.SERVER if gunicorn.SERVER == SERVER else gunicorn.SERVER
        self.server_name = None if server_name is None else str(server_name)
        self.uses_uwsgi: bool = cfg.protocol == "uwsgi"
        self.sends_chunks = not self.uses_uwsgi

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cfg, name)

    def for_peers(self, *, trusted: bool) -> Settings:
        """Return a copy for peers of one kind: those in forwarded_allow_ips, or the others."""
        copy = Settings.__new__(Settings)
        vars(copy).update(vars(self))
        allowed = ["*"] if trusted else []
        vars(copy).update(forwarded_allow_ips=allowed, forwarded_allow_networks=list)
        return copy

    def trusts(self, peer: object) -> bool:
        """Return whether a peer's address is in forwarded_allow_ips, as gunicorn decides it."""
        if not isinstance(peer, tuple):
            return True  # a Unix socket: its permissions decide who may connect
        return trusts_address(self._cfg, self.forwarded_allow_ips, peer[0])

    def is_proxy(self, address: str) -> bool:
        """Return whether an IP address is a proxy's, so that its connections have many clients."""
        return self.proxy_protocol not in (False, "off") or self.trusts((address,))


def environ_part(settings: Settings) -> dict[str, Any]:
    """Return the keys that gunicorn puts into every environ of a worker."""
    return {
        "wsgi.errors": _Errors(settings),
        "wsgi.multiprocess": settings.workers > 1,
        "wsgi.file_wrapper": FileWrapper,
        "SERVER_SOFTWARE": SERVER_SOFTWARE,
    }


def unfit_threads() -> str | None:
    """Return an error message if FastWorker cannot use the threads of this process, else None."""
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
        library, worker = "eventlet", ""  # gunicorn has none for it any more
    else:
        return None
    return (
        f"The app, or what it imports, has replaced threads and sockets by {library}'s (monkey "
        f"patching). FastWorker needs the real ones: {worker}leave the patching away"
    )


class MemoryReturn:
    """Has the C library return freed memory to the system, and reuse the memory of usual pages.

    By default glibc does not return the memory of a page of 12 MB that waited for a slow client.
    After each page of 200 kB it returns the end of its heap, and the kernel has to clear it again.
    With fixed thresholds (mallopt(3)) it returns large blocks at once, and reuses smaller ones.
    :meth:`update` returns freed memory between other blocks. glibc's own environment variables
    take precedence.
    """

    def __init__(self) -> None:
        if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
            with contextlib.suppress(ImportError, OSError, AttributeError):  # no mallopt()
                import ctypes

                for option, size in _THRESHOLDS:
                    ctypes.CDLL(None).mallopt(option, size)
        # Since the last return: the most bytes in memory, and the fewest on the disk.
        self._most_bytes = self._least_on_disk = 0
        self._was_written = False

    def update(self, waiting_bytes: int, on_disk_bytes: int) -> None:
        """Return freed memory, if much less waits in memory, or much was written to the disk.

        :param waiting_bytes: of responses, in memory.
        :param on_disk_bytes: of responses, in temporary files.
        """
        self._most_bytes = max(self._most_bytes, waiting_bytes)
        self._least_on_disk = min(self._least_on_disk, on_disk_bytes)
        has_less = (
            self._most_bytes >= _MUCH_WAITING_BYTES and waiting_bytes <= self._most_bytes // 4
        )
        is_written = on_disk_bytes >= self._least_on_disk + _MUCH_ON_DISK_BYTES
        if not (has_less or is_written or self._was_written):
            return
        # Once more at the next call: bytes are counted before their memory is free.
        self._was_written = is_written
        self._most_bytes, self._least_on_disk = waiting_bytes, on_disk_bytes
        with contextlib.suppress(ImportError, OSError, AttributeError):  # no malloc_trim()
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)


class _Errors:
    """`wsgi.errors`: makes gunicorn's own stream when something is written.

    One stream for all requests would write to the old file when logs are reopened (SIGUSR1). One
    for each request would cost more than all other keys of the environ.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, text: str) -> None:
        WSGIErrorsWrapper(self._settings).write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing to do: every write is flushed."""


def arbiters_signals(arbiter: Any) -> Callable[[], list[int]]:
    """Keep track of signals that reach a new worker before it has set its own handlers.

    Until then it has the arbiter's handlers, which put a signal into the worker's copy of the
    arbiter's queue. Nothing reads that copy. An early TERM would be lost, and the arbiter would
    kill the worker after graceful_timeout.

    :param arbiter: gunicorn's, or None.
    :returns: a function that returns the signals in the queue, and empties it.
    """
    signals: Any = getattr(arbiter, "SIG_QUEUE", queue.SimpleQueue())

    def pending_signals() -> list[int]:
        return [signals.get_nowait() for _ in range(signals.qsize())]

    return pending_signals


# gunicorn's error pages, with corrected headers, and without its own line in the access log.

_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")


class ErrorPage:
    """The socket to which gunicorn writes a whole error page in one call.

    From Python 3.14 on the page's headers end with a bare LF, which RFC 9112 section 2.2 forbids
    servers to send. textwrap.dedent() takes the CR of the template's empty line for white space
    (gunicorn.util.write_error).

    :param send: see :meth:`.Channel.send_error`.
    :ivar size: of the body, as `send` has returned it.
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
    """Replaces the worker in its handle_error(). It stores the access log's line and writes none.

    gunicorn would log a line without the path, before the response is sent.

    :param worker: the real one, for all other attributes.
    :ivar status: of the response, as the access log got it.
    :ivar line: the arguments of access().
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.status = "500 Internal Server Error"
        self.line: tuple[Any, ...] | None = None
        self.log = _RecordingLog(self, worker.log)

    # For super() in the handle_error() of a subclass.
    __class__ = property(lambda self: type(self._worker))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


class _RecordingLog:
    def __init__(self, recording: RecordingWorker, log: Any) -> None:
        self._recording = recording
        self._log = log

    def access(self, resp: Any, req: Any, environ: dict[str, Any], elapsed: Any) -> None:
        self._recording.status = resp.status
        environ["wsgi.input"] = None  # both objects refer to each other, and would leak
        self._recording.line = resp, req, environ, elapsed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
