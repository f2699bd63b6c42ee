"""`report_slow_shapes`: the examined responses, the warnings, and how often they appear."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from asgifast import ASGIFast
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.asgi import support
from tests.support.wsgi import Server, new_environ
from wsgifast import ConfigurationError, WSGIFast
from wsgifast.bodies import slow_shapes as module
from wsgifast.bodies.slow_shapes import BodySeen, Chunks, Reports, slow_shape
from wsgifast.metrics.instrumented import call_noting_pattern

CRUMB = b"0123456789"
BLOCK = b"b" * 8192


# Rules


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (BodySeen(Chunks([10] * 20), "list"), "WF001"),
        (BodySeen(Chunks([10] * 20), "iterator"), "WF003"),
        (BodySeen(Chunks([10] * 20), "messages"), "WF030"),
        (BodySeen(Chunks([10] * 15), "list"), None),
        (BodySeen(Chunks([5000] * 20), "list"), None),
        (BodySeen(Chunks([10] * 20), "file"), "WF007"),
        (BodySeen(Chunks([10]), "file"), None),
        (BodySeen(Chunks([10]), "wrapped-file"), "WF007"),
        (BodySeen(Chunks([8192] * 20), "iterator", file_bytes=20 * 8192), "WF008"),
        (BodySeen(Chunks([8192] * 20), "messages", file_bytes=20 * 8192), "WF031"),
        (BodySeen(Chunks([1 << 20] * 20), "iterator", file_bytes=20 << 20), None),
        (BodySeen(Chunks([20 << 20]), "iterator", file_bytes=20 << 20), "WF009"),
        (BodySeen(Chunks([8192]), "iterator", file_bytes=8192), None),
        (BodySeen(Chunks([10] * 20), "iterator", is_events=True), "WF023"),
        (BodySeen(Chunks([10] * 20, [0.0, *[0.1] * 19]), "iterator"), "WF023"),
        # the time may differ on a busy machine
        (BodySeen(Chunks([10] * 20, [0.0, *[0.1] * 19]), "messages", file_bytes=200), "WF031"),
        (BodySeen(Chunks([10], [0.1]), "iterator", is_events=True), None),
        (BodySeen(Chunks(), "iterator"), None),
    ],
)
def test_slow_shape_is_named_by_its_chunks(seen: BodySeen, expected: str | None) -> None:
    assert slow_shape(seen) == expected


# WSGI


def crumbs_in_a_list() -> Iterable[bytes]:
    return [CRUMB] * 300


def crumbs() -> Iterator[bytes]:
    yield from [CRUMB] * 300


def blocks() -> Iterator[bytes]:
    yield from [BLOCK] * 40
    yield b"end"


def one() -> Iterable[bytes]:
    return [CRUMB * 30]


def bare(make: Callable[[], Iterable[bytes]], *headers: tuple[str, str]) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), *headers])
        return make()

    return app


def call(app: Any, path: str = "/") -> tuple[str, list[tuple[str, str]], bytes]:
    """Return a response: its status, headers and body."""
    server = Server(app, new_environ(path=path))
    body = server.finish()
    return *server.start, body


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return the log lines of wsgifast. A server may log another line, once in a process."""
    ours = [record for record in caplog.records if record.name == "wsgifast"]
    return [(record.levelno, record.getMessage()) for record in ours]


