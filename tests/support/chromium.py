"""A real Chromium without a window, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import program

_TIMEOUT_S = 100
# The descriptors of the protocol are 3 and 4.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--remote-debugging-pipe",
]  # fmt: skip


@dataclass
class Fetched:
    """One request on the network, with header names in lower case."""

    url: str
    request: dict[str, str]
    headers: dict[str, str]
    # The bytes of the response on the wire, with its headers.
    wire_bytes: int


class Chromium:
    """One browser with one tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to = to_browser
        self._from = from_browser
        self._received = b""
        self._count = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def visit(self, url: str) -> dict[str, Fetched]:
        """Load a page and its resources. Return the requests on the network, by URL."""
        self.forget()
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")
        return self.fetched()

    def forget(self) -> None:
        """Forget all earlier requests."""
        self._events.clear()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, or the result of a promise."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def fetched(self) -> dict[str, Fetched]:
        """Return the responses since the last visit began, by URL."""
        by_id: dict[str, Fetched] = {}
        for event in self._events:
            params = event["params"]
            request = by_id.setdefault(params.get("requestId", ""), Fetched("", {}, {}, 0))
            match event["method"]:
                case "Network.requestWillBeSent":
                    request.url = params["request"]["url"]
                case "Network.requestWillBeSentExtraInfo":
                    request.request = _lower(params["headers"])
                case "Network.responseReceivedExtraInfo":
                    request.headers = _lower(params["headers"])
                case "Network.loadingFinished":
                    request.wire_bytes = int(params["encodedDataLength"])
        return {fetched.url: fetched for fetched in by_id.values() if fetched.url}

    def close(self) -> None:
        self._session = None
        self._send("Browser.close")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, **params)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message:
                self._events.append(message)

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._receive())

    def _send(self, method: str, **params: Any) -> int:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        return self._count

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._from], [], [], _TIMEOUT_S)
            data = os.read(self._from, 1 << 16) if readable else b""
            assert data, "Chromium has ended, or does not answer"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received


@contextmanager
def chromium(profile: Path, *options: str) -> Iterator[Chromium]:
    """Run a browser with a profile. Its cache and dictionaries stay for the next browser.

    :raises ProgramMissing: if it is not installed.
    """
    path = program("chromium")
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()

    process = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", _START, str(read_there), str(write_there)),
            *(path, *_OPTIONS, f"--user-data-dir={profile}", *options, "about:blank"),
        ],
        pass_fds=(read_there, write_there),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(read_there)
    os.close(write_there)
    try:
        browser = Chromium(write_here, read_here)
        yield browser
        browser.close()
        process.wait(_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        os.close(write_here)
        os.close(read_here)


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
