"""Apps with bodies in a framework's wrapper, called raw and wrapped."""

from __future__ import annotations

import threading
import wsgiref.util
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

CONTENT = b"line\r\n" * 20_000

closed: list[object] = []


class Source:
    """The source of a response body. It records the call of its close()."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self.chunks = iter(chunks)

    def __iter__(self) -> Iterator[Any]:
        return self.chunks

    def close(self) -> None:
        closed.append("source")


def ask(
    app: WSGIApplication, method: str, server_wrapper: object
) -> tuple[Server, bytes, list[object]]:
    closed.clear()
    environ = new_environ(method)
    if server_wrapper is not None:
        environ["wsgi.file_wrapper"] = server_wrapper
    server = Server(app, environ)
    assert closed == []
    return server, server.finish(), closed.copy()


def check(
    app: WSGIApplication,
    sent_as: str,
    *,
    method: str = "GET",
    server_wrapper: object = wsgiref.util.FileWrapper,
) -> Server:
    """Call an app raw and wrapped. Require equal bytes, status and calls of close()."""

    raw, expected, closers = ask(app, method, server_wrapper)
    wrapped, body, wrapped_closers = ask(WSGIFast(app), method, server_wrapper)
    assert body == (b"" if method == "HEAD" else expected)
    assert wrapped.start[0] == raw.start[0]
    # The second may change between the two calls.
    own = {name: value for name, value in raw.start[1] if name != "Date"}
    assert {**dict(wrapped.start[1]), **own} == dict(wrapped.start[1])
    assert wrapped_closers == closers
    assert closers[-2:] == ["first", threading.get_ident()]
    assert wrapped.environ["wsgifast.sent_as"] == sent_as
    return wrapped
