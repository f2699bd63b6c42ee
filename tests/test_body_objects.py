"""Bodies of random classes, raw on wsgiref's own handler and wrapped: the same bytes."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import servers_with
from tests.support.body_objects import BASES, CONTENTS, METHODS, OTHERS, TRANSFORMS, WRAPS, Spec
from tests.support.body_objects import answer as answer_with
from tests.support.effort import effort
from tests.support.http import Connection
from tests.support.servers import LiveServer
from tests.support.wsgi import by_wsgiref, new_environ
from wsgifast import WSGIFast

# Python 3.12 and later: the close() of a body that has one of its own does not close the file.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")

few_methods = st.lists(st.sampled_from(METHODS), max_size=3, unique=True).map(tuple)
specs = st.builds(
    Spec,
    kind=st.sampled_from([*BASES, *BASES, *OTHERS]),
    wrap=st.sampled_from(WRAPS),
    content=st.sampled_from(list(CONTENTS)),
    transform=st.sampled_from(list(TRANSFORMS)),
    on_class=few_methods,
    on_instance=st.one_of(st.just(()), few_methods),
    position=st.sampled_from([0, 0, 0, 3]),
)


class Answer:
    """Return the reference: the response of wsgiref's handler for an app."""

    def __init__(self, app: Any, method: str = "GET", **extra: str) -> None:
        sent, self.errors = by_wsgiref(app, new_environ(method, **extra))
        head, _, self.body = sent.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1]) if status else 0
        self.headers = {
            name.lower(): value.strip(" ")
            for name, _, value in (line.partition(":") for line in lines)
        }

    @property
    def length(self) -> int | None:
        value = self.headers.get("content-length")
        return None if value is None else int(value)

    def __str__(self) -> str:
        shown = self.body if len(self.body) < 80 else self.body[:60] + b"..." + self.body[-20:]
        return f"{self.status} {self.headers}, {len(self.body)} bytes: {shown!r}\n{self.errors}"


class App:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.closed: list[int] = []
        self.body: object = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        self.body = answer_with(self.spec, environ, start_response, self.closed)
        return self.body


def check(spec: Spec, method: str, range_: str | None, tagged: bool) -> None:
    raw_app, app = App(spec), App(spec)
    raw = Answer(raw_app)
    if raw.status != 200 or raw.errors:
        return  # it does not work alone
    if spec.size is not None:
        spec = replace(spec, size=len(raw.body))
        app = App(spec)
    wrapped_app = WSGIFast(app)
    whole = Answer(wrapped_app)
    told = f"{spec}\nraw: {raw}\nwrapped: {whole}"
    assert (whole.status, whole.body) == (200, raw.body), told
    assert whole.length in (None, len(raw.body)), told
    for name in ("content-type", "x-spec"):
        assert whole.headers[name] == raw.headers[name], told
    assert raw_app.closed == app.closed, told
    coded = Answer(WSGIFast(App(spec), compress=True, coalesce=True), HTTP_ACCEPT_ENCODING="gzip")
    is_coded = coded.headers.get("content-encoding") == "gzip"
    content = gzip.decompress(coded.body) if is_coded else coded.body
    assert (coded.status, content) == (200, raw.body), f"{told}\ncompressed: {coded}"
    extra = {}
    if range_ is not None:
        extra["HTTP_RANGE"] = range_
    if tagged:
        extra["HTTP_IF_NONE_MATCH"] = whole.headers.get("etag", '"x"')
    answer = Answer(WSGIFast(App(spec)), method, **extra)
    told += f"\n{method} {extra}: {answer}"
    if answer.status != 200:
        assert spec.is_plain_file, told
        assert method in ("GET", "HEAD"), told
    if answer.status == 304:
        assert tagged, told
        assert "etag" in whole.headers, told
    elif answer.status == 416:
        assert len(raw.body) in (0, 1, 2, 3, 4, 5), told
    elif answer.status == 206:
        first, _, rest = answer.headers["content-range"].removeprefix("bytes ").partition("-")
        last, _, size = rest.partition("/")
        assert answer.body == raw.body[int(first) : int(last) + 1], told
        assert int(size) == len(raw.body), told
    elif method == "HEAD" and spec.wrap == "response":
        pass  # Werkzeug leaves the body out by itself
    elif method == "HEAD":
        # The same headers as to GET.
        assert (answer.status, answer.body) == (200, b""), told
        for name in whole.headers.keys() - {"date"}:
            # A body that is empty for HEAD may be another one for GET.
            unknown = name == "content-length" and whole.body == b""
            assert unknown or answer.headers.get(name) == whole.headers[name], told
    else:
        assert (answer.status, answer.body) == (200, raw.body), told


@settings(max_examples=effort(400), suppress_health_check=[HealthCheck.too_slow])
@given(
    spec=specs,
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    range_=st.sampled_from([None, "bytes=0-0", "bytes=2-", "bytes=-3", "bytes=1-2"]),
    tagged=st.booleans(),
    sized=st.booleans(),
)
def test_body_of_any_class_is_what_wsgiref_sends(
    spec: Spec, method: str, range_: str | None, tagged: bool, sized: bool
) -> None:
    check(replace(spec, size=0 if sized else None), method, range_, tagged)


server = servers_with(
    "tests.support.body_objects:both", ["gunicorn-fastworker", "fast-wsgiref", "fast-werkzeug"]
)


@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs, sized=st.booleans())
def test_our_servers_send_what_wsgiref_sends(server: LiveServer, spec: Spec, sized: bool) -> None:
    meant = Answer(App(spec))
    if meant.status != 200 or meant.errors:
        return
    if sized:
        spec = replace(spec, size=len(meant.body))
    for path in ("/raw", "/wrapped"):
        with Connection(server.address) as connection:
            response = connection.request(f"{path}?{spec.query()}")
        told = f"{path} {spec}\nmeant: {meant}\nreceived: {response}"
        assert (response.status, response.body) == (200, meant.body), told
        assert response.header("X-Spec") == spec.kind, told
