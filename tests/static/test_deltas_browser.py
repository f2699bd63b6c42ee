"""A real Chromium visits two releases of a site of real packages, and counts the bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.chromium import Chromium, Fetched, chromium
from tests.support.files import settle
from tests.support.http import get
from tests.support.nginx import nginx_before
from tests.support.releases import RELEASES, hashed_name, packed_file, publish
from tests.support.servers import LiveServer, live_server, wait_for

_SCRIPTS = (
    "[Plotly.version, typeof bootstrap.Modal, getComputedStyle(document.body).margin,"
    " webpackChunk_jupyterlab_application_top.length]"
)
_WITHOUT = "--disable-features=CompressionDictionaryTransport,CompressionDictionaryTransportBackend"
_SERVERS = {
    "FastWorker": ["gunicorn", "-k", "wsgifast.workers.FastWorker", "--threads", "4"],
    "uvicorn": ["uvicorn"],
}


class Site:
    """Return a site that is released twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "files").mkdir()

    def release(self, number: int) -> None:
        page = publish(self.folder / "files", RELEASES[number], "/static/")
        (self.folder / "page.html").write_text(page)
        settle(*(self.folder / "files").iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(params=["FastWorker", "uvicorn", "nginx"])
def server(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Iterator[LiveServer]:
    """A server of the site. One of the servers is FastWorker behind nginx."""
    behind = request.param == "nginx"
    name = "FastWorker" if behind else request.param
    bind = ["--port", "{port}"] if name == "uvicorn" else ["--bind", "127.0.0.1:{port}"]
    app = f"tests.static.deltas_app:{'asgi' if name == 'uvicorn' else 'wsgi'}"
    argv = ["python", "-m", *_SERVERS[name], *bind, app]
    with ExitStack() as stack:
        env = {"TEST_SITE": str(site.folder)}
        started = stack.enter_context(live_server(argv, env=env))
        if behind:
            started = stack.enter_context(nginx_before(started, tmp_path, ""))
        yield started


def has_dictionaries(browser: Chromium, seen: list[Fetched]) -> bool:
    """Return whether the browser has stored the fetched files. It stores them later.

    It then names a dictionary when it requests another release.
    """
    others = [re.sub(r"\.[0-9a-f]{12,20}\.", ".0123456789ab.", fetched.url) for fetched in seen]
    browser.forget()
    browser.evaluate(f"Promise.all({json.dumps(others)}.map(url => fetch(url)))")
    requested = browser.fetched()
    return all("available-dictionary" in requested[url].request for url in others)


def make_deltas(site: Site, server: LiveServer) -> None:
    """Request the second release's deltas until the server has made them."""
    for number, (old, new) in enumerate(zip(*RELEASES, strict=True)):
        digest = hashlib.sha256(packed_file(*old)).digest()
        headers = [
            ("Accept-Encoding", "dcz"),
            ("Available-Dictionary", f":{base64.b64encode(digest).decode()}:"),
        ]
        path = f"/static/{hashed_name(*new)}"

        def is_delta(path: str = path, headers: list[tuple[str, str]] = headers) -> bool:
            return get(server.address, path, headers=headers).header("Content-Encoding") == "dcz"

        wait_for(is_delta, f"delta {number} is made")


def make_copies(server: LiveServer, number: int) -> None:
    """Request a release's files until all are compressed.

    At first, large files are sent uncompressed.
    """
    for each in RELEASES[number]:
        path = f"/static/{hashed_name(*each)}"

        def is_compressed(path: str = path) -> bool:
            accepted = [("Accept-Encoding", "br")]
            return get(server.address, path, headers=accepted).header("Content-Encoding") == "br"

        wait_for(is_compressed, f"{path} is compressed")


def files_of(seen: dict[str, Fetched]) -> list[Fetched]:
    return [fetched for url, fetched in seen.items() if "/static/" in url]


def test_returning_chromium_gets_deltas(site: Site, server: LiveServer, tmp_path: Path) -> None:
    site.release(0)
    make_copies(server, 0)
    assert isinstance(server.address, tuple)
    url = f"http://localhost:{server.address[1]}/"
    with chromium(tmp_path / "one") as browser:
        first = files_of(browser.visit(url))
        before = browser.evaluate(_SCRIPTS)
        wait_for(lambda: has_dictionaries(browser, first), "the browser has stored dictionaries")
        site.release(1)
        make_deltas(site, server)
        again = files_of(browser.visit(url))
        after = browser.evaluate(_SCRIPTS)
    assert {fetched.headers["content-encoding"] for fetched in first} == {"br"}
    assert {fetched.headers["content-encoding"] for fetched in again} == {"dcz"}
    assert all(fetched.request["available-dictionary"] for fetched in again)
    assert sum(f.wire_bytes for f in again) < sum(f.wire_bytes for f in first) / 10
    assert [before[0], after[0]] == ["3.0.0", "3.0.1"]  # plotly.js of plotly.py 6.0.0 and 6.0.1
    assert before[1:] == after[1:] == ["function", "0px", 1]
    # The server stores the second release like any other file.
    with chromium(tmp_path / "one") as browser:
        assert not [f for f in files_of(browser.visit(url)) if f.wire_bytes]
        assert browser.evaluate(_SCRIPTS) == after
    with chromium(tmp_path / "two", _WITHOUT) as browser:
        site.release(0)
        browser.visit(url)
        site.release(1)
        make_copies(server, 1)
        without = files_of(browser.visit(url))
        assert browser.evaluate(_SCRIPTS) == after
    assert {fetched.headers["content-encoding"] for fetched in without} == {"br"}
    assert not any("available-dictionary" in fetched.request for fetched in without)
