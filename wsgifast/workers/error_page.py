"""gunicorn's answers to errors: pages whose heads are as HTTP has it, and no line of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class ErrorPage:
    """The socket that gunicorn writes an error page to, whole and in one call.

    From Python 3.14 on the page's head ends with a bare LF, which RFC 9112 section 2.2 lets no
    server send: textwrap.dedent() takes the CR of the template's empty line for white space
    (gunicorn.util.write_error).

    :param send: sends a page on, given its status too, and returns the size of its body.
    :ivar size: what it has returned.
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
    """A worker as its handle_error() sees it: whose access log keeps lines, and writes none.

    gunicorn would log a line without the path, before the answer is sent.

    :param worker: everything else is its.
    :ivar status: of the line.
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
