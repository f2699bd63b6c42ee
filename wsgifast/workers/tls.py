"""The TLS context of a worker. It is renewed when its files change, if they are valid."""

from __future__ import annotations

import os
import ssl
import threading
from typing import Any, ClassVar

from gunicorn import sock as gunicorn_sock

_Stamp = tuple[int, int, int] | None

#: How often files are read again if they are replaced during a reading that fails.
_READS = 5


class TLSContexts:
    """Makes gunicorn's TLS context, anew only when one of its files has changed.

    gunicorn makes one for each connection, which reads the certificate each time. A renewed
    certificate is then used without a restart, and so it is here. Invalid files, such as a new
    certificate beside an old key, are logged once. The last valid context stays in use. The arbiter
    makes the first one, so that a worker has one even if it starts with invalid files, or may not
    read the key.

    :param cfg: gunicorn's configuration.
    """

    #: The last one that could be made: in this process, or in the arbiter before it forked.
    last_good: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, cfg: Any, log: Any) -> None:
        self._cfg = cfg
        self.log = log
        self._files = [path for path in (cfg.certfile, cfg.keyfile, cfg.ca_certs) if path]
        self._lock = threading.Lock()
        self._stamps: list[_Stamp] | None = None
        self._error: Exception | None = None

    def current(self) -> ssl.SSLContext:
        """Return the context for a connection that begins now.

        :raises OSError, ValueError: if there has never been a valid one. ssl.SSLError is an
            OSError. Errors of the `ssl_context` hook are raised too.
        """
        with self._lock:
            if self._look() != self._stamps:
                self._renew()
            if self.last_good is None:
                assert self._error is not None
                raise self._error
            return self.last_good

    def _look(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._files]

    def _renew(self) -> None:
        for _ in range(_READS):
            # Looked at before they are read. Files replaced meanwhile are read again next time.
            self._stamps = self._look()
            try:
                TLSContexts.last_good = gunicorn_sock.ssl_context(self._cfg)
            except Exception as error:  # noqa: BLE001 - the hook of a user may raise anything
                self._error = error
                if self._look() == self._stamps:
                    break  # else a file was replaced during the reading
            else:
                return
        self.log.error(
            "TLS: %s cannot be used: %s; the last that worked are used, if any, until they change",
            " and ".join(self._files) or "the ssl_context hook",
            self._error,
        )


def _stamp(path: str) -> _Stamp:
    try:
        stat_result = os.stat(path)
    except OSError:
        return None  # reading it reports why
    return stat_result.st_mtime_ns, stat_result.st_size, stat_result.st_ino
