"""FastWorker's options, which are class attributes: what they may be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import partial
from threading import TIMEOUT_MAX
from typing import Any

from ..checks import is_number, shown
from ..errors import ConfigurationError
from ..metrics.setup import metrics_address
from ..sockets.client_limits import BYTES, LIMITS, SECONDS, Rule, limits_of_environment

# What is expected of each kind of attribute, as errors say it; and the rule.
_MEMORY = "bytes above 0, math.inf for no limit", partial(is_number, least=1, most=math.inf)
_FLAG = "True or False", lambda value: isinstance(value, bool)
ATTRIBUTES: dict[str, Rule] = {
    "buffer_bodies": _FLAG,
    "check_host": _FLAG,
    "body_limit_bytes": LIMITS["body_limit_bytes"].rule,
    "bodies_on_disk_bytes": BYTES,
    "responses_on_disk_bytes": BYTES,
    "head_timeout_s": LIMITS["head_timeout_s"].rule,
    "body_timeout_s": LIMITS["body_timeout_s"].rule,
    "send_timeout_s": SECONDS,
    "kill_stuck_after_s": SECONDS,
    "max_lifetime_s": SECONDS,
    "max_rss_bytes": _MEMORY,
    "metrics_bind": ("an address", lambda value: True),  # checked below
}
_WITH_UNITS = [name for name in ATTRIBUTES if name.endswith(("_bytes", "_s"))]
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
    for name, (expected, is_allowed) in ATTRIBUTES.items():
        value = getattr(worker, name)
        if not is_allowed(value):
            raise InvalidWorkerOption(f"FastWorker.{name}={shown(value)}: expected {expected}")
    try:
        limits_of_environment()
        if worker.metrics_bind is not None:
            metrics_address(worker.metrics_bind, "FastWorker.metrics_bind")
    except ConfigurationError as error:
        raise InvalidWorkerOption(str(error)) from None


def check_settings(cfg: Any) -> None:
    """Check gunicorn's settings of which gunicorn checks less.

    :raises InvalidWorkerOption: for the first that is wrong.
    """
    for name in ("keepalive", "graceful_timeout"):
        value = getattr(cfg, name)
        if not is_number(value, least=0, most=TIMEOUT_MAX):
            raise InvalidWorkerOption(
                f"{name}={shown(value)}: expected seconds, {TIMEOUT_MAX:.0f} at most"
            )


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
