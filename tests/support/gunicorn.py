"""A fault of gunicorn that tests allow its own workers, but not FastWorker."""

from __future__ import annotations

import functools

from gunicorn import util

from .servers import LiveServer

_OWN_WORKERS = ("sync", "gthread", "gevent")


def may_end_headers_with_bare_lf(server: LiveServer) -> bool:
    """Return whether a server's error pages are gunicorn's own, with headers ended by a bare LF.

    This happens on Python 3.14 and newer. There textwrap.dedent() removes the CR of the empty line
    in gunicorn's template (gunicorn.util.write_error) as white space.
    """
    is_its_own = any(f"'{worker}'" in str(server.process.args) for worker in _OWN_WORKERS)
    return is_its_own and _has_the_fault()


@functools.cache
def _has_the_fault() -> bool:
    written: list[bytes] = []

    class Socket:
        sendall = send = staticmethod(written.append)

        def gettimeout(self) -> float:
            return 0.0

    util.write_error(Socket(), 500, "Internal Server Error", "")
    return b"\r\n\r\n" not in b"".join(written)
