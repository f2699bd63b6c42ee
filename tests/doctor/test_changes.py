"""A change by the wrapper is a finding. A response that varies by itself is not."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asgifast
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Route

from tests.doctor.apps import Response, file_path, plain, wsgi, wsgi_app
from wsgifast import WSGIFast
from wsgifast.commands.doctor import Report, as_text, examination, examine


def raising() -> tuple[str, list[tuple[str, str]], Any]:
    raise RuntimeError("broken by wrapping")


def examined(
    monkeypatch: pytest.MonkeyPatch, own: Response, wrapped: Response, **options: Any
) -> Report:
    """Return an app, with a wrapper that sends other responses."""
    fake = lambda app, **options: WSGIFast(wsgi(own if options else wrapped))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(examination, "WSGIFast", fake)
        return examine(wsgi(own), ["/"], **options)


@pytest.mark.parametrize(
    ("own", "wrapped", "said"),
    [
        (plain(), raising, "wrapped: fails (RuntimeError: broken by wrapping"),
        (plain(), plain(status="500 Oops"), "wrapped: 500; unwrapped: 200"),
        (plain(), plain(b"p4ge"), "wrapped: other bytes (4 B); unwrapped: 4 B"),
        (plain(), plain(b"pag"), "wrapped: other bytes (3 B); unwrapped: 4 B"),
        (plain(Cache_Control="no-store"), plain(), "cache-control: none; unwrapped: no-store"),
        (plain(), plain(X_Other="a"), "x-other: a; unwrapped: none"),
        (plain(ETag='"a"'), plain(ETag='"b"'), 'etag: "b"; unwrapped: "a"'),
    ],
)
def test_response_changed_by_wrapping_is_wrong(
    monkeypatch: pytest.MonkeyPatch, own: Response, wrapped: Response, said: str
) -> None:
    report = examined(monkeypatch, own, wrapped)
    (finding,) = [each for each in report.findings if each.id == "WF017"]
    assert finding.severity == "wrong"
    assert said in finding.what
    assert report.good == 0


def test_response_enlarged_by_wrapping_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined(monkeypatch, plain(b"a" * 50, Content_Encoding="gzip"), plain(b"a" * 500))
    (finding,) = [each for each in report.findings if each.severity == "slow"]
    assert finding.id == "WF024"
    assert finding.what == ("wrapped: no coding; unwrapped: gzip; 500 B; unwrapped: 50 B")


def test_small_chunks_enlarged_by_compression_fix() -> None:
    def rows(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/csv")])
        return (b"%d,item %d\n" % (number, number) for number in range(2000))

    report = examine(WSGIFast(rows, compress=True), ["/"])
    (finding,) = [each for each in report.findings if each.id == "WF024"]
    assert finding.fix == "WSGIFast(app, coalesce=True) joins chunks before it compresses them"
    report = examine(WSGIFast(rows, compress=True, coalesce=True), ["/"])
    assert "WF024" not in [each.id for each in report.findings]


def test_headers_added_to_a_file_are_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = plain(ETag='"a"', Last_Modified="x", Accept_Ranges="bytes", Content_Length="4")
    assert not examined(monkeypatch, plain(), added).of("wrong", "slow")


def counter(form: str) -> Response:
    count = itertools.count()
    return lambda: ("200 OK", [("X-Number", str(next(count)))], [form.format(next(count)).encode()])


@pytest.mark.parametrize(
    "response",
    [
        counter("{}"),
        lambda: ("200 OK", [("Set-Cookie", os.urandom(8).hex())], [str(time.time_ns()).encode()]),
        lambda: ("200 OK", [("Date", str(time.time_ns()))], [b"x"]),
    ],
)
def test_response_that_changes_by_itself_is_no_change(response: Response) -> None:
    assert not examine(wsgi(response), ["/"]).of("wrong", "slow")


@given(st.lists(st.booleans(), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_app_that_answers_in_turns_is_not_changed(turns: list[bool]) -> None:
    """Some of the responses vary, such as every second one, or two of five."""
    way = itertools.cycle(turns)
    report = examine(wsgi(lambda: ("200 OK", [], [b"a" if next(way) else b"b"])), ["/"])
    assert not report.of("wrong"), as_text(report)


def asgi(kind: str, folder: Path) -> Any:
    async def file(request: Any) -> FileResponse:
        return FileResponse(folder / "app.js")

    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("x" * 10_000)

    middleware = [Middleware(GZipMiddleware)] if kind == "gzip" else []
    return Starlette(routes=[Route("/app.js", file), Route("/page", page)], middleware=middleware)


class Offering(asgifast.ASGIFast):
    """Middleware that offers pathsend to every app, unless an option forbids it."""

    def __init__(self, app: Any, *, pathsend: bool = True) -> None:
        super().__init__(app, pathsend=False)
        self._offers = pathsend

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] != "http.response.pathsend":
                await send(message)
                return
            data = Path(message["path"]).read_bytes()
            await send({"type": "http.response.body", "body": data})

        if scope["type"] == "http":
            extensions: dict[str, Any] = {"http.response.pathsend": {}} if self._offers else {}
            scope = {**scope, "extensions": extensions}
            await self.app(scope, receive, sending)
        else:
            await self.app(scope, receive, send)


def test_file_that_loses_its_compression_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.js").write_text("x" * 10_000)
    monkeypatch.setattr(asgifast, "ASGIFast", Offering)
    report = examine(asgi("gzip", tmp_path), ["/app.js", "/page"])
    (finding,) = [finding for finding in report.findings if finding.id == "WF024"]
    assert finding.endpoint.url == "/app.js"
    assert "no coding; unwrapped: gzip; 9.8 KiB; unwrapped:" in finding.what
    assert finding.fix == "ASGIFast(app, pathsend=False), or report a bug"
    report = examine(asgi("none", tmp_path), ["/app.js"])
    assert "WF024" not in [finding.id for finding in report.findings]


def test_pathsend_is_recommended_if_nothing_changes(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Middleware that ASGIFast does not know.

        Its second file is correct only without the extension.
        """
        path = file_path()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if "http.response.pathsend" in scope.get("extensions", ()):
            sent = path if scope["path"] == "/right" else Path(__file__)
            await send({"type": "http.response.pathsend", "path": str(sent)})
            return
        with path.open("rb") as file:
            while data := file.read(8192):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body"})

    async def starting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    found = {f.endpoint.url: (f.id, f.fix) for f in examine(starting, ["/right", "/no"]).of("slow")}
    fix = "ASGIFast(app, pathsend=True) on asgifast.uvicorn's protocols"
    assert found == {"/right": ("WF031", fix)}


def test_wrapped_app_is_compared_in_its_own_wrapper() -> None:
    """A wrapper with options. Problems that they solve are not reported again."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            bad = "http.response.pathsend" in scope["extensions"]
            status = 500 if bad else 200
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})

    assert [f.id for f in examine(app, ["/"]).of("wrong")] in (["WF017"], [])
    report = examine(asgifast.ASGIFast(app, pathsend=False), ["/"])
    assert report.was_wrapped
    assert not report.of("wrong"), as_text(report)
    assert not examine(WSGIFast(wsgi_app, coalesce=True), ["/good"]).of("wrong", "slow")
