"""gunicorn's error pages, behind a head that is as HTTP has it."""

from __future__ import annotations

import re
from collections.abc import Callable

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class ErrorPage:
    """The socket that gunicorn writes an error page to, whole and in one call.

    From Python 3.14 on the page's head ends with a bare LF, which RFC 9112 section 2.2 lets no
    server send: textwrap.dedent() takes the CR of the template's empty line for white space
    (gunicorn.util.write_error).

    :param send: sends a page on, given its status too.
    """

    def __init__(self, send: Callable[[int, bytes], object]) -> None:
        self._send = send

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, data: bytes) -> None:
        head, body = _END_OF_HEAD.split(data, maxsplit=1)
        status = int(head.split(b" ", 2)[1])
        self._send(status, b"\r\n".join((*head.splitlines(), b"", body)))

    send = sendall
