"""WSGIFast's options, its errors, and TCP_NODELAY."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from tests.support import shapes
from tests.support.wsgi import Server, new_environ, returning, serve
from wsgifast import BodyError, ConfigurationError, WSGIFast

# TCP_NODELAY


@pytest.mark.parametrize("place", ["gunicorn.socket", "werkzeug.socket", "wsgi.input"])
def test_nodelay_is_set_once_for_a_connection(place: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    sock, _ = listener.accept()
    with listener, client, sock, sock.makefile("rb") as stream:
        app = WSGIFast(returning([b"x"]))
        extra: dict[str, Any] = {place: stream if place == "wsgi.input" else sock}
        Server(app, new_environ(**extra))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        Server(app, new_environ(**extra))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0, "it was set twice"


def test_socket_is_not_remembered_longer_than_it_lives() -> None:
    app = WSGIFast(returning([b"x"]))
    for _ in range(100):
        left, right = socket.socketpair()
        environ = new_environ()
        environ["gunicorn.socket"] = left
        Server(app, environ)
        del environ
        left.close()
        right.close()
        del left, right
    assert len(app._nodelay_set) <= 1


def test_client_that_has_gone_is_not_an_error() -> None:
    sock = socket.socket()
    sock.close()
    environ = new_environ()
    environ["gunicorn.socket"] = sock
    server = Server(WSGIFast(returning([b"x"])), environ)
    assert server.finish() == b"x"


# Options and errors


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        ("not an app", {}, "not an app"),
        (returning([]), {"coalesce": 3}, "coalesce is True or False, not 3"),
        (returning([]), {"nodelay": None}, "nodelay is True or False, not None"),
    ],
)
def test_invalid_option_of_wsgifast_is_refused(
    app: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WSGIFast(app, **options)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("none", r"returned NoneType.*\[\] for an empty body"),
        ("number", "returned int as its body: 42; return a list of bytes"),
        ("dict", "json.dumps"),
        ("set", "no order"),
        ("numbers", "with int in it: 1; yield bytes"),
        ("coroutine", "ASGIFast"),
        ("async-generator", "ASGIFast"),
        ("not-started", "without calling start_response"),
        ("unencodable", "cannot express.*utf-8"),
    ],
)
def test_errors_name_the_app_and_say_what_to_return(name: str, advice: str) -> None:
    with pytest.raises(BodyError, match=rf"(?s)the app tests\.support\.shapes\.broken .*{advice}"):
        Server(WSGIFast(shapes.broken), new_environ(path=f"/broken/{name}"))


def test_body_that_is_too_long_is_cut_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "wsgifast"):
        assert serve(iter([b"12345", b"6"]), ("Content-Length", "5")).finish() == b"12345"
    assert "more than its Content-Length of 5" in caplog.text
