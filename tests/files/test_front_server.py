"""Files that the front server sends: which files, under which names, and through a real nginx."""

from __future__ import annotations

import io
import os
import tempfile
import wsgiref.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import bottle
import pytest
import werkzeug.wsgi

from tests.conftest import wsgi_server
from tests.support import django_project
from tests.support.files import write_old
from tests.support.http import Response
from tests.support.nginx import nginx_before
from tests.support.programs import program
from tests.support.servers import LiveServer
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast
from wsgifast.files.app_files import FrontServer, front_server_of
from wsgifast.sockets.sending import FileSegment, file_segment

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HEADERS = [("Content-Type", "a/b"), ("content-length", "5")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one file. Another file beside it must not be sent."""
    shared = tmp_path / "shared"
    shared.mkdir()
    write_old(Path(shared, "file"), b"hello")
    Path(tmp_path, "secret").write_bytes(b"hello")
    Path(tmp_path, "shared-too").mkdir()
    Path(tmp_path, "shared-too", "file").write_bytes(b"hello")
    return shared


def nginx_front(locations: dict[str, str]) -> FrontServer:
    front = front_server_of(accel_redirect=locations)
    assert front is not None
    return front


def handed(front: FrontServer, path: Any, headers: Any = HEADERS) -> str | None:
    with open(path, "rb") as file:
        segment = file_segment(file)
        assert segment
        return named(front.delegate(headers, file, segment))


def named(headers: list[tuple[str, str]] | None) -> str | None:
    if headers is None:
        return None
    remaining = dict(headers)
    assert remaining.pop("Content-Length") == "0"
    assert remaining.pop("Content-Type") == "a/b"
    (_, value), *others = remaining.items()
    assert others == []
    return value


def test_front_server_gets_the_name_of_the_file(folder: Path) -> None:
    for location in ("/internal/", "/internal"):
        front = nginx_front({str(folder): location})
        assert handed(front, folder / "file") == "/internal/file"
        assert handed(front, os.fsencode(folder / "file")) == "/internal/file"
    by_apache = front_server_of(x_sendfile=[f"{folder}/"])
    assert by_apache is not None
    assert handed(by_apache, folder / "file") == quote(f"{folder}/file")


@pytest.mark.parametrize(
    "name",
    [
        b"with space",
        b"100%25?#&+;",
        b"a\r\nSet-Cookie: b",
        "größe".encode(),
        b"\xff\xfe",
        b"\\..\\",
    ],
)
def test_name_of_a_file_is_escaped(folder: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(folder), name)
    Path(os.fsdecode(path)).write_bytes(b"hello")
    value = handed(nginx_front({str(folder): "/internal/"}), path)
    assert value
    assert value.isascii()
    assert not set(value) & set(' \r\n?#"')
    assert unquote(value, errors="surrogateescape") == "/internal/" + os.fsdecode(name)


def test_longest_prefix_decides(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    Path(inner, "file").write_bytes(b"hello")
    for order in (1, -1):
        locations = dict([(str(folder), "/outer/"), (str(inner), "/inner/")][::order])
        front = nginx_front(locations)
        assert handed(front, inner / "file") == "/inner/file"
        assert handed(front, folder / "file") == "/outer/file"


def test_response_that_does_not_fit_is_not_handed_over(folder: Path) -> None:
    front = nginx_front({str(folder): "/internal/"})
    assert handed(front, folder.parent / "secret") is None
    assert handed(front, folder.parent / "shared-too" / "file") is None
    assert handed(front, f"{folder}/../secret") is None
    for header in (("Content-Encoding", "gzip"), ("x-accel-redirect", "/elsewhere")):
        assert handed(front, folder / "file", [*HEADERS, header]) is None
    with open(folder / "file", "rb") as file:
        fd = file.fileno()
        assert named(front.delegate(HEADERS, file, FileSegment(fd, 0, 5))) == "/internal/file"
        assert front.delegate(HEADERS, file, FileSegment(fd, 1, 4)) is None
        assert front.delegate(HEADERS, file, FileSegment(fd, 0, 4)) is None
        with open(fd, "rb", closefd=False) as nameless:
            assert front.delegate(HEADERS, nameless, FileSegment(fd, 0, 5)) is None
        assert front.delegate(HEADERS, object(), FileSegment(fd, 0, 5)) is None


def test_symbolic_link_is_resolved(folder: Path) -> None:
    front = nginx_front({str(folder): "/internal/"})
    Path(folder, "out").symlink_to("../secret")
    assert handed(front, folder / "out") is None
    Path(folder.parent, "in").symlink_to("shared/file")
    assert handed(front, folder.parent / "in") == "/internal/file"
    # The folder's own path may contain a link.
    Path(folder.parent, "alias").symlink_to("shared")
    aliased = nginx_front({str(folder.parent / "alias"): "/internal/"})
    assert handed(aliased, folder / "file") == "/internal/file"


def test_file_renamed_since_is_not_handed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = nginx_front({str(folder): "/internal/"})
    path = folder / "file"
    with open(path, "rb") as file:
        segment = FileSegment(file.fileno(), 0, 5)
        Path(folder, "new").write_bytes(b"world")
        os.replace(folder / "new", path)
        assert front.delegate(HEADERS, file, segment) is None
        path.unlink()
        assert front.delegate(HEADERS, file, segment) is None
    # A relative name would mean another file after a change of the working directory.
    path.write_bytes(b"hello")
    monkeypatch.chdir(folder.parent / "shared-too")
    with open("file", "rb") as file:
        monkeypatch.chdir(folder)
        assert front.delegate(HEADERS, file, FileSegment(file.fileno(), 0, 5)) is None


class Unlinked(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            super().close()
            os.unlink(self.name)


def _with_own_close(body: Any) -> Any:
    close = body.close
    body.close = lambda: close()
    return body


def _django_response(path: Path, *closers: Callable[[], object]) -> Any:
    django_project.set_up()
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import FileResponse

    class Handler(WSGIHandler):  # type: ignore[misc]
        def get_response(self, request: Any) -> Any:
            response = FileResponse(path.open("rb"))
            response._resource_closers += [request.close, *closers]
            return response

    return Handler()


@pytest.mark.parametrize(
    ("make", "is_handed"),
    [
        (lambda path: path.open("rb"), True),
        (lambda path: path.open("rb", buffering=0), True),
        (lambda path: wsgiref.util.FileWrapper(path.open("rb")), True),
        (lambda path: werkzeug.wsgi.FileWrapper(path.open("rb")), True),
        (lambda path: bottle.WSGIFileWrapper(path.open("rb")), True),
        # The app's close() may remove the file.
        (lambda path: Unlinked(path), False),
        (lambda path: io.BufferedReader(Unlinked(path)), False),
        (lambda path: wsgiref.util.FileWrapper(Unlinked(path)), False),
        (lambda path: _with_own_close(path.open("rb")), False),
        (lambda path: _with_own_close(wsgiref.util.FileWrapper(path.open("rb"))), False),
        (lambda path: _with_own_close(werkzeug.wsgi.FileWrapper(path.open("rb"))), False),
        (lambda path: werkzeug.wsgi.ClosingIterator(path.open("rb"), path.unlink), False),
        # The app has made the file for this response and may replace it soon. nginx would then send
        # parts of both files.
        (lambda path: _rewritten(path), False),
        (lambda path: _named_temporary(path, delete=True), False),
        (lambda path: _named_temporary(path, delete=False), False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("kind", ["accel_redirect", "x_sendfile"])
def test_file_ending_with_its_response_stays(
    folder: Path, kind: str, method: str, make: Callable[[Path], Any], is_handed: bool
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Type", "a/b")])
        return make(folder / "file")

    check_handed(app, folder, kind, method, is_handed)


@pytest.mark.parametrize("wraps_with", ["nothing", "Sentry"])
@pytest.mark.parametrize("unlinks", [False, True])
def test_django_file_is_handed_over_unless_it_closes(
    folder: Path, unlinks: bool, wraps_with: str
) -> None:
    closers = [(folder / "file").unlink] if unlinks else []
    app = _django_response(folder / "file", *closers)
    if wraps_with == "Sentry":
        sentry = pytest.importorskip("sentry_sdk.integrations.wsgi")
        app = sentry.SentryWsgiMiddleware(app)
    check_handed(app, folder, "accel_redirect", "GET", not unlinks)


def check_handed(app: Any, folder: Path, kind: str, method: str, is_handed: bool) -> None:
    handed_by: Any = {str(folder): "/internal/"} if kind == "accel_redirect" else [str(folder)]
    environ = new_environ(method)
    environ["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
    server = Server(WSGIFast(app, **{kind: handed_by}), environ)
    sent = server.finish()
    assert (environ["wsgifast.sent_as"] == "accel") == is_handed
    if is_handed:
        assert sent == b""
        assert server.header("Content-Length") == "0"
    elif method == "GET":
        assert sent == b"hello"


def _rewritten(path: Path) -> Any:
    path.write_bytes(b"hello")
    return path.open("rb")


def _named_temporary(path: Path, *, delete: bool) -> Any:
    file = tempfile.NamedTemporaryFile(dir=path.parent, delete=delete)
    file.write(b"hello")
    file.seek(0)
    return file


# nginx

LOCATIONS = """
location /internal/ {{
    internal;
    alias {root}/shared/;
    add_header X-Copied $upstream_http_x_app;
}}
location /inner/ {{ internal; alias {root}/shared/inner/; }}
"""
CONTENT = os.urandom(300_000)
NAMES = ["file", "with space", "100%25 ?#&+;", "größe", "a\nb", "inner/file"]


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """nginx in front of the wrapped app, on folders that both can read."""
    program("nginx")  # before a server is started for the test
    root, folder = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("nginx")
    (root / "shared" / "inner").mkdir(parents=True)
    for name in (*(f"shared/{name}" for name in NAMES), "unshared"):
        Path(root, name).write_bytes(CONTENT)
    Path(root, "shared", "out").symlink_to("../unshared")
    app = "tests.support.files:front_served_app"
    with (
        wsgi_server("gunicorn-gthread", app, env={"FILES_ROOT": str(root)}) as backend,
        nginx_before(backend, folder, LOCATIONS.format(root=root)) as started,
    ):
        yield started


def sent_by_nginx(response: Response) -> bool:
    """nginx drops those headers of the app that it does not know."""
    return response.header("X-App") is None


@pytest.mark.parametrize("name", NAMES)
def test_nginx_sends_the_file(nginx: LiveServer, name: str) -> None:
    response = nginx.get(f"/shared/{quote(name)}")
    assert response.status == 200, f"{response}\n{nginx.log()}"
    assert response.body == CONTENT
    assert sent_by_nginx(response)
    assert response.header("Content-Type") == "text/plain"
    assert response.header("Cache-Control") == "max-age=60"
    if not name.startswith("inner"):
        assert response.header("X-Copied") == "was here"


def test_nginx_answers_ranges_and_conditions(nginx: LiveServer) -> None:
    response = nginx.get("/shared/file", headers=[("Range", "bytes=5-9")])
    assert (response.status, response.body) == (206, CONTENT[5:10])
    assert sent_by_nginx(response)
    etag = response.header("ETag") or ""
    assert nginx.get("/shared/file", headers=[("If-None-Match", etag)]).status == 304
    received = nginx.get("/shared/file", method="HEAD")
    assert received.header("Content-Length") == str(len(CONTENT))


@pytest.mark.parametrize(
    "target", ["/unshared", "/shared/out", "/shared/file?temporary", "/shared/file?encoded"]
)
def test_other_files_are_sent_by_the_app(nginx: LiveServer, target: str) -> None:
    response = nginx.get(target)
    assert response.body == CONTENT
    assert not sent_by_nginx(response)


def test_header_of_a_client_has_no_effect(nginx: LiveServer) -> None:
    assert nginx.get("/internal/file").status == 404
    headers = [
        (name, value)
        for name in ("X-Accel-Redirect", "X-Accel-Mapping", "X-Sendfile", "X-Sendfile-Type")
        for value in ("/internal/file", "/=/internal/", "X-Accel-Redirect")
    ]
    response = nginx.get("/unshared", headers=headers)
    assert response.body == CONTENT
    assert not sent_by_nginx(response)
