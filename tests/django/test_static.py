"""StaticFilesMiddleware among Django's middleware: its responses and files."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import django
import psutil
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import AsyncClient, Client, override_settings

from tests.asgi.support import call, scope_of
from tests.support.decoders import available, decoded_delta
from tests.support.files import settle
from tests.support.servers import wait_for
from tests.support.wsgi import Server, new_environ
from wsgifast import ConfigurationError
from wsgifast.django import StaticFilesMiddleware, get_asgi_application, get_wsgi_application

STYLE = Path("examples/django_project/polls/static/polls/style.css")
LARGE = os.urandom(400_000)

# Return the response to a path: its status, headers and body. The arguments may add headers.
Ask = Callable[..., tuple[int, dict[str, str], bytes]]


def ask_wsgi(path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    extra = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    server = Server(WSGIHandler(), new_environ(method, path, HTTP_HOST="localhost", **extra))
    return int(server.start[0][:3]), dict(server.start[1]), server.finish()


def ask_asgi(path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    response = call(ASGIHandler(), scope_of(path, method, host="localhost", **headers), body=b"")
    return response.status, dict(response.headers), response.body


@pytest.fixture(params=[ask_wsgi, ask_asgi])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Return Django's own handlers, WSGI and ASGI, with the middleware of the settings."""
    requested: Ask = request.param
    return requested


