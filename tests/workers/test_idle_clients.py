"""Clients that have sent only a part of a request share one bound of memory."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.server.test_receiving import receivers
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.serving import fast_worker
from wsgifast.errors import RequestError
from wsgifast.server.receiving import COMPLETE, MORE

GET = b"GET /small/1 HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
FIELDS = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 7900) for number in range(8))
HALVES = {
    "head": GET + FIELDS,
    "body": POST + b"Content-Length: 520000\r\n\r\n" + bytes(519_000),
    "body behind a long head": POST + FIELDS + b"Content-Length: 9\r\n\r\n" + bytes(8),
    "chunked body": POST + b"Transfer-Encoding: chunked\r\n\r\n"
    + (b"400\r\n" + bytes(1024) + b"\r\n") * 500,
}  # fmt: skip
MIB = 2**20
# Per client, beyond the bound. With glibc 2.43 bodies took 85 to 117 KiB, and with 2.36 71 to 79.
_LIBRARY, _VERSION = platform.libc_ver()
_IS_OLDER = _LIBRARY == "glibc" and [*map(int, _VERSION.split("."))] <= [2, 36]
BODY_SLACK_KIB = 32 if _IS_OLDER else 80


def memory_of(server: LiveServer) -> int:
    return sum(each.memory_info().rss for each in psutil.Process(server.pid).children())


@contextlib.contextmanager
def clients(server: LiveServer, data: bytes, count: int) -> Iterator[list[Connection]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(Connection(server.address)))
            with contextlib.suppress(ConnectionError):  # it has been refused already
                found[-1].send(data)
        yield found


@pytest.mark.long
@pytest.mark.parametrize("half", HALVES)
def test_idle_clients_share_one_bound_of_memory(half: str) -> None:
    count, bound = 150, 4 * MIB
    attributes = {"input_memory_bytes": bound, "head_timeout_s": 300.0, "body_timeout_s": 300.0}
    with fast_worker(attributes=attributes) as server:
        server.get("/small/1")
        before = memory_of(server)
        with clients(server, HALVES[half], count) as crowd:
            crowd[0].send(b"")
            assert server.get("/small/1").status == 200
            added = memory_of(server) - before
            slack = count * (BODY_SLACK_KIB if "body" in half else 32) * 1024
            assert added < 2 * bound + slack, f"{added / count:,.0f} bytes each"
        wait_for(lambda: server.get("/small/1").status == 200, "others are served")


def receiver(**attributes: Any) -> tuple[Any, Any]:
    """Return a receiver, and the budget of memory that it uses."""
    found = receivers(attributes=attributes)()
    return found, found._shared.input_memory


def test_short_headers_need_no_room() -> None:
    found, memory = receiver(input_memory_bytes=0)
    assert found.feed(GET) is MORE
    assert found.feed(b"\r\n") is COMPLETE
    assert found.feed(POST + b"Content-Length: 3\r\n\r\n12") is MORE
    assert found.feed(b"3") is COMPLETE
    assert found.exchange.body.read() == b"123"
    assert memory.used_bytes == 0


@pytest.mark.parametrize("ends", ["closed", "forgotten"])
def test_room_is_given_back_once_a_body_is_closed(ends: str) -> None:
    found, memory = receiver()
    assert found.feed(POST + FIELDS + b"Content-Length: 5000\r\n\r\n") is MORE
    assert memory.used_bytes > len(FIELDS)
    assert found.feed(bytes(5000)) is COMPLETE
    assert 5000 <= memory.used_bytes < 6000
    if ends == "closed":
        found.exchange.body.close()
    found.exchange = None
    assert memory.used_bytes == 0


def test_body_goes_to_disk_when_memory_is_used_up() -> None:
    found, memory = receiver(input_memory_bytes=2000)
    assert found.feed(POST + b"Content-Length: 5000\r\n\r\n" + bytes(1500)) is MORE
    assert memory.used_bytes > 1500
    assert found.may_need_disk()
    assert found.feed(bytes(3500)) is COMPLETE
    assert memory.used_bytes == 0
    assert found.exchange.body.read() == bytes(5000)


@pytest.mark.parametrize("parser", ["auto", "python"])
@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_headers_over_the_limit_are_refused_with_431(parser: str, step: int) -> None:
    make = receivers(attributes={"head_limit_bytes": 1000}, http_parser=parser)
    assert make().feed(GET + b"X: %b\r\n\r\n" % (b"a" * 900) + GET) is COMPLETE
    found, data = make(), GET + b"X: %b\r\n\r\n" % (b"a" * 4100)
    with pytest.raises(RequestError) as raised:
        list(map(found.feed, (data[at : at + step] for at in range(0, len(data), step))))
    assert raised.value.status == 431
