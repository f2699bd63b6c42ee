"""Requests of clients, apps that respond, and measurements for tests of connections."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.servers import wait_for
from tests.support.wsgi import answering
from tests.workers.stepped_worker import App as App
from tests.workers.stepped_worker import Client, Clock, SteppedWorker, echo
from tests.workers.stepped_worker import responses as responses
from wsgifast.server.endpoint import RUNNING, SENDING

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
KNOWN = HEAD + b"Content-Length: 10\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTS = HEAD + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
NONSENSE = b"G=T / HTTP/1.1\r\n\r\n"
STREAMED = {"buffer_bodies": False}

MakeStepped = Callable[..., SteppedWorker]


def responds_wrapped(make: Callable[[], Any], *headers: Any, status: str = "200 OK") -> App:
    return answering(lambda environ: environ["wsgi.file_wrapper"](make()), status, [*headers])


@pytest.fixture
def stepped(make_stepped: MakeStepped) -> SteppedWorker:
    """The environ key of an app that echoes."""
    return make_stepped(echo, keepalive=5, worker_connections=100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A time.monotonic() that stands still unless a test moves it."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


CLIENT_ENDS = ("leaves", "slow", "cut off", "closed", "read")


def end_client(stepped: SteppedWorker, client: Client, how: str) -> bytes:
    """End a client during its response, in one of the ways in CLIENT_ENDS.

    Return the bytes that it has read.

    :param how: "cut off" and "closed" are the server's doing.
    """
    received = b""

    def all_is_read() -> bool:
        nonlocal received
        stepped.run()
        received += client.receive_all_there_is()
        return not (client.is_in(SENDING) or client.is_in(RUNNING))

    if how == "leaves":
        client.close()
    elif how == "slow":
        stepped.pass_time(100)
    elif how == "cut off":
        client.near.cut_off()
    elif how == "closed":
        stepped.server.registry.waiting.pop(client.near.fd, None)
        client.near.close()
    else:
        wait_for(all_is_read, "all is read")
        received += client.receive_all_there_is()
    stepped.run()
    return received


def fill(sock: socket.socket) -> int:
    """Send zeros until a non-blocking socket accepts no more, and return their number."""
    sent = 0
    try:
        while True:
            sent += sock.send(bytes(65_536))
    except BlockingIOError:
        return sent


def descriptors() -> int:
    gc.collect()  # so that the garbage of another test closes no descriptor meanwhile
    return len(os.listdir("/proc/self/fd"))