@pytest.fixture
def hashed() -> str:
    """Return the URL of the style sheet with a hash in its name."""
    page: str = Client().get("/").content.decode()
    found = re.search(r'href="(/static/polls/style\.[0-9a-f]{12}\.css)"', page)
    assert found is not None, page
    return found[1]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder of files that is STATIC_ROOT, without a manifest."""
    (tmp_path / "css").mkdir()
    (tmp_path / "css" / "a.css").write_bytes(b"a {}\n" * 100)
    (tmp_path / "css" / "a.css.gz").write_bytes(gzip.compress(b"a {}\n" * 100))
    (tmp_path / "large.bin").write_bytes(LARGE)
    (tmp_path / "robots.txt").write_bytes(b"Disallow: /\n")
    (tmp_path / "index.html").write_bytes(b"<p>index")
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    with override_settings(
        STATIC_ROOT=tmp_path, STORAGES={**settings.STORAGES, "staticfiles": plain}
    ):
        yield tmp_path


def test_collected_file_is_served(ask: Ask, hashed: str) -> None:
    status, headers, body = ask(hashed)
    assert status == 200
    assert b'url("background.' in body
    assert headers["Content-Type"] == "text/css; charset=utf-8"
    assert headers["Content-Length"] == str(len(body))
    assert headers["Cache-Control"] == "max-age=31536000, public, immutable"
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert headers["Vary"] == "Accept-Encoding"
    assert headers["X-Content-Type-Options"] == "nosniff"  # SecurityMiddleware sets it
    status, headers, body = ask("/static/polls/style.css")
    assert (status, body) == (200, STYLE.read_bytes())
    assert headers["Cache-Control"] == "max-age=60, public"


@pytest.mark.parametrize("path", ["/static/large.bin", "/static/css/a.css"])
def test_static_file_has_ranges_tags_and_precompressed(ask: Ask, root: Path, path: str) -> None:
    content = (root / path.removeprefix("/static/")).read_bytes()
    tag = ask(path)[1]["ETag"]
    for method, requested, expected in (
        ("GET", {}, (200, content)),
        ("HEAD", {}, (200, b"")),
        ("GET", {"range": "bytes=10-99"}, (206, content[10:100])),
        ("GET", {"range": f"bytes={len(content)}-"}, (416, b"")),
        ("GET", {"if_none_match": tag}, (304, b"")),
        ("GET", {"if_match": '"other"'}, (412, b"")),
    ):
        status, headers, body = ask(path, method, **requested)
        assert (status, body) == expected, requested
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert ("Content-Type" in headers) == (status != 304)
        size = {304: None, 416: "0", 412: "0", 206: "90"}.get(status, str(len(content)))
        assert headers.get("Content-Length") == size
    status, headers, body = ask(path, range="bytes=0-9,20-29")
    assert status == 206
    assert headers["Content-Type"].startswith("multipart/byteranges; boundary=")
    assert headers["Content-Length"] == str(len(body))
    assert content[20:30] in body
    if path.endswith(".css"):
        status, headers, body = ask(path, accept_encoding="gzip")
        assert (status, gzip.decompress(body)) == (200, content)
        assert headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "path",
    [
        "/static/nothing.css",
        "/static/css",
        "/static/css/",
        "/static/../settings.py",
        "/static/css/..%2f..%2fsettings.py",
        "/static//css/a.css",
        "/static/css\\a.css",
        "/static/.hidden",
        "/static/a\0b",
        "/robots.txt",
    ],
)
def test_path_without_a_file_goes_to_django(ask: Ask, root: Path, path: str) -> None:
    (root / ".hidden").write_bytes(b"no")
    status, headers, _ = ask(path)
    assert status == 404
    assert "X-Frame-Options" in headers  # set by inner middleware


def test_other_method_goes_to_django(ask: Ask, root: Path) -> None:
    assert ask("/static/css/a.css", "POST")[0] in (403, 404)


def test_root_serves_files_beside_the_static_ones(ask: Ask, root: Path) -> None:
    with override_settings(WHITENOISE_ROOT=root, WHITENOISE_INDEX_FILE=True):
        assert ask("/robots.txt")[2] == b"Disallow: /\n"
        assert ask("/")[2] == b"<p>index"
    assert b"Polls" in ask("/")[2]


@pytest.mark.parametrize("finds", [True, False], ids=["finders", "collected"])
@pytest.mark.parametrize("index", ["index.html", None])
def test_index_is_served_by_finders_too(
    ask: Ask, root: Path, finds: bool, index: str | None
) -> None:
    for folder in (root, root / "docs"):
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_bytes(b"<p>" + folder.name.encode())
    found = {"STATICFILES_DIRS": [root], "STATIC_ROOT": None} if finds else {}
    options = {"finders": finds, "index": index}
    with override_settings(WSGIFAST_STATIC=options, **found):
        for path, folder in (("/static/", root), ("/static/docs/", root / "docs")):
            status, _, body = ask(path)
            assert status == (404 if index is None else 200), path
            assert index is None or body == b"<p>" + folder.name.encode()
        status, headers, _ = ask("/static/docs")
        assert (status, headers.get("Location")) == (
            (404, None) if index is None else (302, "./docs/")
        )
        assert ask("/static/docs/index.html/")[0] == 404
        assert ask("/static/docs/index.html")[0] == 200


def test_files_of_the_finders_need_no_collectstatic(ask: Ask, root: Path) -> None:
    assert ask("/static/polls/style.css")[0] == 404
    with override_settings(DEBUG=True):
        status, headers, body = ask("/static/polls/style.css")
        assert (status, body) == (200, STYLE.read_bytes())
        assert headers["Cache-Control"] == "max-age=0, public"
        assert ask("/static/polls")[0] == 404
        assert ask("/static/polls/style.css/")[0] == 404
        assert ask("/static/admin/css/base.css")[0] == 200
        assert ask("/static/css/a.css")[0] == 200  # collected, and no finder knows it
    with override_settings(WSGIFAST_STATIC={"finders": True}, STATICFILES_DIRS=[("more", root)]):
        assert ask("/static/more/css/a.css", accept_encoding="gzip")[0] == 200
        assert ask("/static/more/../css/a.css")[0] == 404


@pytest.mark.parametrize(
    ("static_url", "script_name", "path"),
    [
        ("/assets/", None, "/assets/css/a.css"),
        ("https://cdn.example.com/assets/", None, "/assets/css/a.css"),
        ("/site/static/", "/site", "/static/css/a.css"),
    ],
)
def test_prefix_follows_static_url(
    ask: Ask, root: Path, static_url: str, script_name: str | None, path: str
) -> None:
    with override_settings(STATIC_URL=static_url, FORCE_SCRIPT_NAME=script_name):
        if ask is ask_asgi and script_name and django.VERSION >= (5, 0):
            path = script_name + path  # ASGI's path begins with it
        assert ask(path)[0] == 200


def test_settings_of_whitenoise_are_read(ask: Ask, root: Path) -> None:
    def add_headers(headers: Any, path: str, url: str) -> None:
        headers["X-Path"] = f"{Path(path).name} {url}"

    with override_settings(
        WHITENOISE_MAX_AGE=7,
        WHITENOISE_ALLOW_ALL_ORIGINS=False,
        WHITENOISE_CHARSET="latin-1",
        WHITENOISE_MIMETYPES={".css": "text/x-style"},
        WHITENOISE_ADD_HEADERS_FUNCTION=add_headers,
        WHITENOISE_STATIC_PREFIX="files",
        WHITENOISE_AUTOREFRESH=True,
        SERVESTATIC_MAX_AGE=8,
    ):
        _, headers, _ = ask("/files/css/a.css")
        assert headers["Cache-Control"] == "max-age=7, public"
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["Content-Type"] == "text/x-style; charset=latin-1"
        assert headers["X-Path"] == "a.css /files/css/a.css"
    for test in (r"^/static/css/", lambda path, url: url.endswith(".css")):
        with override_settings(WHITENOISE_IMMUTABLE_FILE_TEST=test):
            assert "immutable" in ask("/static/css/a.css")[1]["Cache-Control"]
            assert "immutable" not in ask("/static/large.bin")[1]["Cache-Control"]
    with override_settings(WSGIFAST_STATIC={"max_age": 9}, WHITENOISE_MAX_AGE=7):
        assert ask("/static/css/a.css")[1]["Cache-Control"] == "max-age=9, public"
    with override_settings(SERVESTATIC_MAX_AGE=8):
        assert ask("/static/css/a.css")[1]["Cache-Control"] == "max-age=8, public"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"max_agee": 1},
            "WSGIFAST_STATIC has no option 'max_agee'. Its options are add_headers, ",
        ),
        ({"max_age": "1"}, "max_age='1': whole seconds"),
        ({"root": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_wrong_setting_is_an_error_at_the_start(
    root: Path, wrong: dict[str, Any], message: str
) -> None:
    with override_settings(WSGIFAST_STATIC=wrong), pytest.raises(ConfigurationError, match=message):
        StaticFilesMiddleware(lambda request: request)


def test_test_clients_get_static_files(root: Path) -> None:
    for path in ("/static/large.bin", "/static/css/a.css"):
        response = Client().get(path)
        assert response.getvalue() == (root / path.removeprefix("/static/")).read_bytes()
        response.close()

    async def ask() -> Any:
        return await AsyncClient().get("/static/css/a.css")

    assert asyncio.run(ask()).content == b"a {}\n" * 100


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must:Warning")
@pytest.mark.parametrize(
    "middleware",
    ["whitenoise.middleware.WhiteNoiseMiddleware", "servestatic.middleware.ServeStaticMiddleware"],
)
def test_other_middleware_works_in_our_applications(root: Path, middleware: str) -> None:
    """The server sends WhiteNoise's files. ServeStatic uses its own iterator."""
    with override_settings(MIDDLEWARE=[middleware], SERVESTATIC_USE_MANIFEST=False):
        wsgi, asgi = get_wsgi_application(), get_asgi_application()
    for ranges, status, expected in ("", 200, LARGE), ("bytes=10-299999", 206, LARGE[10:300_000]):
        environ = new_environ("GET", "/static/large.bin", HTTP_HOST="localhost")
        environ["wsgi.file_wrapper"] = FileWrapper
        scope = scope_of("/static/large.bin", host="localhost")
        if ranges:
            environ["HTTP_RANGE"] = ranges
            scope["headers"].append((b"range", ranges.encode()))
        server = Server(wsgi, environ)
        assert (server.start[0][:3], server.finish()) == (str(status), expected)
        sent_as = "file" if "whitenoise" in middleware else "stream-blocks"
        assert server.environ["wsgifast.sent_as"] == sent_as
        response = call(asgi, scope, body=b"")
        assert (response.status, response.body) == (status, expected)


