"""A WSGI server in this process, with its input and output as data."""

from __future__ import annotations

import io
import sys
import wsgiref.handlers
import wsgiref.util
import wsgiref.validate
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wsgifast import WSGIFast
from wsgifast.bodies.body import Body, Refusal, Stream
from wsgifast.bodies.classify import classify
from wsgifast.bodies.files import close_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Start = tuple[str, list[tuple[str, str]]]
TEXT = [("Content-Type", "text/plain")]


def new_environ(method: str = "GET", path: str = "/", **extra: object) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "",
    }  # fmt: skip
    wsgiref.util.setup_testing_defaults(environ)
    environ.update(extra)
    return environ


class Server:
    """The server's side of one request: the arguments of start_response() and write()."""

    def __init__(self, app: WSGIApplication, environ: dict[str, Any] | None = None) -> None:
        self.environ = new_environ() if environ is None else environ
        self.starts: list[Start] = []
        self.error: BaseException | None = None  # of the last start_response()
        self.sent: list[bytes] = []
        self.result = app(self.environ, self.start_response)

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        if exc_info is not None and any(self.sent):
            raise exc_info[1]
        self.starts.append((status, headers))
        self.error = exc_info and exc_info[1]
        return self.sent.append

    @property
    def start(self) -> Start:
        return self.starts[-1]

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.start[1] if key.lower() == name.lower()]
        assert len(values) <= 1, self.start
        return values[0] if values else None

    def finish(self) -> bytes:
        try:
            for chunk in self.result:
                assert type(chunk) is bytes
                self.sent.append(chunk)
        finally:
            close_body(self.result)
        return b"".join(self.sent)


def by_wsgiref(app: WSGIApplication, environ: dict[str, Any]) -> tuple[bytes, str]:
    """Return the bytes that wsgiref's handler sends for an app, and its log."""
    sent, errors = io.BytesIO(), io.StringIO()
    handler = wsgiref.handlers.SimpleHandler(io.BytesIO(), sent, errors, environ)
    handler.origin_server = True
    handler.run(app)
    return sent.getvalue(), errors.getvalue()


class Closing:
    """An app's body that counts the calls of close()."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def close(self) -> None:
        self.closed += 1


def exc_info(error: Exception | None = None) -> Any:
    """Return the exc_info of an error which an app catches."""
    try:
        raise error or ValueError("the app's own")
    except Exception:  # noqa: BLE001 - the one above
        return sys.exc_info()


def answering(
    body: Callable[[WSGIEnvironment], Any],
    status: Any = "200 OK",
    headers: Any = TEXT,
    *,
    written: bytes | None = None,
) -> WSGIApplication:
    """Return an app that returns `body(environ)`, made before it calls start_response().

    :param written: the argument of write(), or None for no call.
    """

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        made = body(environ)
        # Servers may add to a list.
        write = start_response(status, [*headers] if type(headers) is list else headers)
        if written is not None:
            write(written)
        return made

    return app


def returning(body: object, *headers: tuple[str, str], status: str = "200 OK") -> WSGIApplication:
    """Return an app that returns one given body."""
    return answering(lambda _: body, status, [*TEXT, *headers])


def serve(body: object, *headers: tuple[str, str], status: str = "200 OK", **extra: Any) -> Server:
    return Server(WSGIFast(returning(body, *headers, status=status)), new_environ(**extra))


def ask_compressed(
    app: WSGIApplication,
    coding: str = "gzip",
    method: str = "GET",
    *,
    options: Any = True,
    **extra: Any,
) -> tuple[Server, bytes]:
    """Call a compressed app behind wsgiref.validate. Return its server and the body."""
    environ = new_environ(method, HTTP_ACCEPT_ENCODING=coding, **extra)
    environ["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
    validated: Any = wsgiref.validate.validator(WSGIFast(app, compress=options))
    server = Server(validated, environ)
    return server, server.finish()


def classified(body: Any, server_wrapper: object = None) -> tuple[type[Body], Any]:
    """Return the kind of a body and its content, or the advice for a rejected one."""
    found = classify(body, server_wrapper)
    if isinstance(found, Refusal):
        return Refusal, found.advice
    return type(found), found.owner if isinstance(found, Stream) else found.content
