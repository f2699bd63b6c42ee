"""FastWorker's options, which are class attributes: what they may be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ..errors import ConfigurationError, MissingExtra
from ..metrics.multiprocess import metrics_address
from ..option_checks import is_count, is_number
from ..server.poller import POLLERS

__all__ = ["ATTRIBUTES", "InvalidWorkerOption", "check_attributes", "check_names"]

_BYTES = (
    "body_memory_bytes",
    "body_limit_bytes",
    "bodies_on_disk_bytes",
    "output_ahead_bytes",
    "output_memory_bytes",
    "response_on_disk_bytes",
    "responses_on_disk_bytes",
)
_SECONDS = (
    "body_timeout_s",
    "head_timeout_s",
    "send_timeout_s",
    "stuck_after_s",
    "kill_stuck_after_s",
    "unready_after_s",
    "max_lifetime_s",
)
_RATES = ("send_least_bytes_per_s",)
_MEMORY = ("max_rss_bytes",)
_FLAGS = ("buffer_bodies", "check_host")
_WITH_UNITS = (*_BYTES, *_SECONDS, *_RATES, *_MEMORY, "poller_kind")
ATTRIBUTES = (
    *_FLAGS,
    *_BYTES,
    *_SECONDS,
    *_RATES,
    *_MEMORY,
    "metrics_bind",
    "parser",
    "poller_kind",
)
PARSERS = ("auto", "gunicorn", "httptools")
# difflib's measure of two names. Slips are above it; a name that a subclass has for something of
# its own is below it, even memory_limit_bytes (0.82) or db_timeout_s (0.85).
_ALIKE = 0.87


class InvalidWorkerOption(ConfigurationError, RuntimeError):
    """An attribute of FastWorker has a value that cannot work, or a name that it does not know.

    A RuntimeError too: gunicorn's command prints those as a sentence.
    """


def check_attributes(worker: Any, base: type) -> None:
    """Check the attributes of a worker class.

    :param base: FastWorker, from which on the classes are looked through for misspelt names.
    :raises InvalidWorkerOption: for the first that is wrong.
    """
    for kind in worker.__mro__:
        if issubclass(kind, base):
            check_names(vars(kind))
    for name in _SECONDS:
        value = getattr(worker, name)
        if not is_number(value, least=0, most=math.inf) or value == 0:
            raise InvalidWorkerOption(f"FastWorker.{name}={value!r}: expected seconds above 0")
    for name in _RATES:
        value = getattr(worker, name)
        if not is_number(value, least=0, most=math.inf):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: expected bytes a second, 0 for no limit"
            )
    for name in _MEMORY:
        value = getattr(worker, name)
        if not is_number(value, least=1, most=math.inf):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: expected bytes above 0, math.inf for no limit"
            )
    for name in _BYTES:
        value = getattr(worker, name)
        if not is_count(value):
            raise InvalidWorkerOption(f"FastWorker.{name}={value!r}: expected bytes, 0 or more")
    for name in _FLAGS:
        if not isinstance(getattr(worker, name), bool):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={getattr(worker, name)!r}: expected True or False"
            )
    if worker.metrics_bind is not None:
        try:
            metrics_address(worker.metrics_bind, "FastWorker.metrics_bind")
        except ConfigurationError as error:
            raise InvalidWorkerOption(str(error)) from None
    for name, choices in (("parser", PARSERS), ("poller_kind", POLLERS)):
        if getattr(worker, name) not in choices:
            raise InvalidWorkerOption(
                f"FastWorker.{name}={getattr(worker, name)!r}: expected one of {choices}"
            )
    if worker.parser == "httptools" and find_spec("httptools") is None:
        missing = MissingExtra("FastWorker.parser='httptools'", "httptools", "fast")
        raise InvalidWorkerOption(str(missing))


def check_names(names: Mapping[str, Any]) -> None:
    """Refuse a value under nearly the name of an attribute: it would change nothing.

    A subclass and a configuration may have names of their own, so no other name is refused.

    :param names: names with their values.
    :raises InvalidWorkerOption: for the first that is misspelt.
    """
    for name, value in names.items():
        if name in ATTRIBUTES or not isinstance(value, (int, float, str)):
            continue
        meant = difflib.get_close_matches(name, ATTRIBUTES, n=1, cutoff=_ALIKE)
        without_unit = [each for each in _WITH_UNITS if each.rpartition("_")[0] == name]
        if meant or without_unit:
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: there is no such attribute; is "
                f"{(meant or without_unit)[0]} meant? There are {', '.join(ATTRIBUTES)}"
            )
