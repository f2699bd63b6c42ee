"""An app whose views wait for files, and set deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wsgifast import request_timeout

_MAX_S = 60.0


def _wait(environ: dict[str, Any]) -> None:
    """Wait until the file exists that the query names, for at most a minute.

    Another file beside it says that this thread waits.
    """
    file = Path(environ["QUERY_STRING"])
    file.with_name(f"{file.name}-{threading.get_ident()}.waits").touch()
    end = time.monotonic() + _MAX_S
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.005)


def _late(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    _wait(environ)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"late"]


def _begun(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "9")])

    def blocks() -> Iterator[bytes]:
        yield b"first"
        _wait(environ)
        yield b"last"

    return blocks()


def _by_key(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    environ["wsgifast.request_timeout_s"] = 0.2
    return _late(environ, start_response)


_VIEWS = {
    "/late": _late,
    "/begun": _begun,
    "/key": _by_key,
    "/decorated": request_timeout(0.2)(_late),
    "/without": request_timeout(None)(_late),
}


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    view = _VIEWS.get(environ["PATH_INFO"])
    if view is not None:
        return view(environ, start_response)
    start_response("200 OK", [("Content-Length", "3")])
    return [b"app"]
