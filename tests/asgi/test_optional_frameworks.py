"""A file, a stream and a client that leaves, with Litestar, Quart and Sanic inside ASGIFast."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtests.payloads import FILE_BYTES, MIB, payload, payload_file
from tests.support.http import Connection

from .servers import asgi_server


@pytest.mark.parametrize("name", ["litestar", "quart", "sanic"])
def test_files_and_streams_of_other_frameworks_arrive(name: str, files: Path) -> None:
    if find_spec(name) is None and not os.environ.get("CI"):
        pytest.skip(f"{name} is not installed: .venv/bin/pip install --group frameworks")
    large = payload_file(FILE_BYTES).read_bytes()
    app = f"loadtests.asgi_frameworks:fast_{name}"
    with asgi_server("ours-httptools-uvloop", app, files) as server:
        with Connection(server.address) as connection:
            for _ in range(2):
                whole = connection.request("/file")
                assert (whole.status, whole.body) == (200, large)
                assert connection.request("/stream").body == payload(MIB)
            part = connection.request("/file", headers=[("Range", "bytes=5-9")])
            assert part.body in (large[5:10], large)  # Quart answers ranges
        with Connection(server.address) as leaver:
            leaver.send_request("/file")
            assert leaver.read_head().status == 200
        assert server.get("/stream").body == payload(MIB)
        assert "Traceback" not in server.log()
