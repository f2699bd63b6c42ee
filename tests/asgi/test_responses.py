"""FileResponse has Starlette's signature, and responds according to RFC 9110."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from asgifast import FileResponse
from asgifast import responses as responses_module
from starlette import responses

from wsgifast.files import Plan

from .support import call, scope_of

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "grüße.txt"
    path.write_bytes(DATA)
    return path


def test_signature_is_starlettes() -> None:
    assert inspect.signature(FileResponse) == inspect.signature(responses.FileResponse)
    assert issubclass(FileResponse, responses.FileResponse)


def test_file_response_keeps_filename_and_given_etag(path: Path) -> None:
    response = FileResponse(path, filename="grüße.txt", headers={"ETag": '"mine"'})
    found = call(response, scope_of()).headers
    headers = dict(found)
    assert len(headers) == len(found), "no header twice"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["content-disposition"] == "attachment; filename*=utf-8''gr%C3%BC%C3%9Fe.txt"
    assert headers["etag"] == '"mine"'


def test_post_and_404_are_answered_as_by_starlette(path: Path) -> None:
    for status, method in ((404, "GET"), (200, "POST")):
        scope = scope_of(method=method, range="bytes=0-1")
        theirs = call(responses.FileResponse(path, status_code=status), scope)
        response = call(FileResponse(path, status_code=status), scope)
        assert (response.status, response.headers) == (theirs.status, theirs.headers)
        assert response.body == theirs.body


def test_denied_websocket_is_answered_as_by_starlette(path: Path) -> None:
    scope = {**scope_of(), "type": "websocket", "extensions": {"websocket.http.response": {}}}
    del scope["method"]
    theirs = call(responses.FileResponse(path), scope)
    assert call(FileResponse(path), scope).messages == theirs.messages


def test_path_of_no_file_raises_as_in_starlette(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        call(FileResponse(tmp_path / "none"), scope_of())
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path in [*map(tmp_path.joinpath, ("directory", "fifo", "socket")), Path("/dev/null")]:
            errors = []
            for kind in (responses.FileResponse, FileResponse):
                with pytest.raises(RuntimeError, match="is not a file") as caught:
                    call(kind(path), scope_of())
                errors.append(str(caught.value))
            assert errors[0] == errors[1]


def test_file_that_is_new_blocks_no_loop(path: Path, blocking_calls: list[str]) -> None:
    assert call(FileResponse(path), scope_of()).body == DATA
    assert not blocking_calls


def test_path_is_opened_in_a_thread_unless_lately(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    opened_in_thread: list[bool] = []
    real_open = os.open

    def noted(name: Any, *args: Any, **kwargs: Any) -> int:
        if os.fspath(name).startswith(str(tmp_path)):
            opened_in_thread.append(threading.current_thread() is not threading.main_thread())
        return real_open(name, *args, **kwargs)

    def in_thread(name: Path) -> bool:
        opened_in_thread.clear()
        assert call(FileResponse(name), scope_of()).body == DATA
        [response] = opened_in_thread
        return response

    others = [tmp_path / f"other-{number}" for number in range(3)]
    for other in others:
        other.write_bytes(DATA)
    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(responses_module, "_REMEMBERED_PATHS", 3)
    monkeypatch.setattr(responses_module, "_opened", {})
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert [in_thread(path), in_thread(path)] == [True, False]
    now += 61
    assert [in_thread(path), in_thread(path)] == [True, False]
    assert [in_thread(other) for other in others[:2]] == [True, True]
    assert not in_thread(path)
    assert in_thread(others[2]), "which is one too many: the others are forgotten"
    assert not in_thread(others[2])
    assert [in_thread(path), in_thread(path)] == [True, False]


def test_slow_download_keeps_no_plan(tmp_path: Path) -> None:
    """The headers would take a kilobyte until the slowest client has read the file."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * 3_000_000)
    counted: list[int] = []

    async def send(message: Any) -> None:
        if message.get("body") and not counted:
            gc.collect()
            counted.append(sum(isinstance(each, Plan) for each in gc.get_objects()))

    async def receive() -> Any:
        await asyncio.Event().wait()

    gc.collect()
    before = sum(isinstance(each, Plan) for each in gc.get_objects())
    asyncio.run(FileResponse(path)(scope_of(), receive, send))
    assert counted == [before]
