"""gunicorn's error pages, with valid heads, and without gunicorn's own line in the access log."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class ErrorPage:
    """The socket to which gunicorn writes a whole error page in one call.

    From Python 3.14 on the page's head ends with a bare LF, which RFC 9112 section 2.2 forbids
    servers to send: textwrap.dedent() takes the CR of the template's empty line for white space
    (gunicorn.util.write_error).

    :param send: sends a page, given its status and bytes, and returns the size of its body.
    :ivar size: of the body, as `send` has returned it.
    """

    def __init__(self, send: Callable[[int, bytes], int]) -> None:
        self._send = send
        self.size = 0

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, data: bytes) -> None:
        head, body = _END_OF_HEAD.split(data, maxsplit=1)
        status = int(head.split(b" ", 2)[1])
        self.size = self._send(status, b"\r\n".join((*head.splitlines(), b"", body)))

    send = sendall


class Answering:
    """Stands in for the worker in its handle_error(): keeps the access log's line, writes none.

    gunicorn would log a line without the path, before the answer is sent.

    :param worker: has all other attributes.
    :ivar status: of the answer, as the access log got it.
    :ivar line: the arguments of access().
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.status = "500 Internal Server Error"
        self.line: tuple[Any, ...] | None = None
        self.log = _Log(self, worker.log)

    # For super() in the handle_error() of a subclass.
    __class__ = property(lambda self: type(self._worker))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


class _Log:
    def __init__(self, answering: Answering, log: Any) -> None:
        self._answering = answering
        self._log = log

    def access(self, resp: Any, req: Any, environ: dict[str, Any], elapsed: Any) -> None:
        self._answering.status = resp.status
        self._answering.line = resp, req, environ, elapsed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
