"""Entity tags of dynamic responses: WSGIFast and ASGIFast with `etag`, and with compression."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from asgifast import ASGIFast

from wsgifast import WSGIFast
from wsgifast.bodies.entity_rules import MOST_BYTES

Pairs = Sequence[tuple[str, str]]
PAGE = b"<p>a page</p>" * 300
HTML = ("Content-Type", "text/html")


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def tag(self) -> str:
        return self.headers.get("etag", "")


Ask = Callable[..., Got]


def ask_wsgi(
    body: bytes, headers: Pairs, requested: Pairs = (), method: str = "GET", status: int = 200,
    **options: Any,
) -> Got:  # fmt: skip
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response(f"{status} Whatever", [*headers])
        return [body]

    seen: list[Any] = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/", "wsgi.url_scheme": "http"}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in requested}
    wrapped = WSGIFast(app, etag=True, **options)
    start: Any = lambda *args: seen.append(args)  # noqa: E731
    data = b"".join(wrapped(environ, start))
    sent, found = seen[0][0], seen[0][1]
    return Got(int(sent[:3]), {name.lower(): value for name, value in found}, data)


def ask_asgi(
    body: bytes, headers: Pairs, requested: Pairs = (), method: str = "GET", status: int = 200,
    **options: Any,
) -> Got:  # fmt: skip
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in requested],
        "client": None, "server": None,
    }  # fmt: skip
    asyncio.run(ASGIFast(app, etag=True, **options)(scope, receive, send))
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Got(sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]))


@pytest.fixture(params=[ask_wsgi, ask_asgi], ids=["WSGIFast", "ASGIFast"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


def test_page_gets_a_weak_tag_and_304(ask: Ask) -> None:
    first = ask(PAGE, [HTML, ("Cache-Control", "private"), ("X-Own", "1")])
    assert (first.status, first.body) == (200, PAGE)
    assert first.tag.startswith('W/"')
    for requested in (first.tag, f'"other", {first.tag}', first.tag.removeprefix("W/"), "*"):
        again = ask(PAGE, [HTML, ("Cache-Control", "private")], [("If-None-Match", requested)])
        assert (again.status, again.body, again.tag) == (304, b"", first.tag)
        assert again.headers["cache-control"] == "private"
        assert not {"content-type", "content-length"} & again.headers.keys()


def test_other_bytes_get_another_tag(ask: Ask) -> None:
    first = ask(PAGE, [HTML])
    other = ask(PAGE + b".", [HTML], [("If-None-Match", first.tag)])
    assert (other.status, other.body) == (200, PAGE + b".")
    assert other.tag not in ("", first.tag)


def test_head_has_the_tag_of_get(ask: Ask) -> None:
    first = ask(PAGE, [HTML])
    assert ask(PAGE, [HTML], method="HEAD").tag == first.tag
    assert ask(PAGE, [HTML], [("If-None-Match", first.tag)], method="HEAD").status == 304


@pytest.mark.parametrize(
    ("body", "headers", "method", "status"),
    [
        (PAGE, [HTML, ("Set-Cookie", "a=b")], "GET", 200),
        (PAGE, [HTML, ("Cache-Control", "private, No-Store")], "GET", 200),
        (PAGE, [HTML], "POST", 200),
        (PAGE, [HTML], "GET", 404),
        (PAGE, [HTML], "GET", 203),
        (b"", [HTML], "GET", 200),
        (bytes(MOST_BYTES + 1), [HTML], "GET", 200),
    ],
    ids=["cookie", "no-store", "POST", "404", "203", "empty", "large"],
)
def test_other_response_gets_no_tag(
    ask: Ask, body: bytes, headers: Pairs, method: str, status: int
) -> None:
    found = ask(body, headers, [("If-None-Match", "*")], method=method, status=status)
    assert (found.status, found.body, found.tag) == (status, body, "")


def test_tag_of_the_app_stays(ask: Ask) -> None:
    found = ask(PAGE, [HTML, ("ETag", '"own"')], [("If-None-Match", '"own"')])
    assert (found.status, found.tag) == (200, '"own"')


def test_compressed_page_has_a_tag_of_its_own_and_304(ask: Ask) -> None:
    compressed = [("Accept-Encoding", "gzip")]
    plain, first = (ask(PAGE, [HTML], requested, compress=True) for requested in ((), compressed))
    assert gzip.decompress(first.body) == PAGE
    assert first.tag not in ("", plain.tag)
    again = ask(PAGE, [HTML], [*compressed, ("If-None-Match", first.tag)], compress=True)
    assert (again.status, again.body, again.tag) == (304, b"", first.tag)
    assert "Accept-Encoding" in again.headers["vary"]
    changed = ask(PAGE * 2, [HTML], [*compressed, ("If-None-Match", first.tag)], compress=True)
    assert changed.status == 200


def test_app_without_the_option_gets_no_tag() -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [HTML])
        return [PAGE]

    start: Any = lambda *args: seen.append(args)  # noqa: E731
    assert [*WSGIFast(app)({"REQUEST_METHOD": "GET"}, start)] == [PAGE]
    assert "etag" not in dict(seen[0][1])
