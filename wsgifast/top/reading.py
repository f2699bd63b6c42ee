"""Reads a server's metrics address: over HTTP, parsed by prometheus_client."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..checks import needs
from ..client import HTTPClient, NoAnswer
from ..errors import WSGIFastError
from ..metrics.setup import VARIABLE
from ..sockets.options import Address

# A server that is asked on its own address answers in milliseconds.
_TIMEOUT_S = 5.0

# The labels of a value, by name.
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Scrape:
    """All samples at one moment, by their names, such as "..._bucket", and their labels.

    :ivar at: monotonic, in seconds.
    """

    at: float
    samples: Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True)
class Client:
    """A client that does not take its response as fast as it comes.

    :ivar pid: of the worker.
    :ivar client: its address.
    :ivar path: of its request.
    :ivar waited_s: for how long something has waited for it.
    :ivar bytes_per_s: what it has taken since then.
    """

    pid: int
    client: str
    path: str
    queued_bytes: int
    waited_s: float
    bytes_per_s: float


def scrape(address: Address) -> Scrape:
    """Ask a server for its metrics.

    :raises WSGIFastError: if nothing listens there, or something else does.
    """
    at = time.monotonic()
    status, text = _get(address, "/metrics")
    if status == 500:  # the exporter says why
        raise WSGIFastError(f"{address}/metrics answers {status}: {text.strip()}")
    if status != 200:
        raise WSGIFastError(f"{address}/metrics answers {status}: that is not a metrics address")
    return parsed(text, at)


def clients(address: Address) -> list[Client] | None:
    """Ask a server for its slowest clients; None if it does not report them.

    :raises WSGIFastError: if it cannot be asked.
    """
    status, text = _get(address, "/clients")
    if status != 200:
        return None
    try:
        return [Client(**each) for each in json.loads(text)]
    except (ValueError, TypeError):
        return None  # another server's


def _get(address: Address, path: str) -> tuple[int, str]:
    client = HTTPClient(*address, headers=[("Accept", "text/plain")], limit_s=_TIMEOUT_S)
    try:
        answer = client.ask(path)
    except NoAnswer as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise WSGIFastError(
                f"nothing listens on {address}: start the server with {VARIABLE}={address}, or "
                "name its metrics address"
            ) from None
        raise
    return answer.status, answer.body.decode("utf-8", "replace")


def parsed(text: str, at: float) -> Scrape:
    """Parse Prometheus's text format.

    :raises WSGIFastError: if it is none.
    :raises MissingExtra: if prometheus_client is not installed.
    """
    with needs("wsgifast top", "prometheus_client", "prometheus"):
        from prometheus_client.parser import text_string_to_metric_families
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                samples.setdefault(name, {})[frozenset(labels.items())] = value
    except (ValueError, KeyError) as error:
        raise WSGIFastError(f"that is not Prometheus's text format: {error}") from None
    return Scrape(at, samples)
