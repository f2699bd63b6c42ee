"""One plain request before any load: what a server answers, and whether it is what it says."""

from __future__ import annotations

import hashlib
import http.client
import time
from dataclasses import dataclass

from ..errors import ConfigurationError
from .load import Task
from .processes import tls_context

__all__ = ["Seen", "look"]

# Raw bodies may take seconds; an answer that takes longer than this cannot be measured.
LOOK_S = 30.0
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Seen:
    """The status, or what went wrong; and the body.

    :ivar answered: there is a head at least.
    """

    answer: str
    body_bytes: int
    digest: str
    ok: bool
    answered: bool = True


def look(task: Task) -> Seen:
    """Ask once, on a connection of its own.

    :raises ConfigurationError: if the answer has no end, or none that one could wait for.
    """
    digest, size, answer, problem = hashlib.sha256(), 0, "", ""
    deadline = time.monotonic() + LOOK_S
    connection = _connection(task)
    try:
        connection.putrequest("GET", task.path, skip_accept_encoding=True)
        for line in (*task.headers, "Connection: close"):
            name, _, value = line.partition(":")
            connection.putheader(name, value.strip())
        connection.endheaders()
        response = connection.getresponse()
        answer = f"{response.status} {response.reason}"
        while block := response.read1(_BLOCK_BYTES):  # what is there
            digest.update(block)
            size += len(block)
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:
            problem = f"{answer}, then the end after {size} of {size + response.length} bytes"
        elif response.status >= 400:
            problem = answer
    except TimeoutError:
        raise ConfigurationError(
            f"{task.path}: no end of the answer after {LOOK_S:.0f} s; name a path whose answers end"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        problem = f"{answer}, then {type(error).__name__}: {error}".removeprefix(", then ")
    finally:
        connection.close()
    return Seen(problem or answer, size, digest.hexdigest(), not problem, bool(answer))


def _connection(task: Task) -> http.client.HTTPConnection:
    if not task.tls:
        return http.client.HTTPConnection(*task.address, timeout=LOOK_S)
    return http.client.HTTPSConnection(*task.address, timeout=LOOK_S, context=tls_context())
