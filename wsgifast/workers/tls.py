"""Make the TLS context of a worker. It is renewed if its files have changed and are valid."""

from __future__ import annotations

import os
import ssl
import threading
from typing import Any, ClassVar

from gunicorn import sock as gunicorn_sock

_Stamp = tuple[int, int, int] | None

#: The maximum number of attempts to read files while they are being replaced.
_READ_ATTEMPTS = 5


class TLSContexts:
    """Makes gunicorn's TLS context, and renews it when a file has changed.

    gunicorn reads the certificate again for each connection, so that a renewed certificate is used
    without a restart. This class has the same effect, but reads only changed files.

    If the files are invalid, such as a new certificate with an old key, the error is logged once
    and the last valid context is used. The arbiter makes the first context. So a worker has a
    context even if the files are invalid when it starts, or if it has no permission to read the
    key.

    :param cfg: gunicorn's configuration.
    """

    #: The last valid context, made in this process or by the arbiter before the fork.
    last_valid: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, cfg: Any, log: Any) -> None:
        self._cfg = cfg
        self.log = log
        self._files = [path for path in (cfg.certfile, cfg.keyfile, cfg.ca_certs) if path]
        self._lock = threading.Lock()
        self._stamps: list[_Stamp] | None = None
        self._error: Exception | None = None

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        :raises OSError, ValueError: if the files have never been valid. ssl.SSLError is an OSError.
            Errors of the `ssl_context` hook are raised unchanged.
        """
        with self._lock:
            if self._current_stamps() != self._stamps:
                self._renew()
            if self.last_valid is None:
                assert self._error is not None
                raise self._error
            return self.last_valid

    def _current_stamps(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._files]

    def _renew(self) -> None:
        for _ in range(_READ_ATTEMPTS):
            # If files are replaced while they are read, their stamps change. The next call or the
            # next attempt reads them again.
            self._stamps = self._current_stamps()
            try:
                TLSContexts.last_valid = gunicorn_sock.ssl_context(self._cfg)
            except Exception as error:  # noqa: BLE001 - the user's hook may raise any exception
                self._error = error
                if self._current_stamps() == self._stamps:
                    break  # no file was replaced, so the error is permanent
            else:
                return
        self.log.error(
            "TLS: %s cannot be used: %s. The last valid files stay in use, if there are any",
            " and ".join(self._files) or "the ssl_context hook",
            self._error,
        )


def _stamp(path: str) -> _Stamp:
    try:
        stat_result = os.stat(path)
    except OSError:
        return None  # ssl_context() reports the error
    return stat_result.st_mtime_ns, stat_result.st_size, stat_result.st_ino
