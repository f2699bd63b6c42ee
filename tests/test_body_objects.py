"""Bodies of random classes, raw on wsgiref's own handler and wrapped: the bytes are equal."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import servers_with
from tests.support.body_objects import BASES, CONTENTS, METHODS, OTHERS, TRANSFORMS, WRAPS, Spec
from tests.support.body_objects import respond as respond_with
from tests.support.effort import effort
from tests.support.http import Connection
from tests.support.servers import LiveServer
from tests.support.wsgi import by_wsgiref, new_environ
from wsgifast import WSGIFast

# On Python 3.12 and later, a body's own close() does not close the file.
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


class Response:
    """Return the reference: the response of wsgiref's handler for an app."""

    def __init__(self, app: Any, method: str = "GET", **extra: str) -> None:
        sent, self.errors = by_wsgiref(app, new_environ(method, **extra))
        block, _, self.body = sent.partition(b"\r\n\r\n")
        status, *lines = block.decode("latin-1").split("\r\n")
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
        self.body = respond_with(self.spec, environ, start_response, self.closed)
        return self.body


def check(spec: Spec, method: str, range_: str | None, tagged: bool) -> None:
    raw_app, app = App(spec), App(spec)
    raw = Response(raw_app)
    if raw.status != 200 or raw.errors:
        return  # it does not work alone
    if spec.size is not None:
        spec = replace(spec, size=len(raw.body))
        app = App(spec)
    wrapped_app = WSGIFast(app)
    whole = Response(wrapped_app)
    details = f"{spec}\nraw: {raw}\nwrapped: {whole}"
    assert (whole.status, whole.body) == (200, raw.body), details
    assert whole.length in (None, len(raw.body)), details
    for name in ("content-type", "x-spec"):
        assert whole.headers[name] == raw.headers[name], details
    assert raw_app.closed == app.closed, details
    compressed = Response(
        WSGIFast(App(spec), compress=True, coalesce=True), HTTP_ACCEPT_ENCODING="gzip"
    )
    is_compressed = compressed.headers.get("content-encoding") == "gzip"
    content = gzip.decompress(compressed.body) if is_compressed else compressed.body
    assert (compressed.status, content) == (200, raw.body), f"{details}\ncompressed: {compressed}"
    extra = {}
    if range_ is not None:
        extra["HTTP_RANGE"] = range_
    if tagged:
        extra["HTTP_IF_NONE_MATCH"] = whole.headers.get("etag", '"x"')
    response = Response(WSGIFast(App(spec)), method, **extra)
    details += f"\n{method} {extra}: {response}"
    if response.status != 200:
        assert spec.is_plain_file, details
        assert method in ("GET", "HEAD"), details
    if response.status == 304:
        assert tagged, details
        assert "etag" in whole.headers, details
    elif response.status == 416:
        assert len(raw.body) in (0, 1, 2, 3, 4, 5), details
    elif response.status == 206:
        first, _, rest = response.headers["content-range"].removeprefix("bytes ").partition("-")
        last, _, size = rest.partition("/")
        assert response.body == raw.body[int(first) : int(last) + 1], details
        assert int(size) == len(raw.body), details
    elif method == "HEAD" and spec.wrap == "response":
        pass  # Werkzeug omits the body by itself
    elif method == "HEAD":
        # The same headers as for GET.
        assert (response.status, response.body) == (200, b""), details
        for name in whole.headers.keys() - {"date"}:
            # A body that is empty for HEAD may differ for GET.
            unknown = name == "content-length" and whole.body == b""
            assert unknown or response.headers.get(name) == whole.headers[name], details
    else:
        assert (response.status, response.body) == (200, raw.body), details


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
    meant = Response(App(spec))
    if meant.status != 200 or meant.errors:
        return
    if sized:
        spec = replace(spec, size=len(meant.body))
    for path in ("/raw", "/wrapped"):
        with Connection(server.address) as connection:
            response = connection.request(f"{path}?{spec.query()}")
        details = f"{path} {spec}\nmeant: {meant}\nreceived: {response}"
        assert (response.status, response.body) == (200, meant.body), details
        assert response.header("X-Spec") == spec.kind, details
