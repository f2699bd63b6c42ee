"""Random apps with mistakes, raw and wrapped, on live servers: clients get the same responses.

Hypothesis writes the apps: wrong lengths, messages after the last one, bodies where none is
allowed, and errors at any point. One server process for each stack serves all of them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tests.conftest import WSGI_SERVERS
from tests.support import asgi_scripts, scripts
from tests.support.asgi_scripts import MessageScript
from tests.support.effort import LONG, effort
from tests.support.gunicorn import may_end_headers_with_bare_lf
from tests.support.scripts import Script, may_write, without_repairs
from tests.support.seen import Seen, ask, differences
from tests.support.servers import LiveServer, live_server

# A server, and the server of the raw app whose responses are the reference.
WSGI_STACKS = {
    "gunicorn-gthread": "gunicorn-gthread",
    "gunicorn-fastworker": "gunicorn-gthread",
    "waitress": "waitress",
}
ASGI_STACKS = {
    "httptools": "httptools",
    "asgifast.uvicorn:HttpToolsProtocol": "httptools",
    "h11": "h11",
    "asgifast.uvicorn:H11Protocol": "h11",
}
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    ASGI_STACKS["asgifast.uvicorn:ZttpProtocol"] = "httptools"

# No message follows the last one: if the raw app is not cancelled, the wrapped app is not.
ENDINGS = ("last", "empty", "none")

_limits = settings(
    max_examples=effort(100), derandomize=not LONG, database=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
_numbers = itertools.count()


def uvicorn(http: str) -> list[str]:
    return [
        "python", "-m", "uvicorn", "--port", "{port}", "--log-level", "critical",
        "--http", http, "tests.support.asgi_scripts:app",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, LiveServer]]:
    """Return servers by their names. :func:`started` adds missing ones."""
    with contextlib.ExitStack() as stack:
        yield _Servers(stack)


class _Servers(dict[str, LiveServer]):
    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def __missing__(self, name: str) -> LiveServer:
        argv = WSGI_SERVERS[name]("tests.support.scripts:app") if name in WSGI_SERVERS else None
        self[name] = self._stack.enter_context(live_server(argv or uvicorn(name)))
        return self[name]


texts = st.text("aé ", max_size=6).map(str.encode)
wsgi_scripts = st.builds(
    Script,
    method=st.sampled_from(["GET", "GET", "GET", "POST", "HEAD"]),
    # gunicorn also sends headers that were replaced. Other tests check that.
    status=st.sampled_from(
        ["200 OK", "200 OK", "200 OK", "200 OK", "204 None", "304 Same", "404 Not Found"]
    ),
    shape=st.sampled_from([*scripts.WHOLE, *scripts.FILES, *scripts.RUNNING, "iterator"]),
    pieces=st.lists(texts, max_size=5).map(tuple),
    type_=st.sampled_from([*scripts.TYPES, "bytes"]),
    length=st.sampled_from([None, "right", "right", "short", "long", "one short", "one long"]),
    written=st.lists(texts, max_size=2).map(tuple),
    restart=st.sampled_from([None, None, None, "after"]),
    error_at=st.sampled_from([None] * 6 + [0, 1, 2, 3, 4]),
    close=st.sampled_from([None, "counts"]),
    repeat=st.sampled_from([1, 100, 3000]),
    is_tagged=st.booleans(),
).filter(lambda script: not script.written or may_write(script))

message_scripts = st.builds(
    MessageScript,
    method=st.sampled_from(["GET", "GET", "GET", "HEAD"]),
    status=st.sampled_from([200, 200, 200, 200, 404, 204, 304]),
    kind=st.sampled_from(["text/plain", "text/plain", "text/plain", "image/png"]),
    sizes=st.lists(st.sampled_from([0, 1, 9, 100, 1000, 5000, 9000, 70_000]), max_size=6).map(
        tuple
    ),
    length=st.sampled_from([None, 0, 0, 0, -1, 1, 1000]),
    surplus=st.booleans(),
    end=st.sampled_from(["last", "empty", "none", "missing", "raises", "twice"]),
    is_file=st.sampled_from([False, False, False, True]),
    is_tagged=st.booleans(),
    waits=st.booleans(),
    catches=st.booleans(),
    listens=st.booleans(),
)
codings = st.sampled_from(["gzip", "gzip", "identity"])


def check(raw: Seen, script: object, others: dict[str, Seen], **facts: bool) -> None:
    for way, seen in others.items():
        found = differences(raw, seen, **facts)
        assert not found, f"{way}: {', '.join(found)}\n{script}\nraw: {raw}\n{way}: {seen}"


@pytest.mark.parametrize("stack", WSGI_STACKS)
@_limits
@example(Script(written=(b"some text",), length="one short", repeat=100), "gzip")
@example(Script(shape="wrapped file", pieces=(b"some text",), length="one long"), "identity")
@example(Script(shape="iterator", pieces=(b"some text",) * 9, length="one long"), "gzip")
@example(Script(shape="generator", pieces=(b"text",) * 9, length="right", error_at=9), "gzip")
@given(script=wsgi_scripts, coding=codings)
def test_wsgi_app_raw_and_wrapped_is_the_same(
    running: dict[str, LiveServer], stack: str, script: Script, coding: str
) -> None:
    # waitress ignores its own chunks there.
    assume(stack != "waitress" or not (script.written and script.shape == "wrapped file"))
    server, reference = running[stack], running[WSGI_STACKS[stack]]
    accepted = [("Accept-Encoding", coding)]
    right = without_repairs(script)
    bare_lf = may_end_headers_with_bare_lf(reference)

    def ask_for(server: LiveServer, script: Script, way: str) -> Seen:
        target = scripts.target_of(script, way)
        may_lack_cr = bare_lf and server is reference
        return ask(server.address, target, script.method, accepted, bare_lf=may_lack_cr)

    raw = ask_for(reference, right, "raw")
    seen = {way or "fast": ask_for(server, script, way) for way in scripts.WAYS if way != "raw"}
    if server is not reference:
        seen["raw"] = ask_for(server, right, "raw")
    if stack == "waitress" and script.method == "HEAD":
        for each in seen.values():
            each.surplus = each.surplus.removeprefix(b"0\r\n\r\n")  # the server's own
    fails = script.error_at is not None or script.restart is not None
    check(
        raw, script, seen,
        has_file=script.shape in scripts.FILES, fails=fails, declares=script.length is not None,
    )  # fmt: skip


@pytest.mark.parametrize("stack", ASGI_STACKS)
@_limits
@example(MessageScript(sizes=(5000,), length=1000), "gzip")
@example(MessageScript(sizes=(5000, 5000), length=1000, waits=True), "gzip")
@example(MessageScript(sizes=(1000,) * 5, length=0, surplus=True, end="empty"), "gzip")
@example(MessageScript(sizes=(1000,) * 5, length=0, surplus=True, end="last"), "identity")
@example(MessageScript(sizes=(100, 100), end="empty", listens=True), "gzip")
@example(MessageScript(sizes=(5,), end="none"), "identity")
@example(MessageScript(status=204, length=0), "identity")
@example(MessageScript(status=304, sizes=(5, 5), length=0), "identity")
@given(script=message_scripts, coding=codings)
def test_asgi_app_raw_and_wrapped_is_the_same(
    running: dict[str, LiveServer], stack: str, script: MessageScript, coding: str
) -> None:
    if "h11" in stack.lower():  # uvicorn's lets the client wait if the app continues
        script = replace(script, catches=False)
    server, reference = running[stack], running[ASGI_STACKS[stack]]
    accepted = [("Accept-Encoding", coding)]

    def play(on: LiveServer, way: str) -> tuple[Seen, bytes]:
        number = next(_numbers)
        target = asgi_scripts.target_of(script, way, number)
        seen = ask(on.address, target, script.method, accepted)
        requested = script.listens  # otherwise nothing cancels it
        return seen, ask(on.address, f"/outcome?{number}", "GET").body if requested else b""

    raw, outcome = play(reference, "raw")
    ways = [way for way in asgi_scripts.WAYS if way != "raw" or server is not reference]
    seen = {}
    for way in ways:
        seen[way], ended = play(server, way)
        if outcome == b"returned" and script.end in ENDINGS:
            assert ended == outcome, f"{way}: {ended!r}\n{script}\nraw: {raw}"
    fails = script.end == "raises"
    check(raw, script, seen, has_file=script.is_file, fails=fails)