@pytest.mark.parametrize(
    ("make", "level", "text"),
    [
        (crumbs_in_a_list, logging.INFO, "WF001: {} returns 300 chunks (list), median 10 B; "),
        (crumbs, logging.WARNING, "WF003: {} returns 300 chunks (iterator), median 10 B; "),
        (blocks, logging.WARNING, "WF008: {} returns 41 chunks (iterator), median 8 KiB; "),
    ],
)
def test_slow_shape_is_logged_once(
    make: Any, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wsgifast")
    app = WSGIFast(bare(make), report_slow_shapes=1)
    for _ in range(3):
        assert call(app, "/some/path")[2] == b"".join(make())
    ((found, message),) = said(caplog)
    assert found == level
    endpoint = "a URL without a pattern ('GET' '/some/path')"
    assert message.startswith(text.format(endpoint))
    assert message.endswith(f"wsgifast doctor --explain {message[:5]} says more")


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("make", [crumbs_in_a_list, crumbs, blocks, one])
def test_examined_response_is_the_same(make: Any, rate: float) -> None:
    assert call(WSGIFast(bare(make), report_slow_shapes=rate)) == call(WSGIFast(bare(make)))


def test_good_shape_or_pausing_app_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wsgifast")
    for app in (bare(one), bare(crumbs, ("X-Accel-Buffering", "no"))):
        call(WSGIFast(app, report_slow_shapes=1))
    assert said(caplog) == []


def test_small_coalesced_chunks_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wsgifast")
    call(WSGIFast(bare(crumbs), report_slow_shapes=1, coalesce=True))
    ((level, message),) = said(caplog)
    assert level == logging.INFO
    assert message.startswith("WF003")


def test_endpoint_is_the_pattern_of_flask(caplog: pytest.LogCaptureFixture) -> None:
    app = flask.Flask("shop")

    @app.route("/export/<int:year>")
    def export(year: int) -> flask.Response:
        return flask.Response(crumbs())

    @app.route("/list/<int:year>")
    def listed(year: int) -> flask.Response:
        return flask.Response([CRUMB] * 300)

    caplog.set_level(logging.INFO, "wsgifast")
    wrapped = WSGIFast(app, report_slow_shapes=1)
    for year in range(5):
        assert call(wrapped, f"/export/{year}")[2] == CRUMB * 300
        assert call(wrapped, f"/list/{year}")[2] == CRUMB * 300
    exported, in_a_list = (message for _, message in said(caplog))
    assert exported.startswith("WF003: /export/<int:year> ('GET' '/export/0') returns 300 chunks")
    assert in_a_list.startswith("WF001: /list/<int:year> ('GET' '/list/0') returns 300 chunks")


def test_text_of_a_client_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    app = WSGIFast(bare(crumbs), report_slow_shapes=1)
    call(app, "/a\r\nforged\x1b[31m" + "x" * 200)
    ((_, message),) = said(caplog)
    assert message.isprintable()
    assert len(message) < 300


def test_body_of_a_gone_client_is_closed_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield from [CRUMB] * 300

        def close(self) -> None:
            closed.append("once")

    app = WSGIFast(bare(Body), report_slow_shapes=1)
    body: Any = Server(app).result
    chunks = iter(body)
    assert [next(chunks) for _ in range(20)] == [CRUMB] * 20
    body.close()
    body.close()
    assert closed == ["once"]
    ((_, message),) = said(caplog)
    assert "20 chunks (iterator)" in message


def test_chunks_of_an_examined_body_are_not_delayed() -> None:
    made: list[int] = []

    def counted() -> Iterator[bytes]:
        for number in range(50):
            made.append(number)
            yield CRUMB

    app = WSGIFast(bare(counted), report_slow_shapes=1)
    body = Server(app).result
    for number, chunk in enumerate(body):
        assert chunk == CRUMB
        assert made[-1] == number
    assert len(made) == 50


def test_endless_body_is_examined_up_to_a_limit() -> None:
    seen: list[BodySeen] = []
    reports: Any = SimpleNamespace(picks=lambda: True, report=lambda *args: seen.append(args[3]))
    app = module.ExaminedApp(
        bare(lambda: (CRUMB for _ in range(5000))), reports, call_noting_pattern
    )
    body: Any = Server(app).result
    assert sum(map(len, body)) == 50_000
    body.close()
    (found,) = seen
    assert found.chunks.all_count == 5000
    assert found.chunks.count == len(found.chunks.waits_s) == module.EXAMINED_CHUNKS


# How often warnings appear


def test_share_of_examined_responses_is_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", iter([0.0, 0.009, 0.01, 0.5]).__next__)
    reports = Reports(0.01, fixed=frozenset())
    assert [reports.picks() for _ in range(4)] == [True, True, False, False]


def test_endpoint_is_logged_once_an_hour(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    reports = Reports(1, fixed=frozenset())
    seen = BodySeen(Chunks([10] * 20), "list")

    def report(pattern: str) -> int:
        before = len(caplog.records)
        reports.report("GET", pattern, "/", seen)
        return len(caplog.records) - before

    assert [report("/a"), report("/a"), report("/b")] == [1, 0, 1]
    now += 3599
    assert report("/a") == 0
    now += 1
    assert [report("/a"), report("/a")] == [1, 0]
    reported = sum(report(f"/{number}") for number in range(2000))
    assert reported == 999
    now += 3600
    assert report("/late") == 1


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, "0.01", None, True])
@pytest.mark.parametrize("wrap", [WSGIFast, ASGIFast])
def test_share_that_cannot_be_is_refused(wrap: Any, rate: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    with pytest.raises(ConfigurationError, match="report_slow_shapes"):
        wrap(app if wrap is ASGIFast else bare(one), report_slow_shapes=rate)


# ASGI


@pytest.mark.parametrize(
    ("make", "coalesce", "level", "text"),
    [
        (crumbs, True, logging.INFO, "WF030: {} returns 300 chunks (messages), median 10 B; "),
        (crumbs, False, logging.WARNING, "WF030: {} returns 300 chunks (messages), median 10 B; "),
        (blocks, True, logging.WARNING, "WF031: {} returns 41 chunks (messages), median 8 KiB; "),
    ],
)
def test_messages_of_an_asgi_app_are_examined(
    make: Any, coalesce: bool, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def export(request: Any) -> StreamingResponse:
        async def chunks() -> Any:
            for chunk in make():
                yield chunk

        return StreamingResponse(chunks())

    caplog.set_level(logging.INFO, "wsgifast")
    app = ASGIFast(
        Starlette(routes=[Route("/export/{year}", export)]),
        report_slow_shapes=1,
        coalesce=coalesce,
    )
    for year in range(3):
        assert support.call(app, support.scope_of(f"/export/{year}")).body == b"".join(make())
    ((found, message),) = said(caplog)
    assert found == level
    pattern = "/export/{year} ('GET' '/export/0')"
    unknown = "a URL without a pattern ('GET' '/export/0')"  # older versions of Starlette have it
    assert message.startswith((text.format(pattern), text.format(unknown)))


def test_other_scopes_and_unpicked_requests_pass(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    wrapped = ASGIFast(app, report_slow_shapes=1e-12)
    for kind in ("lifespan", "websocket"):
        asyncio.run(wrapped({"type": kind}, None, None))  # type: ignore[arg-type]
    support.call(wrapped, support.scope_of(), whole=False)
    assert seen == ["lifespan", "websocket", "http"]


def test_app_is_called_directly_when_it_is_off() -> None:
    app = bare(one)
    assert WSGIFast(app)._call is app