def test_answered_static_file_leaves_no_descriptor(ask: Ask, root: Path) -> None:
    for method, headers in ("GET", {}), ("HEAD", {}), ("GET", {"range": "bytes=0-9,20-29"}):
        ask("/static/large.bin", method, **headers)
    opened = [file.path for file in psutil.Process().open_files()]
    assert not [path for path in opened if path.endswith("large.bin")]


def test_hashed_file_is_offered_as_a_dictionary(ask: Ask, hashed: str) -> None:
    with override_settings(WSGIFAST_STATIC={"dictionaries": True}):
        for path, offer in [
            (hashed, 'match="/static/polls/style.*.css"'),
            ("/static/polls/style.css", None),
        ]:
            _, headers, _ = ask(path)
            assert headers.get("Use-As-Dictionary") == offer
        assert ask(hashed)[1]["Vary"] == "Accept-Encoding, Available-Dictionary"


def test_django_client_of_old_release_gets_a_delta(ask: Ask, root: Path) -> None:
    old = "".join(f".rule-{number} {{ margin: {number}px }}\n" for number in range(200)).encode()
    new = old + b".more { margin: 0 }\n"
    (root / "css" / "b.0123456789ab.css").write_bytes(old)
    (root / "css" / "b.ba9876543210.css").write_bytes(new)
    settle(*(root / "css").iterdir())
    requested = {"accept_encoding": "br, dcz", "available_dictionary": available(old)}
    get = partial(ask, "/static/css/b.ba9876543210.css", **requested)

    with override_settings(WSGIFAST_STATIC={"dictionaries": True, "immutable": r"\.css$"}):
        wait_for(lambda: get()[1].get("Content-Encoding") == "dcz", "the delta is made")
        assert decoded_delta(get()[2], old) == new
