"""One app for both interfaces, and its responses through WSGIFast and ASGIFast."""

from __future__ import annotations

import wsgiref.util
import wsgiref.validate
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asgifast import ASGIFast

from tests.asgi.support import body as message
from tests.asgi.support import call, pathsend, scope_of, sending, start_message
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast, compress_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = ["INTERFACES", "TEXT", "Ask", "Received", "Site", "ask_asgi", "ask_wsgi"]

TEXT = b"All work and no play makes Jack a dull boy.\n" * 2000
PLAIN = ("Content-Type", "text/plain")


class Received(NamedTuple):
    status: int
    headers: dict[str, str]  # headers by their names in lower case, without duplicates
    body: bytes


class Site:
    """Return an app that returns one body.

    :param body: bytes, or blocks for a stream, or the path of a file.
    :param tag: the entity tag that the app sets. The app evaluates its preconditions.
    :param requested: the argument of compress_response(), or None for no call.
    :param before: called for each request, before the response.
    """

    def __init__(
        self,
        body: bytes | list[bytes] | Path = TEXT,
        *headers: tuple[str, str],
        status: int = 200,
        tag: str | None = None,
        requested: bool | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.body = body
        self.status = status
        self.headers = [*headers]
        if not any(name == "Content-Type" for name, _ in headers):
            self.headers.insert(0, PLAIN)
        self.tag = tag
        self.requested = requested
        self.before = before
        self.seen: tuple[str | None, str | None] = (None, None)
        self.webdav_if: str | None = None

    def _answered(self, conditions: Any, none_match: str | None, match: str | None) -> int:
        self.before()
        self.seen = none_match, match
        if self.requested is not None:
            compress_response(
                {**conditions}, self.requested
            )  # some middleware copies environ or scope
        if self.tag is not None and none_match == self.tag:
            return 304
        if self.tag is not None and match not in (None, self.tag):
            return 412
        return self.status

    def _headers(self, status: int) -> list[tuple[str, str]]:
        tag = [] if self.tag is None or status == 412 else [("ETag", self.tag)]
        return [*([] if status == 304 else self.headers), *tag]

    def wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.webdav_if = environ.get("HTTP_IF")
        status = self._answered(
            environ, environ.get("HTTP_IF_NONE_MATCH"), environ.get("HTTP_IF_MATCH")
        )
        start_response(f"{status} Status", self._headers(status))
        if status in (304, 412):
            return [b""]
        if isinstance(self.body, Path):
            return self.body.open("rb")
        return iter(self.body) if isinstance(self.body, list) else [self.body]

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        requested = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.webdav_if = requested.get("if")
        status = self._answered(scope, requested.get("if-none-match"), requested.get("if-match"))
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers(status)]
        messages = [message(b"", False)]
        if status not in (304, 412):
            if isinstance(self.body, Path):
                messages = [pathsend(str(self.body))]
            elif isinstance(self.body, list):
                messages = [*map(message, self.body), *messages]
            else:
                messages = [message(self.body, False)]
        await sending(start_message(*headers, status=status), *messages)(scope, receive, send)


# Request a page of a site with extra headers, and return the response.
Ask = Callable[..., Received]


def ask_wsgi(
    site: Any, compress: Any = True, path: str = "/", method: str = "GET", **headers: str
) -> Received:
    """Send a request through wsgiref.validate. The site may also be a plain WSGI app."""
    app: Any = WSGIFast(getattr(site, "wsgi", site), compress=compress)
    extra: dict[str, Any] = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    extra["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
    server = Server(wsgiref.validate.validator(app), new_environ(method, path, **extra))
    body = server.finish()
    return _answer(int(server.start[0][:3]), server.start[1], body)


def ask_asgi(
    site: Any, compress: Any = True, path: str = "/", method: str = "GET", **headers: str
) -> Received:
    """Send a request. The site may also be a plain ASGI app."""
    app = ASGIFast(getattr(site, "asgi", site), compress=compress)
    response = call(app, scope_of(path, method, **headers))
    return _answer(response.status, response.headers, response.body)


def _answer(status: int, headers: list[tuple[str, str]], body: bytes) -> Received:
    found = {name.lower(): value for name, value in headers}
    assert len(found) == len(headers), headers
    return Received(status, found, body)


INTERFACES: dict[str, Ask] = {"wsgi": ask_wsgi, "asgi": ask_asgi}
