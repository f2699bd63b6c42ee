"""Each of our servers reads a request in one way, whatever the packets are.

The tests compare FastWorker with gunicorn's gthread, asgifast's protocols with uvicorn's own, and
each server with itself for other packets. No server may accept a request that its counterpart
rejects.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.asgi.servers import asgi_server
from tests.attacks.requests import SEEDS, cuts, mutated
from tests.conftest import wsgi_server
from tests.support.effort import LONG, effort
from tests.support.http import Address, ResponseReader
from tests.workers.serving import fast_worker

pytestmark = pytest.mark.long

CASES = effort(400)
CLIENTS = 4

# The event loops under which the ASGI tests run uvicorn's own protocols.
LOOPS = {"h11": "asyncio", "httptools": "uvloop"}

APP = "tests.attacks.app:wsgi_app"
ASGI_APP = "tests.attacks.app:asgi_app"

TIMEOUT_S = 60.0
# The time between two packets: the server reads the first before the second arrives.
_GAP_S = 0.0004


@dataclass
class Outcome:
    """The effect of some bytes on a server.

    :ivar understood: the requests that reached the app, as the app received them.
    :ivar refused: the status of the server's own last response, or None.
    :ivar loose: bytes that cannot be parsed as a response, if any.
    """

    understood: list[Any] = field(default_factory=list)
    refused: int | None = None
    loose: bytes = b""


def attack(address: Address, packets: list[bytes], gap_s: float = _GAP_S) -> Outcome:
    """Send packets on a new connection, shut down the sending side, and read to the end.

    :param gap_s: seconds between two packets.
    :raises TimeoutError: if the server neither answers nor closes.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    received = b""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # refused, and closed: the response is read below
            for number, packet in enumerate(packets):
                if number:
                    time.sleep(gap_s)
                sock.sendall(packet)
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
    return _parse(received)


def _parse(data: bytes) -> Outcome:
    outcome, responses = Outcome(), ResponseReader(io.BufferedReader(io.BytesIO(data)))
    while (at := responses.stream.tell()) < len(data):
        try:
            response = responses.read_headers()
            is_the_apps = response.header("X-Method") is not None
            responses.read_body(response, response.header("X-Method") or "GET")
        except (AssertionError, EOFError, ValueError):
            outcome.loose = re.sub(rb"\r\nDate: [^\r]*", b"", data[at:])
            break
        if is_the_apps:
            outcome.understood.append(json.loads(response.body) if response.body else "HEAD")
        elif response.status >= 200:
            outcome.refused = response.status
    return outcome


def _cases(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    yield from SEEDS
    for _ in range(CASES):
        yield mutated(chance)


def _try_all(check: Callable[[bytes, random.Random], str | None]) -> None:
    """Run a check over all cases, some of them at a time. Fail with the first differences."""
    seed = random.randrange(2**32) if LONG else 20
    cases = list(_cases(seed))
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = pool.map(lambda pair: check(pair[1], random.Random(pair[0])), enumerate(cases))
        differences = list(itertools.islice((each for each in found if each), 5))
    assert not differences, f"seed {seed}:\n" + "\n".join(differences)


def _difference(data: bytes, ours: Outcome, other: Outcome) -> str:
    return f"{data!r}\n  ours:  {ours}\n  other: {other}"


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("name", ["gunicorn-fastworker", "fast-wsgiref", "fast-werkzeug"])
def test_request_in_any_packets_is_understood_alike(name: str) -> None:
    with wsgi_server(name, APP) as server:

        def check(data: bytes, chance: random.Random) -> str | None:
            whole = attack(server.address, [data])
            split = attack(server.address, cuts(data, chance))
            return None if whole == split else _difference(data, whole, split)

        _try_all(check)


@pytest.mark.timeout(3600 if LONG else 300)
def test_fastworker_understands_what_gthread_does() -> None:
    """gthread is less strict in two ways, which are not compared: Host, and "close" among other
    options.
    """
    with (
        fast_worker(app=APP, attributes={"check_host": False}) as ours,
        wsgi_server("gunicorn-gthread", APP) as other,
    ):

        def check(data: bytes, chance: random.Random) -> str | None:
            mine, its = attack(ours.address, [data]), attack(other.address, [data])
            understood = its.understood
            if mine.understood and _wants_to_leave(mine.understood[-1]):
                understood = understood[: len(mine.understood)]
            # Input of a client is never an error of the server. This app makes no errors of its
            # own.
            if mine.understood == understood and mine.refused != 500:
                return None
            return _difference(data, mine, its)

        _try_all(check)


def _ends(data: bytes) -> list[bytes]:
    """Return the same bytes as packets. No packet contains bytes of two requests.

    The first packet of headers ends after a line. The first packet of a body ends anywhere.
    """
    blank = re.search(rb"\n\r?\n", data)
    end = blank.end() if blank else len(data)
    return [*data[:end].splitlines(keepends=True), *(bytes([byte]) for byte in data[end:])]


def _wants_to_leave(understood: Any) -> bool:
    """Return whether a request asks for the end of the connection (RFC 9110, section 7.6.1)."""
    if understood == "HEAD":
        return False
    options = dict(understood[6]).get("HTTP_CONNECTION", "").lower().split(",")
    return "close" in [option.strip() for option in options]


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_our_protocols_understand_what_uvicorns_do(http: str, tmp_path: Path) -> None:
    with (
        asgi_server(f"ours-{http}-{LOOPS[http]}", ASGI_APP, tmp_path) as ours,
        asgi_server(f"uvicorn-{http}-{LOOPS[http]}", ASGI_APP, tmp_path) as other,
    ):

        def check(data: bytes, chance: random.Random) -> str | None:
            packets = cuts(data, chance)
            mine, its = attack(ours.address, packets), attack(other.address, packets)
            # uvicorn drops waiting and running requests when the client ends its side, as here, or
            # sends a bad request. So both servers may have answered only some of them.
            for gap_s in (0.005, 0.05, 0.5):  # the longer times are for a busy machine
                if its.refused is None or len(its.understood) >= len(mine.understood):
                    break
                # Each packet follows so late that each request is answered before the next one is
                # read.
                its = attack(other.address, _ends(data), gap_s=gap_s)
            common = min(len(mine.understood), len(its.understood))
            same = mine.understood[:common] == its.understood[:common]
            if same and (its.refused is None or len(mine.understood) == common):
                return None
            return _difference(data, mine, its)

        _try_all(check)
