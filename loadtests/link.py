"""A slow link between a client and the servers: two network namespaces (Linux, as root).

A pair of veth interfaces, whose ends each send at the link's rate (`tc tbf`: a token bucket). The
servers stay where they are and listen on :data:`ADDRESS` too; what is started behind the link
reaches them there. Nothing else is delayed or lost: that takes netem, which not every kernel has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

# A network of this process's own, of those that nobody else has (RFC 2544: for benchmarks).
_NETWORK, _PLACE = divmod(os.getpid() % 2**14, 64)
# Of this machine's end, and of the one behind the link.
ADDRESS, _BEHIND = (f"198.18.{_NETWORK}.{4 * _PLACE + end}" for end in (1, 2))
# What may pass at once after a pause, and what waits at most before packets are dropped.
SHAPE = "burst 32kb latency 50ms"


class NoLink(Exception):
    """It cannot be made here; with the reason."""


@contextlib.contextmanager
def link(mbit: float) -> Iterator[Sequence[str]]:
    """Make a link of so many megabits a second, each way, and remove it at the end of the block.

    :returns: what a command begins with to run behind it.
    :raises NoLink: where that is not allowed.
    """
    name, near, far = f"wfn{os.getpid()}", f"wfa{os.getpid()}", f"wfb{os.getpid()}"
    within = f"ip netns exec {name}"
    shape = f"root tbf rate {mbit:g}mbit {SHAPE}"
    with contextlib.ExitStack() as stack:
        try:
            _run(f"ip netns add {name}")
            stack.callback(_run, f"ip netns del {name}")  # both interfaces go with it
            _run(f"ip link add {near} type veth peer name {far} netns {name}")
            _run(f"ip addr add {ADDRESS}/30 dev {near}")
            _run(f"ip link set {near} up")
            _run(f"{within} ip addr add {_BEHIND}/30 dev {far}")
            _run(f"{within} ip link set {far} up")
            _run(f"tc qdisc add dev {near} {shape}")
            _run(f"{within} tc qdisc add dev {far} {shape}")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise NoLink(f"no link of {mbit:g} Mbit/s can be made here: {reason}") from None
        yield within.split()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
