"""Files and servers that the ASGI tests share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import LiveServer

from .blocking import watch
from .servers import asgi_server

# By their commands: one for each of the ways in which ours are had. A fork of what has imported
# everything does not show what is imported too late.
STARTED_ANEW = ("ours-httptools-uvloop", "ours-gunicorn-uvicorn")
# More than the send buffer, a window of sendfile and a read's block; and no multiple of any.
LARGE_BYTES = 5 * 1024 * 1024 + 12_345


@pytest.fixture(autouse=True)
def blocking_calls() -> Iterator[list[str]]:
    """What blocked an event loop of this process so far; the test fails if it is not empty."""
    found: list[str] = []
    with watch(found.append):
        yield found
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of sizes around every threshold; large.txt has random bytes."""
    folder = tmp_path_factory.mktemp("files")
    source = random.Random(7)
    (folder / "large").write_bytes(source.randbytes(LARGE_BYTES))
    for size in (0, 1, 1024, 65_535, 65_536, 65_537, 262_144, 262_145, 1_048_577):
        (folder / f"size-{size}").write_bytes(source.randbytes(size))
    return folder


@pytest.fixture(scope="module")
def fast_server(request: pytest.FixtureRequest, files: Path) -> Iterator[LiveServer]:
    """The test app wrapped in ASGIFast, on the server of the parameter's name."""
    forked = request.param not in STARTED_ANEW
    with asgi_server(request.param, "tests.asgi.app:fast", files, forked=forked) as server:
        yield server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, files: Path) -> Iterator[LiveServer]:
    """The test app as it is, on the server of the parameter's name."""
    with asgi_server(request.param, "tests.asgi.app:app", files) as server:
        yield server
