"""WSGIFast from the side of clients: one suite, live, over every WSGI server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.conftest import gunicorn, servers_with
from tests.support.decoders import decoded
from tests.support.gunicorn import may_end_headers_with_bare_lf
from tests.support.http import Connection, Response, reset_on_close
from tests.support.servers import LiveServer, live_server, wait_for
from tests.support.shapes import BROKEN_NAMES, FAILING_NAMES, SHAPES
from tests.support.tls import client_context, write_certificate
from wsgifast.compression.codings import available_codings

pytestmark = pytest.mark.long

# Servers that are started by their commands: a fork of a process that has imported everything does
# not show a late import.
STARTED_ANEW = ("gunicorn-gthread", "gunicorn-fastworker")
APPS_NAME = "the app tests.support.shapes.raw"


# Live servers with the wrapped app of every shape, and the same app with other options.
server = servers_with("tests.support.shapes:app", started_anew=STARTED_ANEW)
coalescing_server = servers_with(
    "tests.support.shapes:coalescing_app", ["gunicorn-gthread", "wsgiref", "waitress"]
)
compressing_server = servers_with("tests.support.shapes:compressing_app")


def check(response: Response, name: str) -> None:
    shape = SHAPES[name]
    assert response.status == 200, f"{name}: {response}"
    assert response.body == shape.expected, (
        f"{name}: {len(response.body)} bytes came for {len(shape.expected)}\n{response}"
    )
    if shape.sized:
        assert response.header("Content-Length") == str(len(shape.expected)), f"{name}: {response}"


def test_every_shape_arrives_whole(server: LiveServer) -> None:
    for name in SHAPES:
        check(server.get(f"/{name}"), name)


def test_every_shape_arrives_whole_when_coalesced(
    coalescing_server: LiveServer,
) -> None:
    for name in SHAPES:
        check(coalescing_server.get(f"/{name}"), name)


def test_every_shape_compressed_decodes_to_the_same(compressing_server: LiveServer) -> None:
    codings = itertools.cycle([*available_codings(), None])
    compressed = set()
    for (name, shape), coding in zip(SHAPES.items(), codings, strict=False):
        accepted = [("Accept-Encoding", coding or "identity")]
        response = compressing_server.get(f"/{name}", headers=accepted)
        assert response.status == 200, f"{name}: {response}"
        used = response.header("Content-Encoding")
        assert used in (None, coding), name
        assert decoded(used, response.body) == shape.expected, f"{name}: {response}"
        if used is None:
            continue
        compressed.add(name)
        assert response.header("Vary") == "Accept-Encoding", name
        received = compressing_server.get(f"/{name}", method="HEAD", headers=accepted)
        # The length is GET's with content coding if that is known, and never a length of other
        # bytes.
        assert received.header("Content-Encoding") in (None, used), f"{name}: {received}"
        if (length := received.header("Content-Length")) is None:
            continue
        if length != response.header("Content-Length"):  # a copy of a large file has been made
            response = compressing_server.get(f"/{name}", headers=accepted)
            assert response.header("ETag") == received.header("ETag"), name
            assert decoded(used, response.body) == shape.expected, f"{name}: {response}"
        assert response.header("Content-Length") == length, f"{name}: {received}"
    assert len(compressed) > len(SHAPES) / 4


def test_compressed_body_that_breaks_off_fails(compressing_server: LiveServer) -> None:
    for name in FAILING_NAMES:
        with Connection(compressing_server.address) as connection:
            headers = [("Accept-Encoding", "gzip"), *leaving(compressing_server)]
            connection.send_request(f"/failing/{name}", headers=headers)
            received = connection.read_headers()
            if received.status == 500:
                continue
            rest = connection.read_to_end()
            if received.header("Transfer-Encoding") is not None:
                assert not rest.endswith(b"0\r\n\r\n"), f"{name}: a last chunk after an error"


@pytest.mark.parametrize("worker", ["gthread", "sync"])
def test_without_sendfile(worker: str) -> None:
    with live_server(gunicorn(worker, "tests.support.shapes:app", "--no-sendfile")) as server:
        for name in SHAPES:
            check(server.get(f"/{name}"), name)


@pytest.mark.parametrize("worker", ["gthread", "sync", "gevent"])
def test_tls(worker: str, tmp_path: Path) -> None:
    pem = write_certificate(tmp_path / "pem")
    context = client_context()
    tls = (f"--certfile={pem}", f"--keyfile={pem}", "--threads=4")
    with live_server(gunicorn(worker, "tests.support.shapes:app", *tls)) as server:
        for name in SHAPES:
            check(server.get(f"/{name}", tls=context), name)


def test_http_1_0(server: LiveServer) -> None:
    for name in ("bare-bytes", "crumbs", "generator", "open-file", "written"):
        with Connection(server.address) as connection:
            check(connection.request(f"/{name}", version="1.0"), name)


def test_response_poisons_no_next_one(server: LiveServer) -> None:
    connection = Connection(server.address)
    try:
        for name in SHAPES:
            for method in ("GET", "HEAD", "GET"):
                response = connection.request(f"/{name}", method=method)
                if method == "GET":
                    check(response, name)
                else:
                    assert response.status == 200
                    # A response to HEAD without a body may also mean that the app did not make one.
                    # Apache sends the length of a file in mod_wsgi's wrapper only with the file
                    # itself.
                    theirs = name == "servers-own-wrapper" and runs(server, "mod_wsgi")
                    if SHAPES[name].sized and SHAPES[name].expected and not theirs:
                        length = response.header("Content-Length")
                        assert length == str(len(SHAPES[name].expected)), f"{name}: {response}"
                if method == "HEAD" and ends_headers_with_a_last_chunk(server, response):
                    assert connection.read(5) == b"0\r\n\r\n"
                    connection.close()
                    connection = Connection(server.address)
                elif not response.keep_alive:
                    # No byte may follow a response that closes its connection.
                    assert connection.read_to_end() == b"", f"{method} {name}"
                    connection.close()
                    connection = Connection(server.address)
    finally:
        connection.close()


def ends_headers_with_a_last_chunk(server: LiveServer, response: Response) -> bool:
    """waitress and pywsgi have this fault if the app sets no Content-Length."""
    unsized = response.header("Transfer-Encoding") == "chunked"
    return unsized and runs(server, "waitress", "pywsgi")


def leaving(server: LiveServer) -> list[tuple[str, str]]:
    """Apache waits for 5 s before it closes a connection after a body that broke off."""
    return [("Connection", "close")] if runs(server, "mod_wsgi") else []


def runs(server: LiveServer, *names: str) -> bool:
    """Return whether the server is one of these."""
    return any(name in str(server.process.args) for name in names)


def test_statuses_without_a_body(server: LiveServer) -> None:
    for code, query in itertools.product([204, 304], ["", "?file", "?iterator", "?empty"]):
        target = f"/status/{code}{query}"
        with Connection(server.address) as connection:
            response = connection.request(target)
            assert response.status == code, target
            assert response.header("Content-Length") is None, target
            if response.keep_alive:
                check(connection.request("/one-chunk"), "one-chunk")
            else:
                assert connection.read_to_end() == b"", target


def test_body_that_cannot_be_repaired_is_a_500(server: LiveServer) -> None:
    bare_lf = may_end_headers_with_bare_lf(server)
    for name in BROKEN_NAMES:
        logged = server.log().count(APPS_NAME)
        if runs(server, "uwsgi"):  # if an app raises, it closes the connection
            with Connection(server.address) as connection:
                connection.send_request(f"/broken/{name}")
                assert connection.read_to_end()[:12] in (b"", b"HTTP/1.1 500"), name
        else:
            response = server.get(f"/broken/{name}", bare_lf=bare_lf)
            assert response.status == 500, f"{name}: {response}"
        # The log names the app, so that its author finds the cause.
        if name != "raises":
            wait_for(
                lambda logged=logged: server.log().count(APPS_NAME) > logged,  # type: ignore[misc]
                f"the log of /broken/{name} names the app",
            )


def test_body_that_breaks_off_never_looks_whole(server: LiveServer) -> None:
    for name in FAILING_NAMES:
        with Connection(server.address) as connection:
            connection.send_request(f"/failing/{name}", headers=leaving(server))
            received = connection.read_headers()
            if received.status == 500:
                continue  # the server had not sent the headers yet
            rest = connection.read_to_end()  # this waits and times out if the connection stays open
            if received.header("Content-Length") is not None:
                assert len(rest) < 1000, f"{name}: {received}"
            elif received.header("Transfer-Encoding") is not None:
                assert not rest.endswith(b"0\r\n\r\n"), f"{name}: a last chunk after an error"


def test_close_is_called_once_for_each_body(server: LiveServer) -> None:
    def counts() -> list[int]:
        return [int(count) for count in server.get("/closing/count").body.split()]

    opened, closed = counts()
    server.get("/closing/whole")
    with Connection(server.address) as connection:
        connection.send_request("/closing/raises", headers=leaving(server))
        connection.read_to_end()
    with Connection(server.address) as connection:
        connection.request("/closing/whole", method="HEAD")
    with Connection(server.address) as connection:
        connection.send_request("/closing/endless")
        connection.read_headers()
        connection.read(100_000)  # and then the client has left
    wait_for(
        lambda: counts() == [opened + 4, closed + 4],
        "four more bodies were opened and closed",
        30,  # waitress notices it between the blocks of the endless body
    )


def test_clients_that_leave_leave_no_file_open(server: LiveServer) -> None:
    targets = ["/open-file", "/werkzeug-wrapper", "/servers-own-wrapper", "/gzip-file"]
    # One range, and several.
    ranges = ["bytes=1-", "bytes=0-0,100000-"]
    for target, range_ in itertools.product(targets, ["", *ranges] * 3):
        with Connection(server.address, receive_buffer=4096) as connection:
            connection.send_request(target, headers=[("Range", range_)] if range_ else [])
            connection.read_headers()
            reset_on_close(connection.sock)
    wait_for(
        lambda: not server.open_files("*wsgifast-shapes-*"),
        "the files of clients that have left are closed",
    )
    check(server.get("/open-file"), "open-file")


def test_request_body_arrives(server: LiveServer) -> None:
    response = server.get("/post", method="POST", body=b"x" * 100_000)
    assert response.body == b"echo of 100000"


def test_nodelay_is_on_if_the_socket_is_reachable(server: LiveServer) -> None:
    # The first two set it without our help. uWSGI and Apache pass their sockets to no app.
    unreachable = runs(server, "waitress", "fast-wsgiref", "uwsgi", "mod_wsgi")
    expected = b"out of reach" if unreachable else b"True"
    with Connection(server.address) as connection:
        assert connection.request("/nodelay").body == expected


def test_access_log_of_gunicorn_prints_sent_as() -> None:
    log_format = "%(U)s went out as %({wsgifast.sent_as}e)s, %(B)s bytes"
    options = ("--threads=4", "--access-logfile=-", f"--access-logformat={log_format}")
    with live_server(gunicorn("gthread", "tests.support.shapes:app", *options)) as server:
        for name in ("bare-bytes", "generator", "one-chunk"):
            server.get(f"/{name}")
        size = len(SHAPES["bare-bytes"].expected)
        for line in (
            f"/bare-bytes went out as rescued, {size} bytes",
            f"/generator went out as stream-small, {len(SHAPES['generator'].expected)} bytes",
            "/one-chunk went out as as-is, 5 bytes",
        ):
            wait_for(lambda line=line: line in server.log(), f"the log says {line!r}")  # type: ignore[misc]
