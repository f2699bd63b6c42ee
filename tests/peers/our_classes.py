"""A plugin of pytest that puts our classes in place of those that a peer's own tests import.

WSGIFAST_PEER names the classes to replace. own_suites.py loads the plugin, and passes this name.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_PEER = os.environ["WSGIFAST_PEER"]
_DIFFERENCES = Path(__file__).with_name("differences.toml")
_DENIED = "test_staticfiles_with_invalid_dir_permissions_returns_401"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items}:  # type: ignore[attr-defined]
        if hasattr(module, "MockLoop"):
            _complete_mocks(module)
    differences = tomllib.loads(_DIFFERENCES.read_text(encoding="utf-8"))[_PEER]
    for key, reason in differences.items():
        pattern = re.compile(re.escape(key).replace(r"\*", ".*") + r"(\[.*)?")
        found = [item for item in items if pattern.fullmatch(_name_of(item))]
        if not found:
            raise pytest.UsageError(f"{_PEER} has no test {key!r}: remove it from {_DIFFERENCES}")
        for item in found:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    for item in items:
        if os.geteuid() == 0 and _name_of(item).startswith(_DENIED):
            item.add_marker(pytest.mark.skip("root may read every folder"))


def _name_of(item: Any) -> str:
    """Return a test's name and case. For a file of gunicorn's, the case is the parser and the file.

    pytest leaves out a path that is long.
    """
    case = item.callspec.params if hasattr(item, "callspec") else {}
    if "fname" in case:
        file = Path(case["fname"])
        return f"{item.originalname}[{case['http_parser']}-{file.parent.name}/{file.name}]"
    return str(item.name)


# uvicorn


def _replace_protocols() -> None:
    import asgifast.uvicorn as ours
    from asgifast.protocols.output import OutputQueue

    for parser, name in (
        ("httptools", "HttpToolsProtocol"),
        ("h11", "H11Protocol"),
        ("zttp", "ZttpProtocol"),
    ):
        theirs = import_module(f"uvicorn.protocols.http.{parser}_impl")
        setattr(theirs, name, getattr(ours, name))
    # The tests look at the mock through the protocol's transport.
    queue: Any = OutputQueue
    queue.buffer = property(lambda self: self.real.buffer)
    queue.read_paused = property(lambda self: self.real.read_paused)
    queue.clear_buffer = lambda self: self.real.clear_buffer()


def _complete_mocks(module: Any) -> None:
    """Give uvicorn's mocks the methods of a real transport and a real loop that we call."""

    class Transport(module.MockTransport):  # type: ignore[misc]
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            found = super().get_extra_info(name)
            return default if found is None or found is False else found

        def is_reading(self) -> bool:
            return not self.read_paused

        def get_write_buffer_size(self) -> int:
            return 0

        def get_protocol(self) -> None:
            return None

        def can_write_eof(self) -> bool:
            return False

    class Loop(module.MockLoop):  # type: ignore[misc]
        """Its time passes in run_later() only."""

        _now = 0.0

        def time(self) -> float:
            return self._now

        def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
            return asyncio.get_running_loop().call_soon(callback, *args)

        def call_later(self, delay: float, *call: Any) -> Any:
            return super().call_later(self._now + delay, *call)

        def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Any:
            return self.call_later(when - self._now, callback, *args)

        async def run_one(self) -> Any:
            result = await super().run_one()
            await asyncio.sleep(0)  # the end of the iteration, at which data is written
            return result

        def run_later(self, with_delay: float) -> None:
            self._now += with_delay
            for timer in [each for each in self._later if each.delay <= self._now]:
                timer.cancel()
                timer.callback(*timer.args)

    module.MockTransport = Transport
    module.MockLoop = Loop


# Starlette


def _use_httpx() -> None:
    """Let the tests import httpx2, the successor of httpx. Both have the same interface."""
    import httpx

    sys.modules.setdefault("httpx2", httpx)


def _wrap_apps() -> None:
    _use_httpx()
    from asgifast import ASGIFast
    from starlette import testclient

    class TestClient(testclient.TestClient):
        def __init__(self, app: Any, *args: Any, **options: Any) -> None:
            super().__init__(ASGIFast(app), *args, **options)

    testclient.TestClient = TestClient  # type: ignore[misc]


def _replace_file_classes() -> None:
    _use_httpx()
    import asgifast
    from starlette import responses, staticfiles

    responses.FileResponse = asgifast.FileResponse  # type: ignore[misc]
    staticfiles.StaticFiles = asgifast.StaticFiles  # type: ignore[assignment, misc]


# gunicorn


def _replace_parser() -> None:
    from gunicorn.http import parser

    parser.RequestParser = _RequestParser


class _RequestParser:
    """Reads requests as FastWorker does, with the interface of gunicorn's class."""

    def __init__(self, cfg: Any, source: Iterator[bytes], peer: Any) -> None:
        from wsgifast.server.receiving import Receiver
        from wsgifast.server.shared import Shared
        from wsgifast.workers import FastWorker
        from wsgifast.workers.gunicorn_parser import GunicornParser
        from wsgifast.workers.gunicorn_support import Settings
        from wsgifast.workers.httptools_parser import HttptoolsParser
        from wsgifast.workers.options import options

        settings = Settings(cfg)
        parser = GunicornParser(
            settings,
            trusted=settings.trusts(peer),
            checks_host=False,
            head_limit_bytes=FastWorker.head_limit_bytes,
        )
        shared = Shared(options(FastWorker, settings), None)
        self._receiver = Receiver(HttptoolsParser(parser), peer, shared)
        self._source = iter(source)
        self._req: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        from gunicorn.http.errors import NoMoreData

        from wsgifast.errors import MalformedRequest
        from wsgifast.server.receiving import COMPLETE

        receiver = self._receiver
        if self._req is not None and self._req.should_close():
            raise StopIteration
        receiver.exchange = None
        has_begun = bool(receiver.unparsed)
        step = receiver.feed(b"") if has_begun else None
        while step is not COMPLETE:
            data = next(self._source, b"")
            if not data:
                if has_begun:
                    raise NoMoreData
                raise StopIteration
            has_begun = True
            try:
                step = receiver.feed(data)
            except MalformedRequest as error:
                raise _refused(error) from error
        exchange = receiver.exchange
        assert exchange is not None
        self._req = exchange.req
        self._req.body = exchange.body
        return self._req


def _refused(error: Exception) -> Exception:
    """Return an error of each class that gunicorn raises for a malformed chunked body."""
    from gunicorn.http import errors

    kinds = (errors.InvalidChunkSize, errors.InvalidChunkExtension, errors.InvalidHeaderName)
    refused: Exception = type("Refused", kinds, {"__init__": Exception.__init__})(error)
    return refused


_REPLACE = {
    "uvicorn": _replace_protocols,
    "starlette": _wrap_apps,
    "starlette-files": _replace_file_classes,
    "gunicorn": _replace_parser,
}
# This runs at the import, because pytest imports conftest.py before it calls hooks of a plugin.
_REPLACE[_PEER]()
