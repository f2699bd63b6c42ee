"""The extras of wsgifast, and the packages that they require.

python -m tests.support.extras             the extras of users, for pip: asgi,bench,...
python -m tests.support.extras packages    the names of the packages, without versions
"""

from __future__ import annotations

import sys
from importlib.metadata import metadata, requires

from packaging.requirements import Requirement


def extras() -> list[str]:
    """All extras but the one for developers."""
    return sorted({*(metadata("wsgifast").get_all("Provides-Extra") or ())} - {"dev"})


def packages() -> list[str]:
    """Return the requirements of these extras on this Python, with the extras of the packages
    themselves.
    """
    wanted = set()
    for requirement in map(Requirement, requires("wsgifast") or ()):
        marker = requirement.marker
        if requirement.name == "wsgifast" or marker is None:
            continue
        if any(marker.evaluate({"extra": extra}) for extra in extras()):
            own = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            wanted.add(requirement.name + own)
    return sorted(wanted)


if __name__ == "__main__":
    print(*(packages() if "packages" in sys.argv else [",".join(extras())]))
