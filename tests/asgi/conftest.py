"""Loops, files and servers that the ASGI tests share."""

from __future__ import annotations

import functools
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from asgifast import coalescing
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol

from tests.conftest import LOOPS
from tests.support.process import open_descriptors
from tests.support.servers import LiveServer

from .blocking import watch
from .layers import TEXT
from .protocols import LARGE_BYTES, TOO_MUCH
from .servers import BARE, asgi_server
from .support import DATA
from .transports import FILE_BYTES

# Servers that are started by their commands, one for each way to start ours. A fork of a process
# that has imported everything would not show a late import.
STARTED_ANEW = ("ours-httptools-uvloop", "ours-gunicorn-uvicorn")
# More than the send buffer, a sendfile window and one read. A multiple of none of them.
_LARGE_BYTES = 5 * 1024 * 1024 + 12_345


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    """The name of the event loop that a coroutine test runs on."""
    return str(request.param)


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    _open_those_of_libuv()
    before = open_descriptors()
    yield
    assert open_descriptors() <= before


@functools.cache
def _open_those_of_libuv() -> None:
    """Run uvloop's first loop before the tests, because it opens descriptors that stay open."""
    anyio.run(anyio.sleep, 0, backend_options={"use_uvloop": True})


@pytest.fixture(autouse=True)
def blocking_calls() -> Iterator[list[str]]:
    """Record the calls that block an event loop of this process. A test with such a call fails."""
    found: list[str] = []
    with watch(found.append):
        yield found
    assert not found, "\n".join(found)


@pytest.fixture
def timeless_coalescing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay small messages for some iterations of the loop, even if the iterations take long."""
    monkeypatch.setattr(coalescing, "monotonic", lambda: 0.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a small file."""
    (tmp_path / "file").write_bytes(DATA)
    return str(tmp_path / "file")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The path of a file of 3,000,000 random bytes."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE_BYTES))
    return path


@pytest.fixture
def opened(large: Path) -> Iterator[io.BufferedReader]:
    """The same file, open for reading."""
    with large.open("rb") as file:
        yield file


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """The path of a file of TOO_MUCH zeros."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, TOO_MUCH)
    return path


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file that is larger than the socket buffers of both sides together."""
    (tmp_path / "file").write_bytes(os.urandom(FILE_BYTES))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of sizes around every threshold. large.txt has random bytes."""
    folder = tmp_path_factory.mktemp("files")
    source = random.Random(7)
    (folder / "large").write_bytes(source.randbytes(_LARGE_BYTES))
    for size in (0, 1, 1024, 65_535, 65_536, 65_537, 262_144, 262_145, 1_048_577):
        (folder / f"size-{size}").write_bytes(source.randbytes(size))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two text files: text.txt, which compresses well, and small.txt."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "text.txt").write_bytes(TEXT)
    (folder / "small.txt").write_bytes(b"small")
    return folder


@pytest.fixture(scope="module")
def folder(files: Path) -> Path:
    """Return the folder that `server` serves. A module may override it."""
    return files


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Return the environment variables of `server`. A module may add some."""
    return {}


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, folder: Path, environment: dict[str, str]
) -> Iterator[LiveServer]:
    """Serve the test app in ASGIFast on the server NAME.

    With "bare NAME", the app is not wrapped.
    """
    name = request.param.removeprefix("bare ")
    app = "tests.asgi.app:app" if request.param in BARE else "tests.asgi.app:fast"
    forked = request.param not in STARTED_ANEW
    with asgi_server(name, app, folder, env=environment, forked=forked) as server:
        yield server


@pytest.fixture
def is_bare(request: pytest.FixtureRequest) -> bool:
    """Return whether the app of `server` runs without ASGIFast."""
    return request.node.callspec.params["server"] in BARE
