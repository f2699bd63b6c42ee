"""serve_media: uploads behind an access check of the project, sent by the server or by nginx."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from django.http import Http404
from django.middleware.gzip import GZipMiddleware
from django.test import Client, RequestFactory, override_settings

from tests.support.files import WholeFileWrapper
from tests.support.nginx import nginx_before
from tests.support.programs import program
from tests.support.servers import LiveServer, live_server
from tests.workers.serving import gunicorn_command
from wsgifast import ConfigurationError
from wsgifast.django import serve_media

CONTENT = os.urandom(300_000)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The folder MEDIA_ROOT."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "large file.bin").write_bytes(CONTENT)
    (folder / "small.txt").write_bytes(b"small")
    (folder / "empty.txt").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"no")
    (tmp_path / "outside.txt").write_bytes(b"outside")
    (folder / "link.txt").symlink_to("../outside.txt")
    with override_settings(MEDIA_ROOT=folder):
        yield folder


def ask(path: str, method: str = "get", **headers: str) -> Any:
    extra = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    return serve_media(getattr(RequestFactory(), method)(f"/media/{path}", **extra), path)


def test_gzip_middleware_encodes_whole_files_no_parts(root: Path) -> None:
    (root / "short.txt").write_bytes(b"x" * 1000)
    for path, content in (("large file.bin", CONTENT), ("short.txt", b"x" * 1000)):
        view = GZipMiddleware(lambda request, path=path: serve_media(request, path))
        for extra, expected in (({}, content), ({"HTTP_RANGE": "bytes=5-504"}, content[5:505])):
            request = RequestFactory().get("/", HTTP_ACCEPT_ENCODING="gzip", **extra)
            response = view(request)
            body = response.getvalue()
            response.close()
            if extra:
                assert "Content-Encoding" not in response
                assert response["Content-Length"] == "500"
            else:
                body = gzip.decompress(body)
            assert body == expected


def test_part_on_a_server_of_whole_files_is_right(root: Path) -> None:
    for wrapper, has_descriptor in ((WholeFileWrapper, False), (FileWrapper, True)):
        request = RequestFactory().get("/", HTTP_RANGE="bytes=5-9")
        request.META["wsgi.file_wrapper"] = wrapper
        response: Any = serve_media(request, "large file.bin")
        assert hasattr(response.file_to_stream, "fileno") is has_descriptor
        assert b"".join(response.streaming_content) == CONTENT[5:10]
        response.close()


def test_uploaded_file_is_sent(root: Path) -> None:
    for path in ("large file.bin", "small.txt", "empty.txt"):
        response = ask(path)
        assert response.getvalue() == (root / path).read_bytes()
        assert response["Cache-Control"] == "private, no-cache"
        response.close()
    part = ask("large file.bin", range="bytes=5-9")
    assert (part.status_code, part.getvalue()) == (206, CONTENT[5:10])
    part.close()
    assert ask("small.txt", "post").status_code == 405


@pytest.mark.parametrize("path", ["nothing", ".hidden", "link.txt", "", "/etc/passwd", "../x"])
@pytest.mark.parametrize("behind", [False, True])
def test_missing_upload_is_404(root: Path, path: str, behind: bool) -> None:
    media = {"accel_redirect": {str(root): "/protected/"}} if behind else {}
    with override_settings(WSGIFAST_MEDIA=media), pytest.raises(Http404):
        ask(path)


def test_missing_folder_is_404(tmp_path: Path) -> None:
    with override_settings(MEDIA_ROOT=tmp_path / "media"), pytest.raises(Http404):
        ask("file")


def test_accel_redirect_names_the_file(root: Path) -> None:
    with override_settings(WSGIFAST_MEDIA={"accel_redirect": {root: "/protected/"}}):
        for path in ("large file.bin", "small.txt"):
            for method in ("get", "head"):
                # The same for ranges and preconditions, which nginx handles.
                response = ask(path, method, range="bytes=0-1", if_none_match="*")
                assert response["X-Accel-Redirect"] == f"/protected/{path.replace(' ', '%20')}"
                assert response["Content-Length"] == "0"
                assert response["Cache-Control"] == "private, no-cache"
                assert response.content == b""
        assert ask("small.txt")["Content-Type"] == "text/plain; charset=utf-8"
        assert "X-Accel-Redirect" not in ask("empty.txt")
    with override_settings(WSGIFAST_MEDIA={"accel_redirect": {root.parent: "/other/"}}):
        assert ask("small.txt")["X-Accel-Redirect"] == "/other/media/small.txt"
    with override_settings(WSGIFAST_MEDIA={"x_sendfile": [str(root)]}):
        assert ask("small.txt")["X-Sendfile"] == f"{root}/small.txt"


def test_file_outside_the_locations_is_sent_by_the_app(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    locations = {str(tmp_path / "elsewhere"): "/protected/"}
    with override_settings(WSGIFAST_MEDIA={"accel_redirect": locations}):
        response = ask("small.txt")
        assert "X-Accel-Redirect" not in response
        assert response.content == b"small"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"accel": {}},
            "WSGIFAST_MEDIA has no option 'accel'. Its options are accel_redirect, x_sendfile",
        ),
        ({"accel_redirect": "/protected/"}, "takes a mapping of folders"),
        ({"accel_redirect": {"/no/such": "/protected/"}}, "'/no/such'"),
    ],
)
def test_wrong_setting_is_an_error(root: Path, wrong: dict[str, Any], message: str) -> None:
    from wsgifast.django.checks import check_settings

    with override_settings(WSGIFAST_MEDIA=wrong):
        (error,) = check_settings()
        assert error.id == "wsgifast.E001"
        assert message in error.msg
        with pytest.raises(ConfigurationError):
            ask("small.txt")


LOCATIONS = "location /protected/ {{ internal; alias {root}/; }}"


@pytest.fixture(scope="module")
def nginx(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """nginx in front of the project on FastWorker."""
    program("nginx")  # before a server is started for the test
    (data / "media").mkdir(exist_ok=True)
    (data / "media" / "größe 1.bin").write_bytes(CONTENT)
    argv = gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", "-b", "127.0.0.1:{port}",
        "examples.django_project.wsgi",
    )  # fmt: skip
    env = {"DJANGO_PROJECT_DATA": str(data), "DJANGO_BEHIND_NGINX": "1"}
    locations = LOCATIONS.format(root=data / "media")
    folder = tmp_path_factory.mktemp("nginx")
    with (
        live_server(argv, env=env) as backend,
        nginx_before(backend, folder, locations) as started,
    ):
        yield started


def test_nginx_sends_a_file_to_a_logged_in_user(nginx: LiveServer) -> None:
    from django.contrib.auth import get_user_model

    client = Client()
    client.force_login(get_user_model().objects.create(username=os.urandom(8).hex()))
    cookie = ("Cookie", f"sessionid={client.cookies['sessionid'].value}")
    path = "/media/gr%C3%B6%C3%9Fe%201.bin"
    whole = nginx.get(path, headers=[cookie])
    assert (whole.status, whole.body) == (200, CONTENT), nginx.log()
    assert whole.header("Cache-Control") == "private, no-cache"
    assert whole.header("X-Frame-Options") is None  # nginx passes on few headers of the app
    part = nginx.get(path, headers=[cookie, ("Range", "bytes=5-9")])
    assert (part.status, part.body) == (206, CONTENT[5:10])
    assert nginx.get(path).status == 302
    assert nginx.get("/protected/gr%C3%B6%C3%9Fe%201.bin", headers=[cookie]).status == 404
