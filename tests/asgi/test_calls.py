"""The number of asgifast's and wsgifast's files that the response of a file passes under our
uvicorn protocol.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import asgifast
import pytest
from asgifast.uvicorn import HttpToolsProtocol
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route

import wsgifast
from wsgifast.sockets.sending import cached_bytes

from .protocols import GET, LARGE_BYTES, serving

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

# All of them but the last fill caches.
REQUESTS = 3
# Two of the functions write the access log.
MOST_FILES = 12


async def test_file_response_passes_through_few_files(large: Path) -> None:
    with large.open("rb") as file:
        if not cached_bytes(file.fileno(), 0, 1):
            pytest.skip("the file system cannot say what is in memory: a thread sends it")
    app = Starlette(routes=[Route("/", lambda request: FileResponse(large))])
    called: list[CodeType] = []

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code)

    try:
        async with serving(HttpToolsProtocol, app, pathsend=None) as client:
            for number in range(1, REQUESTS + 1):
                if number == REQUESTS:
                    sys.setprofile(on_event)
                await client.send(GET)
                await client.body(LARGE_BYTES)
    finally:
        sys.setprofile(None)
    ours = tuple(str(Path(each.__file__ or "").parent) for each in (asgifast, wsgifast))
    files = [each.co_filename for each in called if each.co_filename.startswith(ours)]
    for code in called:
        if code.co_filename in files:
            print(f"    {code.co_filename}: {code.co_name}")
    assert any(file.endswith("file_transfer.py") for file in files)
    assert len({*files}) <= MOST_FILES
