"""The same app raw and wrapped: a client gets the same response, or the one that the app intended.

Hypothesis writes the apps. A minimal server for PEP 3333 serves the corrected form of each raw, and
the app itself wrapped.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import wsgiref.handlers
import wsgiref.util
import wsgiref.validate
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gunicorn.http.wsgi
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import effort
from tests.support.scripts import (
    FILES,
    RUNNING,
    TYPES,
    WHOLE,
    AppError,
    CloseError,
    Script,
    ScriptedApp,
    lawful,
    may_write,
)
from tests.support.wsgi import by_wsgiref, new_environ
from wsgifast import BodyError, WSGIFast
from wsgifast.errors import BodyTooShort

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


Serve = Callable[["WSGIApplication", str], bytes]
# The error that an app or wsgifast raises so that the server closes the connection.
EXPECTED = (AppError, BodyError, BodyTooShort)

# This is not beside Script: a server with an app that plays a script need not import Hypothesis.
texts = st.text("aé ", max_size=6).map(str.encode)
scripts = st.builds(
    Script,
    method=st.sampled_from(["GET", "GET", "POST", "HEAD"]),
    status=st.sampled_from(
        ["200 OK", "206 Part", "204 None", "304 Same", "404 Not Found", "500 Oh"]
    ),
    shape=st.sampled_from([*WHOLE, *FILES, *RUNNING, "iterator"]),
    # More chunks than a stream needs to count as quick.
    pieces=st.lists(texts, max_size=14).map(tuple),
    type_=st.sampled_from([*TYPES, "bytes"]),
    length=st.sampled_from([None, None, "right", "short", "long"]),
    written=st.lists(texts, max_size=2).map(tuple),
    restart=st.sampled_from([None, None, "at once", "before", "empty", "after"]),
    error_at=st.none() | st.integers(0, 14),
    close=st.sampled_from([None, "counts", "raises"]),
).filter(lambda script: not script.written or may_write(script))


def environ_with(file_wrapper: type, method: str) -> dict[str, Any]:
    return new_environ(method, "/", **{"wsgi.file_wrapper": file_wrapper})


class Server:
    """One request, served exactly by PEP 3333. wsgiref.validate checks the other rules.

    :ivar status: as sent, or None if the app failed before its headers were sent.
    :ivar error: the error of the app or its iterator.
    :ivar close_error: the error of close().
    :ivar spilt: bytes that must not be sent: beyond Content-Length, or where no body may be.
    """

    def __init__(self, app: WSGIApplication, method: str) -> None:
        self.method = method
        self.status: str | None = None
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.spilt = b""
        self.error: Exception | None = None
        self.close_error: CloseError | None = None
        self._headers: tuple[str, list[tuple[str, str]]] | None = None
        environ = environ_with(wsgiref.util.FileWrapper, method)
        result: Any = None
        try:
            result = app(environ, self._start_response)
            for chunk in result:
                self._send(chunk)
            self._send_headers()
        except EXPECTED as error:
            self.error = error
        try:
            if hasattr(result, "close"):
                result.close()
        except CloseError as error:
            self.close_error = error

    @property
    def length(self) -> int | None:
        return next((int(v) for k, v in self.headers if k == "Content-Length"), None)

    @property
    def bodiless(self) -> bool:
        return self.method == "HEAD" or (self.status or "")[:3] in ("204", "304")

    @property
    def complete(self) -> bool:
        """Return whether a client accepts the received bytes as a complete response."""
        if self.status is None:
            return False
        if self.bodiless:
            return True
        return self.error is None if self.length is None else len(self.body) == self.length

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        if exc_info is not None:
            if self.status is not None:
                raise exc_info[1]
        elif self._headers is not None:
            raise AssertionError("start_response was called twice without exc_info")
        self._headers = (status, list(headers))
        return self._send

    def _send_headers(self) -> None:
        if self.status is None:
            assert self._headers is not None, "start_response was not called"
            self.status, self.headers = self._headers

    def _send(self, chunk: bytes) -> None:
        assert type(chunk) is bytes
        if not chunk:
            return
        self._send_headers()
        room = len(chunk)
        if self.bodiless:
            room = 0
        elif self.length is not None:
            room = self.length - len(self.body)
        self.body += chunk[:room]
        self.spilt += chunk[room:]


def over_gunicorn(app: WSGIApplication, method: str, version: tuple[int, int] = (1, 1)) -> bytes:
    """Serve one request like gunicorn's workers. Return the bytes that a client receives."""
    request = SimpleNamespace(method=method, version=version, should_close=lambda: False)
    settings = SimpleNamespace(is_ssl=False, sendfile=None, protocol="http")
    environ = environ_with(gunicorn.http.wsgi.FileWrapper, method)
    ours, clients = socket.socketpair()
    with ours, clients:
        response = gunicorn.http.wsgi.Response(request, ours, settings)
        try:
            body: Any = app(environ, response.start_response)
            try:
                if isinstance(body, gunicorn.http.wsgi.FileWrapper):
                    response.write_file(body)
                else:
                    for chunk in body:
                        response.write(chunk)
                response.close()
            finally:
                if hasattr(body, "close"):
                    body.close()
        except EXPECTED:
            pass  # the connection is closed
        ours.shutdown(socket.SHUT_WR)
        with clients.makefile("rb") as stream:
            return stream.read()


