"""What attackers do on a connection, and what they see."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.http import Address, Answers

__all__ = ["Outcome", "attack"]

TIMEOUT_S = 60.0
# Between two packets: the server reads the first before the second is there.
_GAP_S = 0.0004


@dataclass
class Outcome:
    """What a server made of some bytes.

    :ivar understood: of each request that reached the app, what the app was told.
    :ivar refused: the status of the server's own last answer; None if there was none.
    :ivar loose: what cannot be parsed as an answer, if anything.
    """

    understood: list[Any] = field(default_factory=list)
    refused: int | None = None
    loose: bytes = b""


def attack(address: Address, packets: list[bytes], gap_s: float = _GAP_S) -> Outcome:
    """Send packets on a connection of its own, end the sending side, and read to the end.

    :param gap_s: seconds between two packets.
    :raises TimeoutError: if the server neither answers nor closes.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    received = b""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # refused, and closed: what was said is read below
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
    outcome, answers = Outcome(), Answers(io.BufferedReader(io.BytesIO(data)))
    while (at := answers.stream.tell()) < len(data):
        try:
            answer = answers.read_head()
            is_the_apps = answer.header("X-Method") is not None
            answers.read_body(answer, answer.header("X-Method") or "GET")
        except (AssertionError, EOFError, ValueError):
            outcome.loose = data[at:]
            break
        if is_the_apps:
            outcome.understood.append(json.loads(answer.body) if answer.body else "HEAD")
        elif answer.status >= 200:
            outcome.refused = answer.status
    return outcome