def over_old_gunicorn(app: WSGIApplication, method: str) -> bytes:
    """Do the same for a client that speaks HTTP/1.0."""
    return over_gunicorn(app, method, (1, 0))


def over_wsgiref(app: WSGIApplication, method: str) -> bytes:
    """Serve one request like wsgiref. Return the bytes that a client receives."""
    return by_wsgiref(app, environ_with(wsgiref.util.FileWrapper, method))[0]


class Received(io.BytesIO):
    """An object that http.client uses as a socket. Remaining bytes can be read afterwards."""

    def makefile(self, mode: str) -> Received:
        return self

    def close(self) -> None: ...


@settings(max_examples=effort(200))
@given(script=scripts, coalesce=st.booleans(), nested=st.booleans())
def test_client_sees_what_the_app_meant(script: Script, coalesce: bool, nested: bool) -> None:
    meant_app, app = ScriptedApp(lawful(script)), ScriptedApp(script)
    meant = Server(meant_app, script.method)
    wrapped: WSGIApplication = app
    if script == lawful(script) and not nested:
        wrapped = wsgiref.validate.validator(wrapped)
    wrapped = WSGIFast(wrapped, coalesce=coalesce)
    if nested:
        wrapped = WSGIFast(wrapped, coalesce=coalesce)
    seen = Server(wsgiref.validate.validator(wrapped), script.method)

    assert not seen.spilt
    assert app.closed == [threading.get_ident()] * app.closable
    assert (seen.close_error is None) == (not app.closed or script.close != "raises")
    details = f"{vars(seen)}\nwas meant to be\n{vars(meant)}"
    assert seen.body == meant.body, details
    if isinstance(seen.error, BodyTooShort) and not meant.body:
        # The server can still send a 500 in place of half a response.
        assert seen.status is None, details
        return
    assert seen.status == meant.status, details
    assert [header for header in seen.headers if header[0] != "Content-Length"] == [
        header for header in meant.headers if header[0] != "Content-Length"
    ], details
    assert seen.complete == meant.complete, details
    if not meant.complete and meant.error is not None:
        assert type(seen.error) is type(meant.error), details


# The same apps over the servers' own code: the bytes on the wire


def without_empty_chunks(script: Script) -> Script:
    """Real servers send the headers with an empty first chunk. PEP 3333 allows it."""
    pieces, written = tuple(filter(None, script.pieces)), tuple(filter(None, script.written))
    return replace(script, pieces=pieces, written=written)


def is_for_real_servers(script: Script) -> bool:
    """Leave out mistakes that the servers themselves make."""
    return (
        # gunicorn also sends headers that were replaced from inside the iterator.
        script.restart not in ("before", "empty")
        # wsgiref loses its environ when close() raises, and fails because of that.
        and script.close != "raises"
    )


@settings(max_examples=effort(150))
@given(
    script=scripts.map(without_empty_chunks).filter(is_for_real_servers),
    coalesce=st.booleans(),
    serve=st.sampled_from([over_gunicorn, over_old_gunicorn, over_wsgiref]),
)
def test_wire_has_what_the_app_meant(script: Script, coalesce: bool, serve: Serve) -> None:
    meant = Server(ScriptedApp(lawful(script)), script.method)
    app = ScriptedApp(script)
    stream = Received(serve(WSGIFast(app, coalesce=coalesce), script.method))
    assert app.closed == [threading.get_ident()] * app.closable
    details = f"{stream.getvalue()!r} was meant to be {vars(meant)}"
    if not stream.getvalue():
        assert not meant.complete, details
        return
    response = http.client.HTTPResponse(stream, method=script.method)  # type: ignore[arg-type]
    response.begin()
    if response.status == 500 and not meant.complete and not meant.body:
        return
    assert f"{response.status} {response.reason}" == meant.status, details
    length = response.getheader("Content-Length")
    framed = meant.bodiless or length is not None or response.chunked
    try:
        body, whole = response.read(), True
    except http.client.IncompleteRead as error:
        body, whole = error.partial, False
    assert stream.read() == b"", details
    assert body == meant.body, details
    assert whole == meant.complete or not framed, details
